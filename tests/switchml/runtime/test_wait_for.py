"""A signal that comes just as the main thread begins to wait is handled all the same."""

import os
import signal
import threading

from switchml.runtime.raising import wait_for


def test_no_wait_is_endless():
    """CPython runs no handler during one, of a signal that came just before."""

    class Watched(threading.Event):
        def wait(self, timeout=None):
            assert timeout is not None
            os.kill(os.getpid(), signal.SIGUSR1)
            return super().wait(timeout)

    event = Watched()
    before = signal.signal(signal.SIGUSR1, lambda *_: event.set())
    try:
        wait_for(event)
    finally:
        signal.signal(signal.SIGUSR1, before)
