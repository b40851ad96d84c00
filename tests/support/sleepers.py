"""Whether threads sleep, without a clock: from their state in /proc (proc(5), field 3 of stat)."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

from tests.support.launch import until

_LOOKS = 20
"""A thread that spins is not found asleep so many times in a row."""
_ENDED = "ended"
"""State of a thread that is no more: gRPC's come and go."""


def threads_of(pid: int) -> list[Path]:
    """All threads of a process."""
    return list(Path(f"/proc/{pid}/task").iterdir())


def threads_named(name: str) -> list[Path]:
    """The threads of this process that have a name in Python."""
    return [Path(f"/proc/self/task/{t.native_id}") for t in threading.enumerate() if t.name == name]


def _state(thread: Path) -> str:
    try:
        return (thread / "stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return _ENDED


def until_asleep(threads: Iterable[Path], times: int = _LOOKS) -> None:
    """Wait until all these threads are asleep, or have ended, _LOOKS times in a row."""
    threads = list(threads)
    assert threads
    looks = 0

    def all_asleep() -> bool:
        nonlocal looks
        looks = looks + 1 if {_state(thread) for thread in threads} <= {"S", _ENDED} else 0
        return looks == times

    until(all_asleep)
