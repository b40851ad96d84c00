"""The templates of HTML pages: where they are, and how they write times and sizes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from emulator.report.tables import bytes_text, time_text

if TYPE_CHECKING:
    import jinja2


def template(name: str, folder: Path | None = None) -> jinja2.Template:
    """Template `name` of `folder`, which may include what lies beside this module."""
    import jinja2

    here = Path(__file__).parent
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder or here, here]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"time": time_text, "bytes": bytes_text, "slug": lambda name: name.replace(" ", "-")}
    return environment.get_template(name)
