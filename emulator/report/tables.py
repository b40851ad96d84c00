"""Tables for people: where the time goes, what is on the critical path; and the units that all reports share."""

from __future__ import annotations

from rich.table import Table

from emulator.replay.critical import CriticalPath
from emulator.replay.parts import Parts

LONGEST = 10
"""Rows of the critical path's table."""


def time_text(seconds: float) -> str:
    """1.23 s, 45.6 ms, 789 µs, 3.4 h: three digits and a unit that fits."""
    if seconds == 0:
        return "0 s"
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= size * (2 if unit in ("d", "h", "min") else 1):
            return f"{_three(seconds / size)} {unit}"
    return f"{_three(seconds / 1e-9)} ns"


def bytes_text(count: float) -> str:
    """12.3 GB, in powers of ten."""
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(count) >= size:
            return f"{_three(count / size)} {unit}"
    return f"{count:.0f} B"


def _three(value: float) -> str:
    """Three significant digits, without an exponent."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def parts_table(parts: Parts, makespan_s: float) -> Table:
    """Part, seconds of an average rank, share of the iteration."""
    table = Table(title="Where the time goes (average rank)", title_justify="left")
    table.add_column("part")
    table.add_column("time", justify="right")
    table.add_column("share", justify="right")
    for name, seconds in sorted(parts.mean().items(), key=lambda item: -item[1]):
        table.add_row(name, time_text(seconds), f"{seconds / makespan_s:.1%}" if makespan_s else "–")
    table.add_section()
    table.add_row("iteration", time_text(makespan_s), "100.0%")
    table.caption = f"Communication behind compute, not counted above: {time_text(parts.hidden_communication_s())}"
    table.caption_justify = "left"
    return table


def critical_table(path: CriticalPath) -> Table:
    """The works that the critical path spends most time in."""
    whole_s = sum(path.by_work.values())
    table = Table(title="On the critical path", title_justify="left")
    table.add_column("operation")
    table.add_column("time", justify="right")
    table.add_column("share", justify="right")
    for name, seconds in list(path.by_work.items())[:LONGEST]:
        table.add_row(name, time_text(seconds), f"{seconds / whole_s:.1%}")
    if len(path.by_work) > LONGEST:
        rest_s = sum(list(path.by_work.values())[LONGEST:])
        table.add_row(f"{len(path.by_work) - LONGEST} others", time_text(rest_s), f"{rest_s / whole_s:.1%}")
    return table
