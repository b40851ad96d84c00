"""Files in /dev/shm that nobody has mapped: what some process left there, whatever other tests have there meanwhile."""

import os
import time
from contextlib import suppress
from pathlib import Path

import psutil

_FOLDER = Path("/dev/shm")


def names() -> set[str]:
    return set(os.listdir(_FOLDER)) if _FOLDER.is_dir() else set()


def await_none_left(before: set[str], what: str, within_s: float = 10.0) -> None:
    """Wait until every name that is not in `before` is gone, or some process has mapped it. `what` begins the error."""
    end = time.monotonic() + within_s
    while left := _left_since(before):
        assert time.monotonic() < end, f"{what}: left in {_FOLDER}: {sorted(left)}"
        time.sleep(0.02)


def _left_since(before: set[str]) -> set[str]:
    new = names() - before
    maps = b"".join(_maps(pid) for pid in psutil.pids()) if new else b""
    return {name for name in new if name.encode() not in maps}


def _maps(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/maps").read_bytes()
    return b""
