"""How signals end a command: by an exception while it runs, so that every `with` gets its turn, and at once, without a
traceback, while the command line loads and when it is done."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """Ctrl-C ends the process without an exception in this block."""
    if not _is_default():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP raise SystemExit in this block, with the exit code 128 + the signal's number, as Ctrl-C raises
    KeyboardInterrupt. After it, Ctrl-C ends the process without an exception."""
    if not _is_main_thread():
        yield
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # `nohup` ignores the latter
            signal.signal(number, _exit)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _is_default() -> bool:
    return _is_main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
