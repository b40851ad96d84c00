"""The tables of all commands. Nothing in them is truncated: if a table is wider than the terminal (80 in a pipe), names
are wrapped, then secondary columns are hidden, which a line below lists, and if that is not enough each row becomes a
record of "heading value" lines. `--wide` shows all columns whatever the terminal's width.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import click
import rich.table
from rich.cells import cell_len
from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, Group, JustifyMethod, RenderableType, RenderResult
from rich.constrain import Constrain
from rich.segment import Segment, Segments
from rich.text import Text

from switchml.terminal import Console, aside
from switchml.text import plain

Cell = str | Text
Row = Sequence[Cell]
"""As many cells as the table has columns. One cell: a heading between rows; none: a rule."""
GAP = 2
"""Number of spaces between columns."""
FOLDED, NARROW = 20, 10
"""Widths to which a text column is wrapped before columns are hidden, and before rows become records."""
WIDEST = 10_000
WIDE = "switchml.tables.wide"
"""Key of --wide in click's context."""


@dataclass(frozen=True)
class Column:
    """`unit`: unit of all figures, shown below the heading. `drop`: 0 for a column that is never hidden; of others,
    those with the highest number are hidden first. `least`: width of the widest cell, for a `Stream`. `is_name`: text
    that users copy, which is not wrapped."""

    heading: str
    unit: str = ""
    drop: int = 0
    is_text: bool = False
    least: int = 0
    is_name: bool = False

    @property
    def title(self) -> str:
        """Heading and unit in one line."""
        return " ".join(filter(None, (self.heading, self.unit)))


def text(heading: str, drop: int = 0, least: int = 0) -> Column:
    """A left-aligned column of text that may be wrapped."""
    return Column(heading, "", drop, True, least)


def name(heading: str) -> Column:
    """A left-aligned column of names, not wrapped since users copy them."""
    return Column(heading, is_text=True, is_name=True)


def number(heading: str, unit: str = "", drop: int = 0, least: int = 0) -> Column:
    """A right-aligned column of numbers, not wrapped."""
    return Column(heading, unit, drop, False, least)


@dataclass(frozen=True)
class _Layout:
    """`kept`: indices of the columns that are shown; `widths`: width of each of them; `dropped`: indices of hidden
    columns."""

    kept: list[int]
    widths: list[int]
    dropped: list[int]

    @property
    def width(self) -> int:
        return sum(self.widths) + GAP * (len(self.widths) - 1)


@dataclass
class Table:
    """A table. `title`: a line above; `notes`: paragraphs below. Columns with `drop` that are empty in all rows are
    omitted, and so is the line of headings if there are none."""

    columns: Sequence[Column]
    rows: list[Row] = field(default_factory=list)
    title: Cell = ""
    notes: Sequence[str] = ()

    def add(self, *cells: Cell) -> None:
        """Add a row."""
        self.rows.append(cells)

    def __rich_console__(self, console: RichConsole, options: ConsoleOptions) -> RenderResult:
        layout = self.layout(WIDEST if _is_wide() else options.max_width)
        text_width = min(options.max_width, Console().width) if _is_wide() else options.max_width
        for part in self._parts(layout, text_width):
            yield from _without_trailing_spaces(console, options, part)

    def _parts(self, layout: _Layout | None, width: int) -> Iterable[RenderableType]:
        if self.title:
            yield Constrain(_bold(self.title), width)
        if layout is None:
            yield from self._records(width)
        else:
            if any(column.title for column in self.columns):
                yield self._head(layout)
            yield from self._body(layout, self.rows)
            if layout.dropped:
                yield Constrain(Text(self.left_out(layout), style="dim"), width)
        for note in filter(None, self.notes):
            yield Constrain(Text("\n" + plain(note), style="dim"), width)

    def layout(self, available: int) -> _Layout | None:
        """Arrange the columns on a line of `available` characters; None: rows are to become records."""
        full = [row for row in self.rows if len(row) == len(self.columns)]
        widest = [
            max((column.least, *(max(map(cell_len, _plain(row[place]).split("\n"))) for row in full)))
            for place, column in enumerate(self.columns)
        ]
        is_known = any(widest)
        kept = [place for place, column in enumerate(self.columns) if widest[place] or not (column.drop and is_known)]
        dropped: list[int] = []
        while True:
            for folded in (WIDEST, FOLDED) if self._droppable(kept) else (WIDEST, FOLDED, NARROW):
                widths = [self._least(place, widest[place], folded) for place in kept]
                spare = available - sum(widths) - GAP * (len(widths) - 1)
                if spare >= 0:
                    self._widen(kept, widths, widest, spare)
                    return _Layout(kept, widths, sorted(dropped))
            if not (droppable := self._droppable(kept)):
                return None
            goes = max(droppable, key=lambda place: (self.columns[place].drop, place))
            kept.remove(goes)
            dropped.append(goes)

    def _droppable(self, kept: Iterable[int]) -> list[int]:
        return [place for place in kept if self.columns[place].drop]

    def _least(self, place: int, widest: int, folded: int) -> int:
        """Width that a column needs if its heading is wrapped and its text wrapped to `folded`."""
        column = self.columns[place]
        words = max(map(cell_len, (*column.heading.split(), column.unit, "")))
        return max(min(widest, folded) if column.is_text and not column.is_name else widest, words)

    def _widen(self, kept: Sequence[int], widths: list[int], widest: Sequence[int], spare: int) -> None:
        """Distribute the remaining width: first to columns of wrapped text, then to wrapped headings."""
        for wanted in ([widest[place] for place in kept], [cell_len(self.columns[place].heading) for place in kept]):
            while spare and (short := [at for at, width in enumerate(widths) if width < wanted[at]]):
                widths[min(short, key=lambda at: widths[at])] += 1
                spare -= 1

    def _grid(self, layout: _Layout) -> rich.table.Table:
        grid = rich.table.Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, show_header=False)
        for place, width in zip(layout.kept, layout.widths, strict=True):
            justify: JustifyMethod = "left" if self.columns[place].is_text else "right"
            grid.add_column(width=width, justify=justify, overflow="fold")
        return grid

    def _head(self, layout: _Layout) -> RenderableType:
        head = self._grid(layout)
        for column in head.columns:
            column.vertical = "bottom"
        shown = [self.columns[place] for place in layout.kept]
        head.add_row(*(Text(column.heading, style="bold") for column in shown))
        if any(column.unit for column in shown):
            head.add_row(*(Text(column.unit, style="dim") for column in shown))
        return Group(head, Text("─" * layout.width, style="dim"))

    def _body(self, layout: _Layout, rows: Iterable[Row]) -> Iterable[RenderableType]:
        """Groups of rows in the columns' widths, with full-width headings between them."""
        grid = self._grid(layout)
        for row in rows:
            if len(row) == len(self.columns):
                grid.add_row(*(row[place] for place in layout.kept))
                continue
            if grid.row_count:
                yield grid
            grid = self._grid(layout)
            yield Text(_plain(row[0]), style="bold") if row else Text("─" * layout.width, style="dim")
        if grid.row_count:
            yield grid

    def _records(self, width: int, rows: Iterable[Row] | None = None) -> Iterable[RenderableType]:
        """Each row as lines of "heading value", followed by a blank line."""
        longest = min(max(cell_len(column.title) for column in self.columns), width // 2)
        for row in self.rows if rows is None else rows:
            if len(row) != len(self.columns):
                if row:
                    yield Text(_plain(row[0]), style="bold")
                continue
            record = rich.table.Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, show_header=False)
            record.add_column(width=longest, overflow="fold")
            record.add_column(overflow="fold", ratio=1)
            for column, cell in zip(self.columns, row, strict=True):
                if _plain(cell):
                    unit = f" {column.unit}" if column.unit and _plain(cell) not in ("-", "–") else ""
                    record.add_row(column.heading, Text.assemble(_as_text(cell), unit))
            yield record
            yield Text("")

    def left_out(self, layout: _Layout) -> str:
        """The line that lists the hidden columns."""
        names = ", ".join(self.columns[place].heading.replace("\n", " ") for place in layout.dropped)
        return f"Hidden columns: {names}; --wide or --json shows them."


