"""A signal that comes just as the main thread begins to wait is handled all the same."""

import os
import signal
import threading

import pytest

from switchml.runtime.insist import wait_for


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="needs the main thread")
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
