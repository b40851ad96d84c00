"""Charts as Vega-Lite specifications (v6): plain data, which `script.js` draws with hover, zoom and toggles. Names that
come from files stand in data and titles only, never in an expression.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Spec = dict[str, Any]

COLOURS = {
    "compute": "#4477aa", "forward": "#4477aa", "backward": "#7a64b8", "exposed communication": "#d2556a",
    "communication": "#d2556a", "waiting for peers": "#b3a125", "waiting": "#b3a125", "bubble": "#9aa1a8",
    "loading": "#228833", "compression": "#aa3377", "offload": "#2e9bc0", "recompute": "#2e9bc0",
    "checkpoint": "#8a5a1a", "optimizer": "#8a5a1a", "host": "#5d6670", "other": "#5d6670",
    "linear": "#9aa1a8",
}  # fmt: skip
"""Of what time goes into, the same on every page (Paul Tol's qualitative palette, which the colour-blind can tell
apart, and greys)."""
PALETTE = ("#4477aa", "#d2556a", "#228833", "#b3a125", "#aa3377", "#2e9bc0", "#5d6670")
"""Of all else, in order."""
MOST_SVG = 4000
"""Marks of a chart that is drawn as SVG, which prints well; more of them are drawn as a bitmap, which is faster."""
_UNITS = {
    "s": "format(datum.value, '~s') + 's'",
    "B": "format(datum.value, '~s') + 'B'",
    "%": "format(datum.value, '~%')",
}
"""Unit of an axis → its labels: 20ms, 1.5GB."""
_AMOUNT = {"field": "value", "type": "quantitative"}
_ROWS = {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
"""Of charts whose height follows from their rows."""
_ZOOM = {
    "name": "zoom",
    "select": {"type": "interval", "encodings": ["x"], "zoom": "wheel![event.ctrlKey]"},
    "bind": "scales",
}
ZOOM = (
    "Drag to move, Ctrl and the wheel to zoom, double-click for all of it; click a name in the legend to see it alone."
)
"""What a chart that zooms says below it."""


@dataclass(frozen=True)
class Table:
    """The same as a chart, to read: texts."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Block:
    """Something that lasts: a rectangle of a timeline."""

    lane: str
    kind: str
    from_s: float
    until_s: float
    opacity: float = 1.0


@dataclass(frozen=True)
class Line:
    """A curve. `low`, `high`: a band around it."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    is_dashed: bool = False


def _colour(names: Iterable[str], field: str = "part") -> Spec:
    """One each, its own if it has one; its legend toggles."""
    known = list(dict.fromkeys(names))
    others = iter(PALETTE * (len(known) // len(PALETTE) + 1))
    scale = {"domain": known, "range": [COLOURS.get(name) or next(others) for name in known]}
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


def stacked(rows: Mapping[str, Mapping[str, float]], unit: str, text: Any, title: str = "") -> Spec:
    """A horizontal bar each, of parts one after the other. `text`: a value in words, for the tooltip."""
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
            "x": {**_AMOUNT, "title": title or None, "axis": _axis(unit), "scale": {"nice": False}},
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


def bars(rows: Iterable[tuple[str, str, float]], unit: str, text: Any, title: str = "") -> Spec:
    """A horizontal bar for each (name, kind, value), a colour for each kind."""
    values = [{"row": name, "part": kind, "value": value, "text": text(value)} for name, kind, value in rows]
    kinds = list(dict.fromkeys(value["part"] for value in values))
    return {
        "data": {"values": values},
        **_ROWS,
        "height": 24 * len(values),
        "params": [_legend("part")],
        "mark": {"type": "bar"},
        "encoding": {
            "y": {"field": "row", "type": "nominal", "sort": None, "title": None, "axis": {"labelLimit": 150}},
            "x": {**_AMOUNT, "title": title or None, "axis": _axis(unit)},
            "color": _colour(kinds) | ({"legend": None} if len(kinds) < 2 else {}),
            "opacity": _fading(),
            "tooltip": [{"field": "row", "title": "what"}, {"field": "text", "title": "amount"}],
        },
    }


def timeline(
    lanes: Sequence[tuple[str, bool]],
    blocks: Sequence[Block],
    length_s: float,
    text: Any,
    path: Sequence[tuple[float, str]] = (),
) -> Spec:
    """Rectangles over time. `lanes`: (name, whether it is shown beside the lane), from the top; `path`: corners (s,
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
    renderer = "svg" if len(values) <= MOST_SVG else "canvas"
    return {**_ROWS, "height": 19 * len(lanes), "layer": layers, "usermeta": {"renderer": renderer}}


def curves(lines: Sequence[Line], x_title: str, y_title: str, *, x_log: int = 0, y_log: bool = False) -> Spec:
    """Lines with points; legend toggles, x zooms. `x_log`: base of a logarithmic axis, 0 for a linear one."""
    values: list[Spec] = []
    bands: list[Spec] = []
    for line in lines:
        for at, y in zip(line.x, line.y, strict=True):
            values.append({"line": line.name, "x": at, "y": y, "dashed": line.is_dashed})
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
        x["axis"] = {"values": xs if len(xs) <= 12 else xs[:: len(xs) // 10], "format": "~s", "grid": False}
    y_scale = {"type": "log"} if y_log else {}
    colour = _colour((line.name for line in lines), "line")
    layers: list[Spec] = [
        {
            "data": {"values": values},
            "params": [_legend("line"), _ZOOM],
            "mark": {"type": "line", "point": {"size": 45}, "clip": True},
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
                    {"field": "x", "title": x_title, "format": ",~r"},
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
