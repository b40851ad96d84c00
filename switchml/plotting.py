"""Pictures that commands draw, with matplotlib. The ending of a file's name decides what it becomes: a bitmap, a vector
graphic, or a page of HTML that needs nothing else.
"""

import atexit
import contextlib
import functools
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from switchml import output_files
from switchml.output_files import whole_file
from switchml.runtime.folders import TemporaryFolder

SWITCHML, GLOO, GREY = "#1b6ca8", "#d1603d", "#888888"
"""Colours of what is drawn most often."""
_DOTS_PER_INCH = 120


def check(path: Path) -> None:
    """Raises ConfigError if no picture can be drawn to `path`."""
    output_files.check(path, output_files.PICTURES)


@contextlib.contextmanager
def figure(path: Path, title: str, size: tuple[float, float], columns: int = 1, **options: Any) -> Iterator[Any]:
    """An array of matplotlib's Axes, `columns` side by side, to draw into; written to `path` afterwards.

    `size`: inches, wide and high. `options`: of pyplot.subplots. Raises ConfigError as `check` does, and if the file
    cannot be written.
    """
    check(path)
    _give_matplotlib_a_folder()
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    # Text stays text, and dollars in names are no formulas.
    with matplotlib.rc_context({"svg.fonttype": "none", "text.parse_math": False}):
        picture, axes = pyplot.subplots(ncols=columns, figsize=size, squeeze=False, layout="constrained", **options)
        try:
            yield axes.ravel()
            picture.suptitle(title, fontsize=11)
            _write(picture, title, path)
        finally:
            pyplot.close(picture)


@functools.cache
def _give_matplotlib_a_folder() -> None:
    """It keeps a list of fonts. Where it can't write, it would say so on stderr, and use a folder that stays in /tmp if
    this process is killed."""
    try:
        for variable, default in (("XDG_CONFIG_HOME", ".config"), ("XDG_CACHE_HOME", ".cache")):
            folder = Path(os.environ.get(variable) or Path.home() / default, "matplotlib")
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK):
                raise PermissionError
    except (OSError, RuntimeError):  # this user has no home
        if "MPLCONFIGDIR" not in os.environ:
            ours = TemporaryFolder("plot")
            atexit.register(ours.cleanup)
            os.environ["MPLCONFIGDIR"] = ours.name


def _write(picture: Any, title: str, path: Path) -> None:
    with whole_file(path) as part:
        if path.suffix != ".html":
            picture.savefig(part, dpi=_DOTS_PER_INCH)
            return
        from switchml.pages.page import render

        drawing = io.StringIO()
        picture.savefig(drawing, format="svg")
        svg = drawing.getvalue()
        content = {"title": title, "svg": svg[svg.index("<svg") :], "vega": None}
        part.write_text(render("picture.html", (), content), encoding="utf-8")
