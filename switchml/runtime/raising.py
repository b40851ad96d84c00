"""Exceptions raised by signal handlers, repeated until they are handled.

Python raises such an exception in the main thread at whatever point it is executing. In a callback from C (llvmlite's
object cache, a weak reference's, a `__hash__` called by a dict) the exception is lost, and the process would continue:
this happened for one of a hundred signals that arrived while numba loaded kernels.
"""

import signal
import sys
import threading
from types import FrameType
from typing import Any, NoReturn

AGAIN_S = 0.5
"""Interval of repetition: the maximum time that an exception may propagate without any Python code that could handle
it."""
_LOST_S = 0.001
_LOOK_S = 0.2
"""Maximum delay in handling a signal that arrives as the main thread begins to wait."""

_raised: BaseException | None = None
_report_others = sys.unraisablehook


def raise_until_handled(error: BaseException) -> NoReturn:
    """Raise `error` from a signal handler, and again until `acknowledge` is called, except while it is being
    handled."""
    global _raised, _report_others
    _raised = error
    if signal.getsignal(signal.SIGALRM) == signal.SIG_DFL:  # otherwise the timer is in use
        signal.signal(signal.SIGALRM, _raise_again)
    if _has_timer():
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S, AGAIN_S)
        if sys.unraisablehook is not _raise_lost:
            _report_others, sys.unraisablehook = sys.unraisablehook, _raise_lost
    raise error


def acknowledge() -> None:
    """Stop repeating the exception: it has reached its handler. To be called from the main thread."""
    global _raised
    _raised = None
    if _has_timer():
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        if sys.unraisablehook is _raise_lost:
            sys.unraisablehook = _report_others


def is_raised(error: BaseException) -> bool:
    """Return whether `error` is the repeated exception, or one that Python raised from it (as `__set_name__` does
    before 3.12)."""
    current: BaseException | None = error
    while current is not None:
        if current is _raised:
            return True
        current = current.__cause__
    return False


def _has_timer() -> bool:
    return signal.getsignal(signal.SIGALRM) is _raise_again


def _raise_again(number: int, frame: FrameType | None) -> None:
    if _raised is not None and not _is_handled(_raised):
        raise _raised.with_traceback(None)


def _raise_lost(unraisable: Any) -> None:
    """sys.unraisablehook: repeat the exception as soon as the C code has returned."""
    if unraisable.exc_value is _raised:
        signal.setitimer(signal.ITIMER_REAL, _LOST_S, AGAIN_S)
    else:
        _report_others(unraisable)


def _is_handled(error: BaseException) -> bool:
    """Return whether a `with`, `except` or `finally` of the main thread is handling it, or an exception raised in its
    context."""
    current = sys.exc_info()[1]
    while current is not None:
        if current is error:
            return True
        current = current.__context__
    return False


def wait_for(event: threading.Event) -> None:
    """Wait in the main thread, which runs signal handlers. CPython runs them between two instructions, so a signal that
    arrives just before an endless `event.wait()` blocks would not be handled at all."""
    while not event.wait(_LOOK_S):
        pass
