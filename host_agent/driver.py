"""Ownership of an agent's loop: its own thread, or a caller that waits for its call.

Handing a small call to a thread and getting its result back costs more than the packets of the call: a wake-up each
way, and the wait for Python's lock. So the agent's thread sleeps once nothing is in progress; a caller that waits for
its call then drives the loop itself, and an asynchronous call wakes the thread.
"""

import os
import select
import threading
from collections.abc import Callable

_THREAD = 0


class DriverLock:
    """Lock of one agent's loop, initially held by the agent's thread. `wake_fd`: an eventfd that ends the driver's
    sleep."""

    def __init__(self) -> None:
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self._lock = threading.Lock()
        self._driver: int | None = _THREAD
        """The current driver: `_THREAD` for the agent's thread, the identifier of a caller's thread, or None while the
        agent's thread sleeps."""
        self._rest = threading.Lock()
        self._rest.acquire()

    def close(self) -> None:
        os.close(self.wake_fd)

    def wake(self) -> None:
        """Wake the agent's thread if it sleeps, else the driver, unless that is the calling thread."""
        with self._lock:
            driver = self._driver
            if driver is None:
                self._begin_thread()
        if driver is not None and driver != threading.get_ident():
            os.eventfd_write(self.wake_fd, 1)

    def sleep(self, most_s: float) -> None:
        """For the driver: sleep until `wake`, or for at most `most_s` seconds."""
        waiter = select.poll()  # supports descriptors beyond 1023, too
        waiter.register(self.wake_fd, select.POLLIN)
        if waiter.poll(most_s * 1000):
            os.eventfd_read(self.wake_fd)

    def take(self) -> bool:
        """Make the calling thread the driver if there is none; returns whether it is. It ends that with `give_back`."""
        with self._lock:
            if self._driver is not None:
                return False
            self._driver = threading.get_ident()
            return True

    def give_back(self, is_idle: Callable[[], bool]) -> None:
        """Hand the loop back to the agent's thread, or to nobody if there is nothing to do."""
        with self._lock:
            if is_idle():
                self._driver = None
            else:
                self._begin_thread()

    def rest(self, is_idle: Callable[[], bool]) -> None:
        """For the agent's thread: sleep until there is work that no caller drives. Call `wake` after `is_idle` has
        become false."""
        with self._lock:
            if not is_idle():
                return
            self._driver = None
        self._rest.acquire()

    def _begin_thread(self) -> None:
        self._driver = _THREAD
        self._rest.release()