class Stream:
    """A table whose rows are printed immediately. Each column's `least` gives its cells' width."""

    def __init__(self, columns: Sequence[Column], title: str = "") -> None:
        self._table = Table(columns, title=title)
        self._console = _console()
        self._layout = self._table.layout(WIDEST if _is_wide() else self._console.width)
        head = [_bold(title)] if title else []
        self._print(*head, *([] if self._layout is None else [self._table._head(self._layout)]))

    def add(self, *cells: Cell) -> None:
        """Print a row, or a heading if it is a single cell."""
        if self._layout is None:
            lines = self._table._records(self._console.width, [cells])
        else:
            lines = self._table._body(self._layout, [cells])
        self._print(*lines)

    def close(self, *notes: str) -> None:
        """Print the list of hidden columns, and notes."""
        notes = tuple("\n" + note for note in notes)
        if self._layout is not None and self._layout.dropped:
            notes = (self._table.left_out(self._layout), *notes)
        self._print(*(Constrain(Text(plain(note), style="dim"), Console().width) for note in notes))

    def _print(self, *parts: RenderableType) -> None:
        with aside():
            for part in parts:
                segments = _without_trailing_spaces(self._console, self._console.options, part)
                self._console.print(Segments(segments), end="")


def show(*tables: RenderableType, err: bool = False) -> None:
    """Print tables (or any other rich renderables), separated by empty lines; `err`: to stderr."""
    console = _console(err)
    with aside():
        for place, table in enumerate(tables):
            if place:
                console.print()
            console.print(table)


def _console(err: bool = False) -> Console:
    return Console(width=WIDEST, stderr=err) if _is_wide() else Console(stderr=err)


def _is_wide() -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(WIDE))


def set_wide(context: click.Context, _: click.Parameter, is_wide: bool) -> None:
    """Callback of the option --wide."""
    if is_wide:
        context.meta[WIDE] = True


wide_option = click.option(
    "--wide", is_flag=True, expose_value=False, callback=set_wide, help="Print tables with all columns, however wide."
)


def _without_trailing_spaces(console: RichConsole, options: ConsoleOptions, part: RenderableType) -> Iterable[Segment]:
    for line in console.render_lines(part, options, pad=False):
        while line and not line[-1].text.strip():
            line.pop()
        if line:
            line[-1] = Segment(line[-1].text.rstrip(), line[-1].style, line[-1].control)
        yield from line
        yield Segment.line()


def _plain(cell: Cell) -> str:
    return cell.plain if isinstance(cell, Text) else cell


def _bold(cell: Cell) -> Text:
    return cell if isinstance(cell, Text) else Text(plain(cell), style="bold")


def _as_text(cell: Cell) -> Text:
    return cell if isinstance(cell, Text) else Text(plain(cell))
