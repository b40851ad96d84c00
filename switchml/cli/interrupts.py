"""How signals end a command: by an exception while it runs, so that every `with` gets its turn, and at once, without a
traceback, while the command line loads and when it is done."""

import signal


class _AtOnce:
    """Ctrl-C ends the process without an exception in this block."""

    is_ours = False

    def __enter__(self) -> None:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            try:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
            except ValueError:  # not the main thread
                return
            self.is_ours = True

    def __exit__(self, *_: object) -> None:
        if self.is_ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self.is_ours = False


at_once = _AtOnce()

with at_once:  # nothing else may be imported before
    import contextlib
    import threading
    from collections.abc import Iterator
    from types import FrameType
    from typing import NoReturn

    from switchml.runtime.insist import heard, insist, is_raised


@contextlib.contextmanager
def in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP raise SystemExit in this block, with the exit code 128 + the signal's number, as Ctrl-C raises
    KeyboardInterrupt. After it, Ctrl-C ends the process without an exception."""
    if not _is_main_thread():
        yield
        return
    code = 0

    def end(number: int, frame: FrameType | None) -> NoReturn:
        nonlocal code
        code = 128 + number
        insist(KeyboardInterrupt() if number == signal.SIGINT else SystemExit(code))

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # `nohup` ignores the latter
            signal.signal(number, end)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end)
    try:
        yield
    except Exception as error:
        if is_raised(error):
            raise SystemExit(code) from None
        raise
    finally:
        heard()
        if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
