"""Figures of commands: charts of panels (`switchml.pages.panels`) as a page, or drawn by vl-convert as a bitmap or a
vector graphic, depending on the file's extension.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from switchml import output_files
from switchml.output_files import whole_file
from switchml.pages import charts, page, panels
from switchml.pages.panels import Bars, Panel

_COLUMNS = 4
_WIDTH = 480
"""Width of a chart in a picture, in pixels; a bitmap has twice as many, so that it can be enlarged."""
_INK, _DIM, _RULE = "#1c2126", "#5c656f", "#dfe3e7"
_TEXT = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "titleColor": _DIM}
_CONFIG = {
    "background": "white",
    "font": "sans-serif",
    "padding": 12,
    "view": {"stroke": None},
    "axis": {
        **_TEXT,
        **dict.fromkeys(("gridColor", "domainColor", "tickColor"), _RULE),
    },
    "axisQuantitative": {"labelSeparation": 4},
    "axisY": {"labelLimit": 330},
    "legend": {
        **_TEXT,
        "labelColor": _INK,
        "orient": "top",
        "title": None,
        "symbolType": "square",
        "symbolOpacity": 1,
        "columns": 3,
        "labelLimit": 330,
    },
    "title": {"anchor": "start", "subtitleColor": _DIM},
    "style": {"bound": {"color": _INK, "fill": _INK}},
}
"""A page's look on paper: that of `pages/script.js`, with the light colors of `pages/style.html`."""


def check(path: Path) -> None:
    """Raises ConfigError if no figure can be written to `path`."""
    output_files.check(path, output_files.PICTURES)


def draw(path: Path, title: str, shown: Sequence[Panel]) -> None:
    """Write `shown` side by side, at most four per row. Raises ConfigError as `check` does, and if the file cannot be
    written."""
    drawn = [panels.chart(panel) for panel in shown]
    if path.suffix == ".html":
        check(path)
        content = {"title": title, "panels": drawn, "can_zoom": any(not isinstance(panel, Bars) for panel in shown)}
        page.write(path, page.render("panels.html", (), {**content, "zoom": charts.ZOOM}))
    else:
        draw_charts(path, title, drawn)


def draw_charts(path: Path, title: str, shown: Sequence[Mapping[str, Any]]) -> None:
    """Write charts (`title`, `spec` and perhaps `note`, as `panels.chart` returns them) as a bitmap or vector graphic,
    side by side. Raises ConfigError as `draw` does."""
    check(path)
    import vl_convert

    whole = {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "title": {"text": title, "anchor": "middle", "fontSize": 15},
        "columns": _COLUMNS,
        "concat": [
            _still(chart["spec"])
            | {"width": _WIDTH, "title": {"text": chart["title"], "subtitle": chart.get("note", "")}}
            for chart in shown
        ],
        "resolve": {"scale": {"color": "independent"}},
        "config": _CONFIG,
    }
    text = json.dumps(page.json_safe(whole))
    if path.suffix == ".svg":
        data = vl_convert.vegalite_to_svg(text).encode()
    elif path.suffix == ".pdf":
        data = vl_convert.vegalite_to_pdf(text)
    else:
        data = vl_convert.vegalite_to_png(text, scale=2)
    with whole_file(path) as part:
        part.write_bytes(data)


def _still(spec: Any) -> Any:
    """A specification without what a reader of a page can do: hover, zoom, toggle; nor its layout there."""
    if isinstance(spec, list):
        return [_still(item) for item in spec]
    if not isinstance(spec, dict):
        return spec
    if "param" in spec.get("condition", ()):
        return {name: value for name, value in spec["condition"].items() if name != "param"}
    left_out = ("params", "tooltip", "autosize", "usermeta")
    return {name: value if name == "data" else _still(value) for name, value in spec.items() if name not in left_out}
