"""Contents of plots as plain data: curves, bars or points, each a panel. A panel becomes a chart with its table,
which `switchml.plotting` writes as a page or a picture.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from switchml.pages import charts
from switchml.pages.charts import Line, Table


@dataclass(frozen=True)
class Curves:
    """Lines over x. `x_log`: base of a logarithmic axis, 0 for a linear one. `x_names`: labels of positions on it."""

    title: str
    x_title: str
    y_title: str
    lines: Sequence[Line]
    x_log: int = 0
    y_log: bool = False
    x_names: Mapping[float, str] = field(default_factory=dict)

    def xs(self) -> list[float]:
        """Return all x positions with a point of any line, sorted."""
        return sorted({float(x) for line in self.lines for x in line.x})


@dataclass(frozen=True)
class Bar:
    """One bar. `bound`: position of a mark across the bar, if any."""

    name: str
    kind: str
    value: float
    bound: float | None = None


@dataclass(frozen=True)
class Bars:
    """Horizontal bars; those of the same name side by side. On a logarithmic axis they are drawn as dots, as a bar has
    to start at 0. `bound_name`: meaning of the marks across."""

    title: str
    x_title: str
    bars: Sequence[Bar]
    bound_name: str = ""
    is_log: bool = False


@dataclass(frozen=True)
class Point:
    """One point. `name`: label beside it where there is room and no band, and in its tooltip."""

    kind: str
    x: float
    y: float
    name: str = ""


@dataclass(frozen=True)
class Points:
    """Points on logarithmic axes. `bands`: relative deviations of y from x, drawn around the diagonal."""

    title: str
    x_title: str
    y_title: str
    points: Sequence[Point]
    bands: Sequence[float] = ()

    def ends(self) -> tuple[float, float]:
        """Return the limits of both axes, for panels with bands, where x and y are the same quantity."""
        values = [value for point in self.points for value in (point.x, point.y)]
        return min(values) / 1.3, max(values) * 1.3


Panel = Curves | Bars | Points


def chart(panel: Panel) -> dict[str, Any]:
    """Return the parts of a chart on a page: title, specification, table and note."""
    if isinstance(panel, Curves):
        spec, table = _curves(panel), _curves_table(panel)
    elif isinstance(panel, Bars):
        spec, table = charts.marked_bars(*_bars(panel)), _bars_table(panel)
    else:
        spec, table = _points(panel), _points_table(panel)
    note = f"The dark marks: {panel.bound_name}." if isinstance(panel, Bars) and panel.bound_name else ""
    return {"title": panel.title, "spec": spec, "table": table, "note": note}


def text(value: float) -> str:
    """Format with three digits, or all digits before the decimal point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _curves(panel: Curves) -> charts.Spec:
    return charts.curves(
        panel.lines, panel.x_title, panel.y_title, x_log=panel.x_log, y_log=panel.y_log, x_names=panel.x_names
    )


def _curves_table(panel: Curves) -> Table:
    points = {(line.name, float(x)): y for line in panel.lines for x, y in zip(line.x, line.y, strict=True)}
    names = [line.name for line in panel.lines]
    rows = [
        [panel.x_names.get(x, text(x)), *(text(points[name, x]) if (name, x) in points else "–" for name in names)]
        for x in panel.xs()
    ]
    return Table([panel.x_title, *(f"{name}, {panel.y_title}" for name in names)], rows)


def _bars(panel: Bars) -> tuple[list[charts.Spec], str, bool]:
    values = [
        {"row": bar.name, "part": bar.kind, "value": bar.value, "text": text(bar.value)}
        | ({} if bar.bound is None else {"bound": bar.bound, "bound_text": f"{text(bar.bound)} ({panel.bound_name})"})
        for bar in panel.bars
    ]
    return values, panel.x_title, panel.is_log


def _bars_table(panel: Bars) -> Table:
    kinds = list(dict.fromkeys(bar.kind for bar in panel.bars))
    cells = {(bar.name, bar.kind): text(bar.value) for bar in panel.bars}
    bounds = {bar.name: text(bar.bound) for bar in panel.bars if bar.bound is not None}
    names = dict.fromkeys(bar.name for bar in panel.bars)
    one_each = len(cells) == len(names)
    columns = [panel.x_title] if one_each else [f"{kind}, {panel.x_title}" for kind in kinds]
    rows = []
    for name in names:
        found = [cells.get((name, kind), "–") for kind in kinds]
        values = [next(cell for cell in found if cell != "–")] if one_each else found
        rows.append([name, *values, *([bounds.get(name, "–")] if bounds else [])])
    return Table(["", *columns, *([panel.bound_name] if bounds else [])], rows)


def _points(panel: Points) -> charts.Spec:
    values = [
        {"name": one.name, "part": one.kind, "x": one.x, "y": one.y}
        | {f"label_{place}": one.name if place == side else "" for place in ("left", "right")}
        for one, side in zip(panel.points, _sides(panel), strict=True)
    ]
    ends = panel.ends() if panel.bands else None
    return charts.points(values, panel.x_title, panel.y_title, ends, panel.bands)


def _sides(panel: Points) -> list[str]:
    """Return for each point the side on which its name overlaps no other point or name, on a chart of 480 by 300
    pixels: "left", "right", or ""."""
    points = panel.points
    if panel.bands or not points:
        return [""] * len(points)
    places = []
    for axis, pixels in (([math.log(one.x) for one in points], 480), ([-math.log(one.y) for one in points], 300)):
        low, width = min(axis), (max(axis) - min(axis)) or 1.0
        places.append([pixels * (value - low) / width for value in axis])
    taken = [(x - 5, y - 5, x + 5, y + 5) for x, y in zip(*places, strict=True)]
    sides = []
    for number, (one, x, y) in enumerate(zip(points, *places, strict=True)):
        others = taken[:number] + taken[number + 1 :]
        width = 10 + 6.5 * len(one.name)
        sides.append("")
        for side, left in (("right", x + 6), ("left", x - 6 - width)):
            box = (left, y - 8, left + width, y + 8)
            is_free = not any(b[0] < box[2] and box[0] < b[2] and b[1] < box[3] and box[1] < b[3] for b in others)
            if one.name and is_free and box[0] > -20 and box[2] < 500:
                sides[-1] = side
                taken.append(box)
                break
    return sides


def _points_table(panel: Points) -> Table:
    rows = [[one.name or one.kind, one.kind, text(one.x), text(one.y)] for one in panel.points]
    return Table(["", "", panel.x_title, panel.y_title], rows)
