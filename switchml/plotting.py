"""Figures of commands: panels (`switchml.pages.panels`) drawn with matplotlib as a bitmap or a vector graphic, or with
Vega-Lite on a page, depending on the file's extension.
"""

import atexit
import contextlib
import functools
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from switchml import output_files
from switchml.output_files import whole_file
from switchml.pages import charts, page, panels
from switchml.pages.panels import Bars, Curves, Panel, Point, Points
from switchml.runtime.folders import TemporaryFolder

SWITCHML, GREY = "#1b6ca8", "#888888"
"""Default colors."""
_DOTS_PER_INCH = 120
_PANEL_INCHES = (6.8, 4.8)
_COLUMNS = 4


def check(path: Path) -> None:
    """Raises ConfigError if no figure can be written to `path`."""
    output_files.check(path, output_files.PICTURES)


def draw(path: Path, title: str, shown: Sequence[Panel]) -> None:
    """Write `shown` side by side, at most four per row. Raises ConfigError as `check` does, and if the file cannot be
    written."""
    check(path)
    if path.suffix == ".html":
        can_zoom = any(not isinstance(panel, Bars) for panel in shown)
        content = {"title": title, "panels": [panels.chart(panel) for panel in shown], "can_zoom": can_zoom}
        page.write(path, page.render("panels.html", (), {**content, "zoom": charts.ZOOM}))
        return
    columns = min(len(shown), _COLUMNS)
    lines = [shown[first : first + columns] for first in range(0, len(shown), columns)]
    heights = [max(_height(panel) for panel in line) for line in lines]
    size = _PANEL_INCHES[0] * columns, sum(heights)
    drawers: dict[type, Any] = {Curves: _draw_curves, Bars: _draw_bars, Points: _draw_points}
    with figure(path, title, size, columns, nrows=len(lines), height_ratios=heights) as places:
        for axes, panel in zip(places, shown, strict=False):
            drawers[type(panel)](axes, panel)
            axes.set(title=panel.title, xlabel=panel.x_title)
        for axes in places[len(shown) :]:
            axes.set_visible(False)


def _height(panel: Panel) -> float:
    """Height of a panel in inches."""
    bars = len(panel.bars) if isinstance(panel, Bars) else 0
    return max(_PANEL_INCHES[1], 1.6 + 0.3 * bars)


@contextlib.contextmanager
def figure(path: Path, title: str, size: tuple[float, float], columns: int = 1, **options: Any) -> Iterator[Any]:
    """An array of matplotlib's Axes, `columns` side by side, to draw into; written to `path` afterwards.

    `size`: width and height in inches. `options`: of pyplot.subplots. Raises ConfigError if `path` is not a bitmap or
    vector graphic, and as `check` does.
    """
    output_files.check(path, output_files.DRAWINGS)
    _give_matplotlib_a_folder()
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    # Text remains text, and dollar signs in names are not parsed as formulas.
    with matplotlib.rc_context({"svg.fonttype": "none", "text.parse_math": False}):
        picture, axes = pyplot.subplots(ncols=columns, figsize=size, squeeze=False, layout="constrained", **options)
        try:
            yield axes.ravel()
            picture.suptitle(title, fontsize=11)
            with whole_file(path) as part:
                picture.savefig(part, dpi=_DOTS_PER_INCH)
        finally:
            pyplot.close(picture)


@functools.cache
def _give_matplotlib_a_folder() -> None:
    """Set a configuration folder for matplotlib's list of fonts. If it can't write its default one, it would print that
    to stderr, and use a folder that stays in /tmp if this process is killed."""
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


