"""Rich's console as all of our commands use it: no square bracket in a stranger's name is markup, and no control
character reaches the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from switchml.text import plain


class Console(rich.console.Console):
    """Square brackets are no markup (styles are given as `style=` or `rich.text.Text`), and control characters are
    shown (`plain`), whatever stands in lines, cells, titles and panels."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, **options})

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(plain(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else plain(text), style, control)
