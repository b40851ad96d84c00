"""Tables of benchmarks and validations for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table

from switchml.terminal import Console

_WIDEST = 1000
"""Characters in a line of a table."""


def print_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    left: int = 1,
    before: str = "",
    notes: Sequence[str] = (),
    wraps: bool = False,
) -> None:
    """Print a table to stdout, the first `left` columns aligned to the left and all others, numbers, to the right.

    `before`: a line above it; `notes`: dim paragraphs below it. A row of one cell is a heading. No column is cut: on a
    narrow terminal, lines wrap, or, where the table `wraps`, its first column.
    """
    console = Console(highlight=False)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for number, heading in enumerate(headings):
        is_wrapped = wraps and number == 0
        table.add_column(heading, justify="left" if number < left else "right", no_wrap=not is_wrapped)
    for row in rows:
        table.add_row(*row, style="bold" if len(row) == 1 < len(headings) else None)
    if before:
        console.print(before + "\n")
    natural = 0 if wraps else console.measure(table, options=console.options.update(width=_WIDEST)).maximum
    Console(highlight=False, width=max(console.width, natural)).print(table)
    for note in filter(None, notes):
        console.print("\n" + note, style="dim")
