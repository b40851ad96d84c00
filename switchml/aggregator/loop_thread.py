"""The thread that runs a compiled loop. It owns the loop's state: other threads change it by passing a function, which
the thread runs while the loop is paused.
"""

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from switchml.runtime.cores import confine
from switchml.runtime.slices import shorten_slices

Result = TypeVar("Result")


class LoopThread:
    """`serve` must return when `wake`, an eventfd, is written to; it is called repeatedly until `stop`."""

    def __init__(self, serve: Callable[[], None], name: str) -> None:
        self.wake = os.eventfd(0, os.EFD_NONBLOCK)
        self.stopping = False
        self._serve = serve
        self._requests: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._lock = threading.Lock()  # no request may follow the last check of the queue
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> bool:
        """End the thread, if it runs; the eventfd remains open. Returns False if this was called before."""
        with self._lock:
            if self.stopping:
                return False
            self.stopping = True
            os.eventfd_write(self.wake, 1)
        self._finish()
        return True

    def run(self, action: Callable[[], Result]) -> Result:
        """Run `action` between two rounds of the loop, or in the calling thread if the loop does not run; returns its
        result."""
        with self._lock:
            serving = self._thread.ident is not None and not self.stopping
            if serving:
                future: Future[Result] = Future()
                self._requests.put((action, future))
                os.eventfd_write(self.wake, 1)
        if serving:
            return future.result()
        self._finish()
        with self._lock:
            return action()

    @property
    def native_id(self) -> int | None:
        """The kernel's thread ID; None before `start`."""
        return self._thread.native_id

    def run_on(self, cores: set[int]) -> None:
        """Restrict the thread to these cores."""
        if self.native_id is not None:
            confine(self.native_id, cores)

    def _finish(self) -> None:
        if self._thread.ident is not None:
            self._thread.join()

    def _live(self) -> None:
        shorten_slices()
        while not self.stopping:
            self._serve()
            os.eventfd_read(self.wake)
            self._handle_requests()
        self._handle_requests()

    def _handle_requests(self) -> None:
        while not self._requests.empty():
            action, future = self._requests.get()
            try:
                future.set_result(action())
            except BaseException as error:
                future.set_exception(error)
