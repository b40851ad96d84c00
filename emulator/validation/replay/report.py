"""The table of `switchml validate replay`, for people."""

from __future__ import annotations

from emulator.bench import tables
from emulator.validation import clocks
from emulator.validation.replay.measure import ReplayValidation
from emulator.validation.rows import mape, worst

TITLES = {
    "self-replay": "replayed as traced",
    "what-if": "with a change",
    "emulated peers": "all ranks but one emulated",
}


def print_table(validation: ReplayValidation) -> None:
    """Rows and averages of each kind, and the recovered clocks, on stdout."""
    cells: list[tuple[str, ...]] = []
    notes = []
    for kind, rows in validation.groups.items():
        cells.append((TITLES[kind],))
        for row in rows:
            times = (f"{seconds * 1e3:.1f}" for seconds in (row.measured, row.predicted))
            cells.append((f"  {row.name}", *times, f"{row.error:+.1%}"))
        far = worst(rows)
        notes.append(f"{kind.capitalize()}: MAPE {mape(rows):.1%}, worst {far.error:+.1%} ({far.name})")
    tables.print_table(("", "measured ms", "predicted ms", "error"), cells, notes=["\n".join(notes)])
    clocks.print_table(validation.clocks)
