"""The switch's log, in BMv2's format: [time] [bmv2] [level] [thread id] text."""

import contextlib
import functools
import logging
import logging.handlers
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from switchml.errors import ConfigError

TRACE = 5
OFF = 100
LEVELS = {
    "trace": TRACE,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "off": OFF,
}
"""Logging levels by BMv2's names."""

MAX_BYTES, MAX_FILES = 5 << 20, 3
"""The size at which a log file is rotated, and the number of old files (BMv2's defaults)."""

_LETTERS = {TRACE: "T", logging.DEBUG: "D", logging.INFO: "I", logging.WARNING: "W", logging.ERROR: "E", 50: "C"}


class Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = self.formatTime(record, "%H:%M:%S")
        letter = _LETTERS.get(record.levelno, "I")
        text = f"[{time}.{int(record.msecs):03d}] [bmv2] [{letter}] [thread {threading.get_native_id()}] "
        text += record.getMessage()
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class _Tolerant(logging.Handler):
    """A handler that tolerates a full disk: log lines are lost, with a single warning on stderr."""

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            _say_once(f"switchml: warning: a part of the log is lost: {error.strerror}")
        else:
            super().handleError(record)


if TYPE_CHECKING:
    _StreamHandler = logging.StreamHandler[TextIO]
else:
    _StreamHandler = logging.StreamHandler  # not generic at run time in Python 3.10


class _Console(_Tolerant, _StreamHandler):
    """Logs to a stream."""


class _File(_Tolerant, logging.handlers.RotatingFileHandler):
    """Logs to a rotating file."""


@functools.cache
def _say_once(text: str) -> None:
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr)


def set_up(level: str, console: bool, file: str | None, max_bytes: int, max_files: int) -> None:
    """Log to stdout, or to FILE.txt, from `level` on; without either, warnings go to stderr. Raises ConfigError if the
    file can't be created."""
    handler: _File | _Console
    if file is not None:
        path = Path(f"{file}.txt")
        try:
            handler = _File(path, maxBytes=max_bytes, backupCount=max_files)
        except OSError as error:
            raise ConfigError(f"--log-file {path}: {error.strerror}") from None
        handler.namer = _rotated_name
    else:
        handler = _Console(sys.stdout if console else sys.stderr)
    handler.setFormatter(Formatter())
    log = logging.getLogger("switchml.bmv2")
    log.handlers = [handler]
    log.propagate = False
    log.setLevel(LEVELS[level] if console or file is not None else logging.WARNING)


def _rotated_name(name: str) -> str:
    """FILE.txt.1 → FILE.1.txt, BMv2's name for a rotated file."""
    base, _, number = name.rpartition(".")
    return f"{base.removesuffix('.txt')}.{number}.txt"
