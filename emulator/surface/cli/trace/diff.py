"""`switchml trace diff`: comparison of two runs of a job, or of several pairs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from emulator.surface.cli.options import ANY_PATH, json_option, output, salvage_option
from switchml import tables
from switchml.terminal import progress, say

if TYPE_CHECKING:
    from emulator.traces.diagnosis.diff import Difference, Row

ROWS = 15
"""Maximum number of rows in the tables of operations."""


@click.command()
@click.argument("runs", type=ANY_PATH, nargs=-1, required=True, metavar="A B [A B]...")
@salvage_option
@json_option
def diff(runs: tuple[Path, ...], salvage: bool, as_json: bool) -> None:
    """Explain why iterations of the run traced in B take longer or shorter than those of the run in A.

    Causes on the average rank sum to the difference, and so do operations on the critical path.

    Other load on the machines during one run affects all of its iterations. Three pairs or more, captured alternately
    (A B A B A B), distinguish a change from that: it is called significant where pairs agree.
    """
    from emulator.traces.diagnosis.diff import difference, mean
    from emulator.traces.join import join
    from emulator.traces.readers.read import read

    if len(runs) % 2:
        raise click.UsageError(f"{len(runs)} runs; expected pairs: A B, or A B A B …")
    traced = [read(run, salvage=salvage) for run in runs]
    with progress("comparing"):
        joined = [join(traces) for traces in traced]
        differences = mean([difference(a, b) for a, b in zip(joined[::2], joined[1::2], strict=True)])
    output(as_json, differences.to_json, lambda: show(differences, runs))


def show(differences: Difference, runs: Sequence[Path]) -> None:
    """Print the differences."""
    from emulator.jobs.replay.report import operation_text
    from switchml.units import time_text

    row = differences.iteration
    change = f"{row.difference_s / row.a_s:+.1%}" if row.a_s else "–"
    pairs = len(runs) // 2
    few = "too few iterations to say whether by chance" if pairs == 1 else "too few pairs to say whether by chance"
    much = "more than iterations scatter" if pairs == 1 else "significant"
    sure = {None: few, True: much, False: "may be chance"}
    sign = "+" if row.difference_s > 0 else "−" if row.difference_s < 0 else ""
    more = f" and {pairs - 1} more" if pairs > 1 else ""
    say(f"A, {runs[0]}{more}: {time_text(row.a_s)} an iteration")
    say(f"B, {runs[1]}{more}: {time_text(row.b_s)}")
    say(f"B − A: {sign}{time_text(abs(row.difference_s))} ({change}; {sure[row.is_significant]})")
    if pairs == 1 and row.is_significant:
        say(("one run of each: what else the machines did is in it, too; runs in turns tell (A B A B A B)", "dim"))
    say()
    shown = [
        _table("By cause, average rank", "cause", differences.parts, differences),
        _table("By operation on the critical path", "operation", differences.path, differences),
        _table("Operations, average rank, their own time", "operation", differences.operations, None),
    ]
    if differences.collectives:
        shown.append(_table("Communication, once all have come", "operation", differences.collectives, None))
    tables.show(*shown)
    for what, rows in (("Only in B", differences.appeared), ("Only in A", differences.disappeared)):
        if rows:
            names = [operation_text(each.name) for each in rows[:ROWS]]
            others = [f"and {len(rows) - ROWS} others"] if len(rows) > ROWS else []
            say()
            tables.show(tables.Table([tables.text(what)], [(name,) for name in (*names, *others)]))


def _table(title: str, what: str, rows: list[Row], whole: Difference | None) -> tables.Table:
    """A table of differences. `whole`: the difference that the rows sum to; if None, the number of occurrences per
    iteration is shown, and whether the difference is significant."""
    from emulator.jobs.replay.report import operation_text
    from switchml.units import TimeUnit

    is_tested = whole is None and any(row.is_significant is not None for row in rows)
    unit = TimeUnit(second for row in [*rows, *([whole.iteration] if whole else [])] for second in (row.a_s, row.b_s))
    columns = [tables.text(what), *(tables.number(name, unit.name) for name in ("A", "B", "B − A"))]
    if whole is None:
        columns += [tables.number("times in A", drop=2), tables.number("times in B", drop=2)]
    if is_tested:
        columns.append(tables.number("significant", drop=1))
    shown = tables.Table(columns, title=title)

    def add(name: str, a_s: float, b_s: float, *others: str) -> None:
        cells = (name, unit.text(a_s), unit.text(b_s), unit.signed(b_s - a_s), *others)
        shown.add(*cells, *[""] * (len(columns) - len(cells)))

    for row in rows[:ROWS]:
        counts = [] if whole is not None else [f"{row.a_count:.3g}", f"{row.b_count:.3g}"]
        sure = {None: "–", True: f"yes (p = {row.p or 0:.2g})", False: "no"}
        add(operation_text(row.name), row.a_s, row.b_s, *counts, *([sure[row.is_significant]] if is_tested else []))
    if len(rows) > ROWS:
        add(f"{len(rows) - ROWS} others", *(sum(getattr(row, name) for row in rows[ROWS:]) for name in ("a_s", "b_s")))
    if whole is not None:
        shown.add("not in the replay", "", "", unit.signed(whole.unexplained_s))
        shown.add()
        add("iteration", whole.iteration.a_s, whole.iteration.b_s)
    return shown
