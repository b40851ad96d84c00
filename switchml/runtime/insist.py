"""Exceptions that signals raise, again and again until somebody has heard them.

Python raises in the main thread wherever that is just then. In a callback from C (llvmlite's object cache, a weak
reference's, a `__hash__` that a dict calls) the exception is lost, and the process would go on for ever: once in a
hundred signals that came while numba loaded kernels.
"""

import signal
import sys
import threading
from types import FrameType
from typing import Any, NoReturn

AGAIN_S = 0.5
"""How long an exception may be on its way without any Python code that could see it."""
_LOST_S = 0.001
_LOOK_S = 0.2
"""How late a signal is handled that comes as the main thread begins to wait."""

_raised: BaseException | None = None
_report_others = sys.unraisablehook


def insist(error: BaseException) -> NoReturn:
    """Raise `error` from a signal's handler, and again until `heard`, but not while it is being handled."""
    global _raised, _report_others
    _raised = error
    if signal.getsignal(signal.SIGALRM) == signal.SIG_DFL:  # otherwise somebody else uses the timer
        signal.signal(signal.SIGALRM, _again)
    if _has_timer():
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S, AGAIN_S)
        if sys.unraisablehook is not _lost:
            _report_others, sys.unraisablehook = sys.unraisablehook, _lost
    raise error


def heard() -> None:
    """The exception has come to where it was to end something. To be called from the main thread."""
    global _raised
    _raised = None
    if _has_timer():
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        if sys.unraisablehook is _lost:
            sys.unraisablehook = _report_others


def is_raised(error: BaseException) -> bool:
    """Whether `error` is what is insisted on, or Python raised it instead (as `__set_name__` does before 3.12)."""
    current: BaseException | None = error
    while current is not None:
        if current is _raised:
            return True
        current = current.__cause__
    return False


def _has_timer() -> bool:
    return signal.getsignal(signal.SIGALRM) is _again


def _again(number: int, frame: FrameType | None) -> None:
    if _raised is not None and not _is_handled(_raised):
        raise _raised.with_traceback(None)


def _lost(unraisable: Any) -> None:
    """sys.unraisablehook: what can't be raised there is raised as soon as C has returned."""
    if unraisable.exc_value is _raised:
        signal.setitimer(signal.ITIMER_REAL, _LOST_S, AGAIN_S)
    else:
        _report_others(unraisable)


def _is_handled(error: BaseException) -> bool:
    """Whether a `with`, `except` or `finally` of the main thread is at it, or at one that it led to."""
    current = sys.exc_info()[1]
    while current is not None:
        if current is error:
            return True
        current = current.__context__
    return False


def wait_for(event: threading.Event) -> None:
    """Wait in the main thread, to which a signal's handler belongs. CPython runs that between two instructions, so that
    a signal that comes just before an endless `event.wait()` blocks would not be handled at all."""
    while not event.wait(_LOOK_S):
        pass
