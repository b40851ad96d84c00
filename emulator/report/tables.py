"""Tables for people: where the time goes, what is on the critical path; and the units that all reports share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from emulator.replay.critical import CriticalPath
from emulator.replay.parts import Parts
from switchml.tables import Table, number, text

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


_UNITS = (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))


class TimeUnit:
    """The unit of a column of times, such that the longest of them reads well: its `name`, and figures in it."""

    def __init__(self, seconds: Iterable[float]) -> None:
        longest_s = max((abs(each) for each in seconds), default=0.0)
        fits = (unit for unit in _UNITS if longest_s >= unit[1] * (2 if unit[1] > 1 else 1))
        self.name, self.size_s = next(fits, ("s", 1.0))
        longest = longest_s / self.size_s
        self._places = 1 if longest >= 100 else 2 if longest >= 10 else 3

    def text(self, seconds: float) -> str:
        """Four digits of the longest time, as many behind the point of all others."""
        return f"{seconds / self.size_s:,.{self._places}f}"

    def signed(self, seconds: float) -> str:
        """With a sign."""
        return f"{seconds / self.size_s:+,.{self._places}f}".replace("-", "−")


def bytes_text(count: float) -> str:
    """12.3 GB, in powers of ten."""
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(count) >= size:
            return f"{_three(count / size)} {unit}"
    return f"{count:.0f} B"


_NOISE = re.compile(r"\bvoid (?=\S)|\bat::native::|\(anonymous namespace\)::|\bstd::")
"""What stands in the names of many kernels and distinguishes none."""


def operation_text(name: str, most: int = 0) -> str:
    """A kernel's name without what does not distinguish it: its result, PyTorch's own namespaces, its parameters. Of
    more than `most` characters (0: any number) the end becomes an ellipsis."""
    plain = _NOISE.sub("", name)
    if plain.endswith(")"):
        depth, at = 0, len(plain)
        while at and (depth := depth + {")": 1, "(": -1}.get(plain[at - 1], 0)):
            at -= 1
        if at > 1 and (plain[at - 2].isalnum() or plain[at - 2] in "_>"):
            plain = plain[: at - 1]
    return plain if not most or len(plain) <= most else plain[: most - 1] + "…"


def _three(value: float) -> str:
    """Three significant digits, without an exponent."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def shares_table(what: str, rows: Sequence[tuple[str, float]], whole_s: float, title: str = "") -> Table:
    """What, seconds, share of `whole_s`."""
    unit = TimeUnit([whole_s, *(seconds for _, seconds in rows)])
    table = Table([text(what), number("time", unit.name), number("share", "%")], title=title)
    for name, seconds in rows:
        table.add(operation_text(name), unit.text(seconds), f"{100 * seconds / whole_s:.1f}" if whole_s else "–")
    return table


def parts_table(parts: Parts, makespan_s: float) -> Table:
    """Seconds of an average rank."""
    rows = sorted(parts.mean().items(), key=lambda item: -item[1])
    table = shares_table("part", rows, makespan_s, "Where the time goes (average rank)")
    table.add()
    unit = TimeUnit([makespan_s, *(seconds for _, seconds in rows)])
    table.add("iteration", unit.text(makespan_s), "100.0")
    hidden = time_text(parts.hidden_communication_s())
    table.notes = [f"Communication behind compute, not counted above: {hidden}"]
    return table


def critical_table(path: CriticalPath) -> Table:
    """The works that the critical path spends most time in."""
    works = list(path.by_work.items())
    rows, others = works[:LONGEST], works[LONGEST:]
    if others:
        rows.append((f"{len(others)} others", sum(seconds for _, seconds in others)))
    return shares_table("operation", rows, sum(path.by_work.values()), "On the critical path")
