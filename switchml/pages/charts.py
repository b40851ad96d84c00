"""Charts as Vega-Lite specifications (v6): plain data, which `script.js` draws with hover, zoom and toggles. Names from
files occur only in data and titles, never in an expression.
"""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Spec = dict[str, Any]

COLOURS = {
    "compute": "#4477aa", "forward": "#4477aa", "backward": "#7a64b8", "exposed communication": "#d2556a",
    "communication": "#d2556a", "waiting for peers": "#b3a125", "waiting": "#b3a125", "bubble": "#9aa1a8",
    "loading": "#228833", "compression": "#aa3377", "offload": "#2e9bc0", "recompute": "#2e9bc0",
    "checkpoint": "#8a5a1a", "optimizer": "#8a5a1a", "host": "#5d6670", "other": "#5d6670",
    "linear": "#9aa1a8", "limit": "#9aa1a8",
    "switchml": "#4477aa", "gloo": "#d2556a", "ring": "#d2556a", "Gloo's ring": "#d2556a",
}  # fmt: skip
"""Colors of time components and of reduction methods, the same on every page (Paul Tol's qualitative palette, which
color-blind readers can distinguish, and greys)."""
PALETTE = ("#4477aa", "#d2556a", "#228833", "#b3a125", "#aa3377", "#2e9bc0", "#5d6670")
"""Colors of other names, in order of use."""
MAX_SVG = 4000
"""Maximum marks of a chart drawn as SVG, which prints well; larger charts are drawn as a bitmap, which is faster."""
_UNITS = {
    "s": "format(datum.value, '~s') + 's'",
    "B": "format(datum.value, '~s') + 'B'",
    "GiB": "format(datum.value, '~g') + ' GiB'",
    "%": "format(datum.value, '~%')",
}
"""Unit of an axis → label expression: 20ms, 1.5GB."""
_AMOUNT = {"field": "value", "type": "quantitative"}
_ROWS = {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
"""Layout of charts whose height depends on their number of rows."""
_ZOOM = {
    "name": "zoom",
    "select": {"type": "interval", "encodings": ["x"], "zoom": "wheel![event.ctrlKey]"},
    "bind": "scales",
}
_ZOOM_BOTH = {**_ZOOM, "select": {"type": "interval", "zoom": "wheel![event.ctrlKey]"}}
ZOOM = (
    "Drag to move, Ctrl and the wheel to zoom, double-click for all of it; click a name in the legend to see it alone."
)
"""Text below a chart that can be zoomed."""


@dataclass(frozen=True)
class Table:
    """The contents of a chart as a table of texts."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Block:
    """An interval: a rectangle of a timeline."""

    lane: str
    kind: str
    from_s: float
    until_s: float
    opacity: float = 1.0


@dataclass(frozen=True)
class Line:
    """A curve. `low`, `high`: a band around it. `like`: name of another line, whose color is used."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    is_dashed: bool = False
    like: str = ""


def colours(names: Iterable[str], like: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return a color for each name: its own if it has one, that of the name it is `like`, or the next free one of the
    palette."""
    known = list(dict.fromkeys(names))
    like = like or {}
    taken = {COLOURS[name] for name in known if name in COLOURS}
    others = itertools.cycle([colour for colour in PALETTE if colour not in taken] or PALETTE)
    found = {name: COLOURS.get(name) or next(others) for name in known if name not in like}
    return {name: found[like.get(name, name)] for name in known}


def _colour(names: Iterable[str], field: str = "part", like: Mapping[str, str] | None = None) -> Spec:
    """Return the color encoding: names and colors of the legend."""
    found = colours(names, like)
    scale = {"domain": list(found), "range": list(found.values())}
    return {"field": field, "type": "nominal", "scale": scale}


def _legend(field: str) -> Spec:
    return {"name": "shown", "select": {"type": "point", "fields": [field]}, "bind": "legend"}


def _fading(opacity: Any = 1.0) -> Spec:
    return {
        "condition": {"param": "shown", **(opacity if isinstance(opacity, dict) else {"value": opacity})},
        "value": 0.08,
    }


def _axis(unit: str) -> Spec:
    return {"labelExpr": _UNITS[unit]} if unit in _UNITS else {}


def stacked(rows: Mapping[str, Mapping[str, float]], unit: str, text: Any) -> Spec:
    """Return a chart with one horizontal bar per row, of stacked parts. `text`: formats a value for the tooltip."""
    values = []
    for name, parts in rows.items():
        whole = sum(parts.values())
        for part, value in parts.items():
            if value > 0:
                share = f"{value / whole:.1%}"
                values.append({"row": name, "part": part, "value": value, "text": text(value), "share": share})
    return {
        "data": {"values": values},
        **_ROWS,
        "height": 30 * len(rows),
        "params": [_legend("part")],
        "mark": {"type": "bar", "height": {"band": 0.82}},
        "encoding": {
            "y": {"field": "row", "type": "nominal", "sort": None, "title": None},
            "x": {**_AMOUNT, "title": None, "axis": _axis(unit), "scale": {"nice": False}},
            "color": _colour(part for parts in rows.values() for part, value in parts.items() if value > 0),
            "order": {"field": "n", "type": "quantitative"},
            "opacity": _fading(),
            "tooltip": [
                {"field": "row", "title": "of"},
                {"field": "part", "title": "part"},
                {"field": "text", "title": "amount"},
                {"field": "share", "title": "share"},
            ],
        },
        "transform": [{"window": [{"op": "row_number", "as": "n"}]}],
    }


def timeline(
    lanes: Sequence[tuple[str, bool]],
    blocks: Sequence[Block],
    length_s: float,
    text: Any,
    path: Sequence[tuple[float, str]] = (),
) -> Spec:
    """Return a chart of rectangles over time. `lanes`: (name, whether it is labeled), from the top; `path`: corners (s,
    lane) of a line across them."""
    values = [
        {
            "lane": one.lane,
            "part": one.kind,
            "from": one.from_s,
            "until": one.until_s,
            "opacity": one.opacity,
            "text": f"{text(one.from_s)} to {text(one.until_s)}",
        }
        for one in blocks
    ]
    names = [name for name, _ in lanes]
    rows = {"field": "lane", "type": "nominal", "scale": {"domain": names, "paddingInner": 0.12}, "title": None}
    shown = [name for name, is_shown in lanes if is_shown]
    y = {**rows, "axis": {"values": shown, "domain": False, "ticks": False, "labelLimit": 130}}
    time = {
        "type": "quantitative",
        "scale": {"domain": [0, length_s], "nice": False},
        "axis": _axis("s"),
        "title": None,
    }
    layers: list[Spec] = [
        {
            "data": {"values": values},
            "params": [_legend("part"), _ZOOM],
            "mark": {"type": "rect", "clip": True, "height": {"band": 1}},
            "encoding": {
                "y": y,
                "x": {"field": "from", **time},
                "x2": {"field": "until"},
                "color": _colour(one.kind for one in blocks),
                "opacity": _fading({"field": "opacity", "type": "quantitative", "scale": None}),
                "tooltip": [
                    {"field": "lane", "title": "on"},
                    {"field": "part", "title": "what most"},
                    {"field": "text", "title": "when"},
                ],
            },
        }
    ]
    if path:
        corners = [{"lane": lane, "at": at_s, "n": number} for number, (at_s, lane) in enumerate(path)]
        layers.append(
            {
                "data": {"values": corners},
                "mark": {"type": "line", "clip": True, "color": "#e69f00", "strokeWidth": 2.5, "tooltip": None},
                "encoding": {"y": y, "x": {"field": "at", **time}, "order": {"field": "n", "type": "quantitative"}},
            }
        )
    renderer = "svg" if len(values) <= MAX_SVG else "canvas"
    return {**_ROWS, "height": 19 * len(lanes), "layer": layers, "usermeta": {"renderer": renderer}}


def curves(
    lines: Sequence[Line],
    x_title: str,
    y_title: str,
    *,
    x_log: int = 0,
    y_log: bool = False,
    x_names: Mapping[float, str] | None = None,
) -> Spec:
    """Return a chart of lines with points, legend toggles and zoom along x. `x_log`: base of a logarithmic axis, 0 for
    a linear one. `x_names`: custom labels of positions on it."""
    x_names = x_names or {}
    values: list[Spec] = []
    bands: list[Spec] = []
    for line in lines:
        for at, y in zip(line.x, line.y, strict=True):
            text = x_names.get(at, f"{at:,.6g}")
            values.append({"line": line.name, "x": at, "x_text": text, "y": y, "dashed": line.is_dashed})
        for at, low, high in zip(line.x, line.low, line.high, strict=False):
            bands.append({"line": line.name, "x": at, "low": low, "high": high})
    xs = sorted({value["x"] for value in values})
    x_scale: Spec = (
        {"type": "log", "base": x_log, "nice": False, "padding": 8}
        if x_log
        else {"zero": False, "nice": False, "padding": 8}
    )
    x: Spec = {"field": "x", "type": "quantitative", "title": x_title, "scale": x_scale}
    if x_log:
        x["axis"] = {"values": xs if len(xs) <= 12 else xs[:: len(xs) // 10], "format": ",.12~g", "grid": False}
    elif all(at == int(at) for at in xs):
        x["axis"] = {"values": xs, "format": ",.12~g"} if len(xs) <= 12 else {"tickMinStep": 1}
    if x_names:
        texts = json.dumps({f"{at:.12g}": text for at, text in x_names.items()})
        x["axis"] = {"values": xs, "labelExpr": f"{texts}[datum.value]", "grid": False, "labelOverlap": True}
    y_scale: Spec = {"type": "log", "nice": False, "padding": 12} if y_log else {}
    colour = _colour((line.name for line in lines), "line", {line.name: line.like for line in lines if line.like})
    layers: list[Spec] = [
        {
            "data": {"values": values},
            "params": [_legend("line"), _ZOOM],
            "mark": {"type": "line", "point": {"size": 45 if len(xs) < 100 else 12}, "clip": True},
            "encoding": {
                "x": x,
                "y": {"field": "y", "type": "quantitative", "title": y_title, "scale": y_scale},
                "color": colour,
                "opacity": _fading(),
                "strokeDash": {
                    "field": "dashed",
                    "type": "nominal",
                    "legend": None,
                    "scale": {"domain": [False, True], "range": [[1, 0], [4, 5]]},
                },
                "tooltip": [
                    {"field": "line", "title": "curve"},
                    {"field": "x_text", "title": x_title},
                    {"field": "y", "title": y_title, "format": ",.4~r"},
                ],
            },
        }
    ]
    if bands:
        layers.insert(
            0,
            {
                "data": {"values": bands},
                "mark": {"type": "area", "opacity": 0.15, "clip": True},
                "encoding": {
                    "x": x,
                    "y": {"field": "low", "type": "quantitative", "title": y_title, "scale": y_scale},
                    "y2": {"field": "high"},
                    "color": colour,
                },
            },
        )
    return {"width": "container", "height": 260, "layer": layers}


def marked_bars(values: Sequence[Spec], x_title: str, is_log: bool = False) -> Spec:
    """Return a chart with one horizontal bar, or a dot on a logarithmic axis, per (row, part, value, text), optionally
    with a mark across it (bound, bound_text). Bars of the same row are placed side by side."""
    rows = dict.fromkeys(value["row"] for value in values)
    parts = dict.fromkeys(value["part"] for value in values)
    is_grouped = len(rows) < len(values) and not is_log
    longest = max((max(value["value"], value.get("bound", 0)) for value in values), default=1.0)
    scale: Spec = {"type": "log", "nice": False, "padding": 12} if is_log else {"domain": [0, 1.17 * longest or 1.0]}
    y: Spec = {"field": "row", "type": "nominal", "sort": None, "title": None}
    offset: Spec = {"yOffset": {"field": "part", "type": "nominal", "sort": None}} if is_grouped else {}
    x = {**_AMOUNT, "title": x_title, "scale": scale}
    tooltip = [{"field": "row", "title": "what"}, {"field": "part", "title": "of"}, {"field": "text", "title": x_title}]
    layers: list[Spec] = [
        {
            "params": [_legend("part")] if rows.keys() != parts.keys() else [{"name": "shown", "select": "point"}],
            "mark": {"type": "circle", "size": 70, "opacity": 1} if is_log else {"type": "bar"},
            "encoding": {
                "y": y,
                **offset,
                "x": x,
                "color": _colour(parts) | ({"legend": None} if rows.keys() == parts.keys() else {}),
                "opacity": _fading(),
                "tooltip": [*tooltip, {"field": "bound_text", "title": "bound"}]
                if any("bound" in value for value in values)
                else tooltip,
            },
        }
    ]
    if not is_log:
        label = {"type": "text", "align": "left", "dx": 5, "tooltip": None}
        layers.append({"mark": label, "encoding": {"y": y, **offset, "x": x, "text": {"field": "text"}}})
    if any("bound" in value for value in values):
        layers.append(
            {
                "transform": [{"filter": "isValid(datum.bound)"}],
                "mark": {"type": "tick", "thickness": 3, "style": "bound", "tooltip": None},
                "encoding": {"y": y, **offset, "x": {"field": "bound", "type": "quantitative"}},
            }
        )
    height = (22 if is_log else 30 + (18 * (len(parts) - 1) if is_grouped else 0)) * len(rows)
    return {"data": {"values": list(values)}, **_ROWS, "height": height, "layer": layers}


def points(
    values: Sequence[Spec], x_title: str, y_title: str, ends: tuple[float, float] | None, bands: Sequence[float]
) -> Spec:
    """Return a scatter chart of (name, part, x, y, label_left or label_right) on logarithmic axes; within `ends`, the
    line y = x is drawn, with `bands` around it."""
    scale: Spec = {"type": "log", "nice": False}
    scale |= {"domain": list(ends)} if ends else {"padding": 24}
    axis = {"type": "quantitative", "scale": scale}
    x, y = {"field": "x", **axis, "title": x_title}, {"field": "y", **axis, "title": y_title}
    for one in (x, y):
        one["axis"] = {"labelExpr": "format(datum.value, datum.value < 10000 ? '~g' : '~s')", "tickCount": 6}
    layers: list[Spec] = []
    for share in bands:
        band = [{"x": end, "low": end * (1 - share), "high": end * (1 + share)} for end in ends or ()]
        encoding = {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}}
        mark = {"type": "area", "opacity": 0.13, "color": "#9aa1a8", "clip": True, "tooltip": None}
        layers.append({"data": {"values": band}, "mark": mark, "encoding": encoding})
    if ends:
        diagonal = [{"x": end, "y": end} for end in ends]
        mark = {"type": "line", "color": "#9aa1a8", "strokeWidth": 1, "tooltip": None}
        layers.append({"data": {"values": diagonal}, "mark": mark, "encoding": {"x": x, "y": y}})
    tooltip = [
        *([{"field": "name", "title": "what"}] if any(value["name"] for value in values) else []),
        {"field": "part", "title": "of"},
        {"field": "x", "title": x_title, "format": ",.4~r"},
        {"field": "y", "title": y_title, "format": ",.4~r"},
    ]
    layers.append(
        {
            "data": {"values": list(values)},
            "params": [_legend("part"), _ZOOM_BOTH],
            "mark": {"type": "circle", "size": 60 if len(values) < 100 else 18, "clip": True},
            "encoding": {
                "x": x,
                "y": y,
                "color": _colour(value["part"] for value in values),
                "opacity": _fading(0.8),
                "tooltip": tooltip,
            },
        }
    )
    for label, align, dx in (("label_right", "left", 7), ("label_left", "right", -7)):
        if any(value.get(label) for value in values):
            mark = {"type": "text", "align": align, "dx": dx, "style": "label", "clip": True, "tooltip": None}
            encoding = {"x": x, "y": y, "text": {"field": label}}
            layers.append({"data": {"values": list(values)}, "mark": mark, "encoding": encoding})
    renderer = "svg" if len(values) <= MAX_SVG else "canvas"
    return {"width": "container", "height": 420, "layer": layers, "usermeta": {"renderer": renderer}}
