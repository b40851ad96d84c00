"""Signal handling of commands: an exception while the command runs, so that every `with` block cleans up, and immediate
exit without a traceback while the command line loads (`switchml/__init__.py`) and after the command."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

import switchml
from switchml.runtime.raising import acknowledge, is_raised, raise_until_handled


@contextlib.contextmanager
def in_order() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise SystemExit in this block, with the exit code 128 + the signal's number, as Ctrl-C
    raises KeyboardInterrupt. After it, Ctrl-C ends the process without an exception."""
    if not _is_main_thread():
        yield
        return
    code = 0

    def end(number: int, frame: FrameType | None) -> NoReturn:
        nonlocal code
        code = 128 + number
        raise_until_handled(KeyboardInterrupt() if number == signal.SIGINT else SystemExit(code))

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # `nohup` ignores the latter
            signal.signal(number, end)
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, switchml._end_at_once):
        signal.signal(signal.SIGINT, end)
    try:
        yield
    except Exception as error:
        if is_raised(error):
            raise SystemExit(code) from None
        raise
    finally:
        acknowledge()
        if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