def _number(axis: Any) -> None:
    """Plain numbers on a logarithmic axis, for which matplotlib would write formulas."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = sorted(axis.get_view_interval())
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 300 * low else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _draw_curves(axes: Any, panel: Curves) -> None:
    colours = charts.colours(
        (line.name for line in panel.lines), {line.name: line.like for line in panel.lines if line.like}
    )
    for line in panel.lines:
        style = "--" if line.is_dashed else "-o" if len(line.x) < 50 else "-"
        axes.plot(line.x, line.y, style, color=colours[line.name], label=line.name)
        if line.low:
            axes.fill_between(line.x, line.low, line.high, color=colours[line.name], alpha=0.15)
    if panel.x_log:
        axes.set_xscale("log", base=panel.x_log)
    xs = panel.xs()
    if panel.x_log or panel.x_names or (len(xs) < 12 and all(x == int(x) for x in xs)):
        axes.set_xticks(xs, [panel.x_names.get(x, f"{x:g}") for x in xs], rotation=45 if panel.x_names else 0)
        axes.minorticks_off()
    if panel.y_log:
        axes.set_yscale("log")
        _number(axes.yaxis)
    else:
        axes.set_ylim(bottom=0)
    axes.set(ylabel=panel.y_title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def _draw_bars(axes: Any, panel: Bars) -> None:
    names = list(dict.fromkeys(bar.name for bar in panel.bars))
    kinds = list(dict.fromkeys(bar.kind for bar in panel.bars))
    colours = charts.colours(kinds)
    is_grouped = len(names) < len(panel.bars) and not panel.is_log
    width = 0.75 / len(kinds) if is_grouped else 0.75
    for number, kind in enumerate(kinds):
        some = [bar for bar in panel.bars if bar.kind == kind]
        offset = width * (number - (len(kinds) - 1) / 2) if is_grouped else 0.0
        places = [names.index(bar.name) + offset for bar in some]
        values = [bar.value for bar in some]
        if panel.is_log:
            axes.plot(values, places, "o", color=colours[kind], label=kind)
            continue
        drawn = axes.barh(places, values, height=width, color=colours[kind], label=kind)
        axes.bar_label(drawn, [panels.text(value) for value in values], padding=4, fontsize=8)
    bounds = [(bar.bound, names.index(bar.name)) for bar in panel.bars if bar.bound is not None]
    if bounds:
        axes.plot(*zip(*bounds, strict=True), "k|", markersize=26, markeredgewidth=2, label=panel.bound_name)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    if panel.is_log:
        axes.set_xscale("log")
        _number(axes.xaxis)
        axes.grid(alpha=0.3)
    else:
        axes.margins(x=0.2)
        axes.set_xlim(left=0)
    if kinds != names or bounds:
        axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=4, markerscale=0.5)


def _draw_points(axes: Any, panel: Points) -> None:
    axes.set(xscale="log", yscale="log", ylabel=panel.y_title)
    if panel.bands:
        ends = panel.ends()
        for band in panel.bands:
            low, high = ([end * (1 + share) for end in ends] for share in (-band, band))
            axes.fill_between(ends, low, high, color="black", alpha=0.08, linewidth=0)
        axes.plot(ends, ends, color="black", linewidth=0.8)
        axes.set(xlim=ends, ylim=ends, aspect="equal")
    for kind, colour in charts.colours(point.kind for point in panel.points).items():
        some = [point for point in panel.points if point.kind == kind]
        size = 30 if len(some) < 100 else 6
        axes.scatter(
            [p.x for p in some], [p.y for p in some], color=colour, s=size, alpha=0.8, linewidths=0, label=kind
        )
    _number(axes.xaxis)
    _number(axes.yaxis)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=3)
    if named := [point for point in panel.points if point.name and not panel.bands]:
        _label(axes, named)


def _label(axes: Any, points: Sequence[Point]) -> None:
    """Labels next to the points, each at the nearest position where it covers neither a point nor another label."""
    axes.margins(0.14, 0.08)
    axes.figure.draw_without_rendering()
    places = axes.transData.transform([(point.x, point.y) for point in points]) * 72 / axes.figure.dpi
    occupied = [(x - 4, y - 4, x + 4, y + 4) for x, y in places]
    around = [(dx, dy) for dy in range(-150, 151, 5) for dx in (7, -7, 30, -30)]
    around.sort(key=lambda offset: math.hypot(*offset) + (2 if offset[0] < 0 else 0))
    for point, (left, base) in zip(points, places, strict=True):
        width, height = 4.6 * len(point.name), 9
        for dx, dy in around:
            start = left + dx - (width if dx < 0 else 0)
            box = (start, base + dy - height / 2, start + width, base + dy + height / 2)
            if not any(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in occupied):
                break
        occupied.append(box)
        axes.annotate(
            point.name,
            (point.x, point.y),
            textcoords="offset points",
            xytext=(dx, dy),
            fontsize=8,
            va="center",
            ha="right" if dx < 0 else "left",
            arrowprops={"arrowstyle": "-", "lw": 0.4, "color": "#999999"} if abs(dy) > 8 or abs(dx) > 8 else None,
        )
