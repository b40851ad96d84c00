"""Who drives an agent: its own thread, or a caller that waits for the call it makes.

A thread that is handed a small call, and hands back its result, costs more than the packets of the call: a wake-up
each way, and the wait for Python's lock. So the agent's thread rests once nothing is under way. A caller that waits for
its call then drives the agent itself, and a call that nobody waits for wakes the thread.
"""

import os
import select
import threading
from collections.abc import Callable

_THREAD = 0


class DriverLock:
    """Of one agent, whose thread has the first turn. `wake_fd`: an eventfd that ends the sleep of whoever drives."""

    def __init__(self) -> None:
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self._lock = threading.Lock()
        self._driver: int | None = _THREAD
        """The agent's thread, the identifier of a caller's, or nobody while the thread rests."""
        self._rest = threading.Lock()
        self._rest.acquire()

    def close(self) -> None:
        os.close(self.wake_fd)

    def wake(self) -> None:
        """Somebody has something to do: the thread if it rests, else whoever drives, unless that is the caller."""
        with self._lock:
            driver = self._driver
            if driver is None:
                self._begin_thread()
        if driver is not None and driver != threading.get_ident():
            os.eventfd_write(self.wake_fd, 1)

    def sleep(self, most_s: float) -> None:
        """For whoever drives: until somebody wakes, or so long."""
        waiter = select.poll()  # takes descriptors beyond 1023, too
        waiter.register(self.wake_fd, select.POLLIN)
        if waiter.poll(most_s * 1000):
            os.eventfd_read(self.wake_fd)

    def take(self) -> bool:
        """Whether the calling thread drives from now on: if nobody did. It ends that with `give_back`."""
        with self._lock:
            if self._driver is not None:
                return False
            self._driver = threading.get_ident()
            return True

    def give_back(self, is_idle: Callable[[], bool]) -> None:
        """The thread goes on, unless there is nothing to do."""
        with self._lock:
            if is_idle():
                self._driver = None
            else:
                self._begin_thread()

    def rest(self, is_idle: Callable[[], bool]) -> None:
        """For the agent's thread: until there is something to do that no caller does. Whoever brings something calls
        `wake` after `is_idle` has become false."""
        with self._lock:
            if not is_idle():
                return
            self._driver = None
        self._rest.acquire()

    def _begin_thread(self) -> None:
        self._driver = _THREAD
        self._rest.release()
