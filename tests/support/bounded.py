"""A limit on what a piece of a test may take, so that a hang or a bomb fails it and not the machine."""

import contextlib
import resource
import signal
from pathlib import Path

MAX_BYTES = 500_000_000


class Hung(BaseException):
    """No error of a reader's: nothing catches it."""


@contextlib.contextmanager
def bounded(seconds, most_bytes=MAX_BYTES):
    """At most so many seconds, and so much more memory than there is in use; MemoryError or Hung otherwise."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + most_bytes, limits[1]))
    before = signal.signal(signal.SIGALRM, _hung)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, limits)


def _hung(*_):
    raise Hung
