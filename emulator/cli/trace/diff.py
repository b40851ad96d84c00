"""`switchml trace diff`: two runs of a job beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from emulator.cli.options import ANY_PATH, json_option, output, table

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from emulator.diagnosis.diff import Difference, Row

ROWS = 15
"""Of the tables of operations."""
LONGEST_NAME = 60
"""Characters of an operation in a sentence."""


@click.command()
@click.argument("a", type=ANY_PATH)
@click.argument("b", type=ANY_PATH)
@json_option
def diff(a: Path, b: Path, as_json: bool) -> None:
    """Say why iterations of the run traced in B take longer or shorter than those of the run in A.

    Causes on the average rank sum to the difference, and so do operations on the critical path. A difference is called
    significant where iterations of the same run scatter less than that.
    """
    from emulator.diagnosis.diff import difference
    from emulator.traces.join import join
    from emulator.traces.readers.read import read

    differences = difference(join(read(a)), join(read(b)))
    output(as_json, differences.to_json, lambda: _show(differences, a, b))


def _show(differences: Difference, a: Path, b: Path) -> None:
    from emulator.report.tables import operation_text, time_text
    from switchml.terminal import Console

    console = Console()
    row = differences.iteration
    change = f"{row.difference_s / row.a_s:+.1%}" if row.a_s else "–"
    sure = {None: "too few iterations to say whether by chance", True: "significant", False: "may be chance"}
    console.print(
        f"A {a}: {time_text(row.a_s)} an iteration; B {b}: {time_text(row.b_s)}: "
        f"{_signed(row.difference_s)} ({change}; {sure[row.is_significant]})\n"
    )
    console.print(_table("By cause, average rank", differences.parts, differences))
    console.print(_table("By operation on the critical path", differences.path, differences))
    console.print(_table("Operations, average rank, their own time", differences.operations, None))
    if differences.collectives:
        console.print(_table("Communication, once all have come", differences.collectives, None))
    for what, rows in (("Only in B", differences.appeared), ("Only in A", differences.disappeared)):
        if rows:
            names = [operation_text(each.name, LONGEST_NAME) for each in rows[:ROWS]]
            console.print(f"{what}: " + ", ".join(names) + ", …" * (len(rows) > ROWS))


def _table(title: str, rows: list[Row], whole: Difference | None) -> Table:
    """`whole`: the difference that the rows sum to; else how often each is in an iteration is shown, and whether its
    difference is significant."""
    from emulator.report.tables import operation_cell, time_text

    is_tested = whole is None and any(row.is_significant is not None for row in rows)
    figures = ("A", "B", "B − A", *(["times in A, B"] if whole is None else []))
    shown = table([""], figures, title=title, title_justify="left")
    if is_tested:
        shown.add_column("significant")
    for column in shown.columns[1:]:
        column.no_wrap = True
    for row in rows[:ROWS]:
        cells: list[str | Text] = [
            operation_cell(row.name),
            time_text(row.a_s),
            time_text(row.b_s),
            _signed(row.difference_s),
        ]
        if whole is None:
            cells.append(f"{row.a_count:.3g}, {row.b_count:.3g}")
        if is_tested:
            sure = {None: "–", True: f"yes (p = {row.p or 0:.2g})", False: "no"}
            cells.append(sure[row.is_significant])
        shown.add_row(*cells)
    if len(rows) > ROWS:
        a_s, b_s = sum(row.a_s for row in rows[ROWS:]), sum(row.b_s for row in rows[ROWS:])
        shown.add_row(f"{len(rows) - ROWS} others", time_text(a_s), time_text(b_s), _signed(b_s - a_s))
    if whole is not None:
        shown.add_row("not in the replay", "", "", _signed(whole.unexplained_s))
        shown.add_section()
        row = whole.iteration
        shown.add_row("iteration", time_text(row.a_s), time_text(row.b_s), _signed(row.difference_s))
    return shown


def _signed(seconds: float) -> str:
    from emulator.report.tables import time_text

    return ("+" if seconds > 0 else "−" if seconds < 0 else "") + time_text(abs(seconds))
