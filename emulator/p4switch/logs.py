"""The switch's log, in the form of BMv2's: [time] [bmv2] [level] [thread id] text."""

from __future__ import annotations

import logging
import logging.handlers
import sys
import threading
from pathlib import Path

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
"""BMv2's names of levels."""

MAX_BYTES, MAX_FILES = 5 << 20, 3
"""The size at which a log file is rotated, and the number of old files (BMv2's defaults)."""

_LETTERS = {TRACE: "T", logging.DEBUG: "D", logging.INFO: "I", logging.WARNING: "W", logging.ERROR: "E", 50: "C"}


class Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = self.formatTime(record, "%H:%M:%S")
        letter = _LETTERS.get(record.levelno, "I")
        text = f"[{time}.{int(record.msecs):03d}] [bmv2] [{letter}] [thread {record.thread_id}] {record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def _add_thread_id(record: logging.LogRecord) -> bool:
    record.thread_id = threading.get_native_id()
    return True


def set_up(level: str, console: bool, file: str | None, max_bytes: int, max_files: int) -> None:
    """Log to stdout, or to FILE.txt, from `level` on; without either, warnings go to stderr."""
    if file is not None:
        path = Path(f"{file}.txt")
        handler = logging.handlers.RotatingFileHandler(path, maxBytes=max_bytes, backupCount=max_files)
        handler.namer = _rotated_name
    else:
        handler = logging.StreamHandler(sys.stdout if console else sys.stderr)
    handler.setFormatter(Formatter())
    handler.addFilter(_add_thread_id)
    log = logging.getLogger("switchml.bmv2")
    log.handlers = [handler]
    log.propagate = False
    log.setLevel(LEVELS[level] if console or file is not None else logging.WARNING)


def _rotated_name(name: str) -> str:
    """FILE.txt.1 → FILE.1.txt, BMv2's name for a rotated file."""
    base, _, number = name.rpartition(".")
    return f"{base.removesuffix('.txt')}.{number}.txt"
