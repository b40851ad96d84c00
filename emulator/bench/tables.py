"""Tables of benchmarks and validations for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table


def print_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    left: int = 1,
    before: str = "",
    notes: Sequence[str] = (),
    width: int = 0,
) -> None:
    """Print a table to stdout, the first `left` columns aligned to the left and all others, numbers, to the right.

    `before`: a line above it; `notes`: dim paragraphs below it; `width`: what the table takes at least, so that no
    column is cut on a narrow terminal, or none. A row of one cell is a heading.
    """
    console = Console(highlight=False)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row, style="bold" if len(row) == 1 < len(headings) else None)
    if before:
        console.print(before + "\n", markup=False)
    Console(highlight=False, width=max(console.width, width)).print(table)
    for note in filter(None, notes):
        console.print("\n" + note, style="dim", markup=False)
