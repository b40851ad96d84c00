"""The table of `switchml validate replay`."""

from emulator.lab.validation import clocks
from emulator.lab.validation.replay.measure import ReplayValidation
from emulator.lab.validation.rows import mape, worst
from switchml.tables import Table, number, show, text

TITLES = {
    "self-replay": "replayed as traced",
    "what-if": "with a change",
    "emulated peers": "all ranks but one emulated",
}


def print_table(validation: ReplayValidation) -> None:
    """Print rows and averages of each kind, and the recovered clocks, on stdout."""
    table = Table([text("run"), number("measured", "ms"), number("predicted", "ms"), number("error", "%")])
    notes = []
    for kind, rows in validation.groups.items():
        table.add(TITLES[kind])
        for row in rows:
            times = (f"{seconds * 1e3:,.1f}" for seconds in (row.measured, row.predicted))
            table.add(row.name, *times, f"{100 * row.error:+.1f}")
        far = worst(rows)
        notes.append(f"{kind.capitalize()}: MAPE {mape(rows):.1%}, worst {far.error:+.1%} ({far.name})")
    table.notes = ["\n".join(notes)]
    show(table, clocks.table(validation.clocks))
