"""Terminal output of all commands: rich's console, without markup for square brackets in untrusted names, and without
control characters; `say` for lines of text; `progress` for long operations. `switchml.tables` has the tables.
"""

from __future__ import annotations

import contextlib
import os
import textwrap
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from switchml.text import plain

if TYPE_CHECKING:
    from rich.progress import Progress

PIPE_WIDTH = 80
"""Line width without a terminal, unless COLUMNS is set."""
_LIVE: list[Progress] = []
"""The progress display that is currently shown, if any; it is paused while something is printed."""


class Console(rich.console.Console):
    """Console without markup for square brackets (styles are given as `style=` or `rich.text.Text`), in which control
    characters are made visible (`plain`) in lines, cells, titles and panels. A pipe is PIPE_WIDTH wide."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **options})
        if self._width is None and not self.is_terminal:  # rich would use the width of any terminal on stdin or stderr
            self.width = PIPE_WIDTH

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(plain(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else plain(text), style, control)


def say(*parts: str | Text | tuple[str, str], err: bool = False, style: str = "") -> None:
    """Print lines of text, wrapped to the terminal's width; continuation lines are indented like their first one, or
    below the text of a "- item". A word that is longer than a line, such as a path, is not split.

    `parts` are joined: text, or (text, style). `err`: to stderr.
    """
    text = Text.assemble(*(plain(part) if isinstance(part, str) else part for part in parts))
    console = Console(stderr=err)
    with aside():
        for line in text.split("\n", allow_blank=True):
            for wrapped in wrap(line, console):
                console.print(wrapped, style=style or None, soft_wrap=True)


def wrap(line: Text, console: rich.console.Console) -> list[Text]:
    """Wrap one line to the console's width."""
    body = line.plain.lstrip(" ")
    bullet = 2 if body[:2] in ("- ", "· ", "→ ") else 0
    indent = min(len(line.plain) - len(body) + bullet, console.width // 2)
    if line.cell_len <= console.width or not body:
        return [line]
    options: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False, "replace_whitespace": False}
    at = indent
    wrapped: list[Text] = []
    for part in textwrap.wrap(line.plain[indent:], console.width - indent, **options):
        at = line.plain.index(part, at)
        wrapped.append(Text.assemble(" " * indent if wrapped else line[:indent], line[at : at + len(part)]))
    return wrapped


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """Pause the progress display while something is printed."""
    for shown in _LIVE:
        shown.stop()
    try:
        yield
    finally:
        for shown in _LIVE:
            shown.start()


class Task:
    """Handle of a `progress` display. Omitted arguments stay unchanged."""

    def __init__(self, shown: Progress | None, number: Any) -> None:
        self._shown, self._number = shown, number

    def update(
        self, done: float | None = None, text: str | None = None, *, total: float | None = None, what: str | None = None
    ) -> None:
        """Show that `done` of `total` are completed; `text`: figures or current step, after the bar; `what`:
        description before it."""
        if self._shown is not None:
            fields: dict[str, Any] = {
                "completed": done,
                "total": total,
                "description": what and plain(what),
                "text": text and plain(text),
            }
            self._shown.update(self._number, **{name: value for name, value in fields.items() if value is not None})

    def advance(self, text: str | None = None) -> None:
        """Count one more as completed; `text` replaces the default text with the count."""
        if self._shown is not None:
            self._shown.advance(self._number)
            task = self._shown.tasks[0]
            self.update(text=text or f"{task.completed:,.0f} of {task.total or 0:,.0f}")

    def ops(self, done: int, ops: int) -> None:
        """Show that `done` of `ops` ops of a graph have been replayed."""
        self.update(done, f"{done:,} of {ops:,} ops", total=ops)

    def step(self, text: str) -> None:
        """Show the current step; for functions that report progress in lines."""
        self.update(text=text)


@contextlib.contextmanager
def progress(what: str, total: float | None = None, done: float = 0) -> Iterator[Task]:
    """Show a line on stderr, if that is a terminal, while the block runs: the progress out of `total`, or, without a
    total, an activity indicator with the elapsed time. It is removed at the end; without a terminal nothing is shown.
    """
    console = Console(stderr=True)
    if not console.is_terminal or _LIVE or os.environ.get("TERM") == "dumb":
        yield Task(None, None)
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=8),
        TextColumn("{task.fields[text]}"),
        TimeRemainingColumn(compact=True) if total else TimeElapsedColumn(),
    )
    shown = Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
    number = shown.add_task(plain(what), total=total, completed=int(done), text="")
    _LIVE.append(shown)
    shown.start()
    try:
        yield Task(shown, number)
    finally:
        shown.stop()
        _LIVE.remove(shown)
