"""Text tables of a replay: time by part, and the critical path."""

import re
from collections.abc import Sequence

from emulator.jobs.replay.critical import CriticalPath
from emulator.jobs.replay.parts import Parts
from switchml.tables import Table, number, text
from switchml.units import TimeUnit, time_text

LONGEST = 10
"""Rows of the critical path's table."""


_NOISE = re.compile(r"\bvoid (?=\S)|\bat::native::|\(anonymous namespace\)::|\bstd::")
"""Substrings that are common to many kernel names and distinguish none."""


def operation_text(name: str, most: int = 0) -> str:
    """Return a kernel's name without its result type, PyTorch's own namespaces, and its parameters. If longer than
    `most` characters (0: unlimited), it is cut with an ellipsis."""
    plain = _NOISE.sub("", name)
    if plain.endswith(")"):
        depth, at = 0, len(plain)
        while at and (depth := depth + {")": 1, "(": -1}.get(plain[at - 1], 0)):
            at -= 1
        if at > 1 and (plain[at - 2].isalnum() or plain[at - 2] in "_>"):
            plain = plain[: at - 1]
    return plain if not most or len(plain) <= most else plain[: most - 1] + "…"


def shares_table(what: str, rows: Sequence[tuple[str, float]], whole_s: float, title: str = "") -> Table:
    """Return a table of names, seconds and shares of `whole_s`."""
    unit = TimeUnit([whole_s, *(seconds for _, seconds in rows)])
    table = Table([text(what), number("time", unit.name), number("share", "%")], title=title)
    for name, seconds in rows:
        table.add(operation_text(name), unit.text(seconds), f"{100 * seconds / whole_s:.1f}" if whole_s else "–")
    return table


def parts_table(parts: Parts, makespan_s: float) -> Table:
    """Return a table of an average rank's seconds by part."""
    rows = sorted(parts.mean().items(), key=lambda item: -item[1])
    table = shares_table("part", rows, makespan_s, "Where the time goes (average rank)")
    table.add()
    unit = TimeUnit([makespan_s, *(seconds for _, seconds in rows)])
    table.add("iteration", unit.text(makespan_s), "100.0")
    hidden = time_text(parts.hidden_communication_s())
    table.notes = [f"Communication behind compute, not counted above: {hidden}"]
    return table


def critical_table(path: CriticalPath) -> Table:
    """Return a table of the op types with the most time on the critical path."""
    op_types = list(path.by_op_type.items())
    rows, others = op_types[:LONGEST], op_types[LONGEST:]
    if others:
        rows.append((f"{len(others)} others", sum(seconds for _, seconds in others)))
    return shares_table("operation", rows, sum(path.by_op_type.values()), "On the critical path")
