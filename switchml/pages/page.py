"""Rendering of a page: `base.html` around the caller's template, with a header that shows the page's origin. Names from
untrusted files are escaped, so they are displayed and never interpreted.
"""

from __future__ import annotations

import datetime
import json
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from switchml import __version__
from switchml.output_files import whole_file
from switchml.pages import vega
from switchml.text import plain

if TYPE_CHECKING:
    import jinja2

HERE = Path(__file__).parent
_SECRET = "--secret"


@dataclass(frozen=True)
class Origin:
    """Where and when a page was made."""

    date: str
    """To the minute, with the time zone."""
    host: str
    version: str
    command: str
    """The command line; empty if the page was not made by a switchml command."""


def origin() -> Origin:
    """Return the origin of a page made now by this process."""
    date = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    return Origin(date, socket.gethostname(), __version__, command_line())


def command_line() -> str:
    """Return this process's command line if it is a switchml command, without the value of --secret; otherwise ""."""
    program = Path(sys.argv[0])
    if program.name != "switchml" and program.parts[-2:] != ("switchml", "__main__.py"):
        return ""
    words = ["switchml", *sys.argv[1:]]
    for place, word in enumerate(words):
        if word.startswith(_SECRET + "="):
            words[place] = _SECRET + "=…"
        elif place and words[place - 1] == _SECRET:
            words[place] = "…"
    return shlex.join(words)


def template(name: str, *folders: Path, **filters: Any) -> jinja2.Template:
    """Return template `name` of `folders`, which may extend and include the templates in this module's folder."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([*folders, HERE]),
        autoescape=True,
        finalize=lambda value: plain(value) if type(value) is str else value,  # Markup is from own templates
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"data": as_data, **filters}
    return environment.get_template(name)


def as_data(value: Any) -> Any:
    """Return JSON that is safe inside a script element, for any string contents."""
    from markupsafe import Markup

    text = json.dumps(json_safe(value), separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def json_safe(value: Any) -> Any:
    """Return the value with control characters made visible, and without values that JSON can't represent."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, Mapping):
        return {plain(str(key)): json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in value]
    if isinstance(value, float) and not -1e308 < value < 1e308:
        return None
    return value


def render(name: str, folders: Sequence[Path], content: Mapping[str, Any], **filters: Any) -> str:
    """Return the whole page of template `name`. `content` has at least `title`. Raises ImportError if jinja2 or
    vl-convert is missing."""
    about = {"origin": origin(), "assumptions": [], "vega": vega.script, **content}
    return template(name, *folders, **filters).render(about)


def write(path: str | Path, text: str) -> None:
    """Write a page. Raises ConfigError on failure."""
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8")


def check_extras() -> None:
    """Raise ImportError if a package is missing, before time is spent on the page's content."""
    import jinja2  # noqa: F401
    import vl_convert  # noqa: F401
