"""Time and bandwidth against size, both axes logarithmic: a PNG through matplotlib, or a page of HTML.

The page needs nothing else: it holds its picture as SVG, drawn here: two panels, a line a backend, each point with its
figures as a tooltip.
"""

from __future__ import annotations

import html
import importlib.util
import math
from pathlib import Path

from emulator.bench.allreduce import Report
from emulator.bench.limits import Limit
from emulator.bench.ranks.reducing import SWITCHML
from emulator.bench.sizes import ITEM_BYTES, text_of
from switchml.errors import ConfigError

COLOURS = {"switchml": "#1b6ca8", "gloo": "#d1603d", "limit": "#888888"}
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 560, 400, 70, 50, 30

Series = dict[str, list[tuple[float, float]]]


def require(path: Path) -> None:
    """Raises ConfigError if a picture of this kind can't be drawn here."""
    if path.suffix == ".png" and importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot FILE.png needs matplotlib: pip install 'switchml[plot]', or say --plot FILE.html")


def draw(report: Report, limit: Limit | None, path: Path) -> None:
    """Write the picture to `path`, .png or .html. Raises ConfigError if it can't be written."""
    panels = [
        ("time of an all-reduce", "µs", _series(report, lambda m, name: m.median_s(name) * 1e6)),
        ("algbw", "GB/s", _series(report, lambda m, name: m.gigabytes_per_s(name))),
    ]
    sizes = [x for x, _ in panels[0][2][SWITCHML]]
    if limit is not None:
        bound = limit.elements_per_s * ITEM_BYTES
        panels[0][2]["limit"] = [(size, size / bound * 1e6) for size in sizes]
        panels[1][2]["limit"] = [(size, bound / 1e9) for size in sizes]
    title = f"{report.workers} ranks, transport {report.transport}, {report.wire} on the wire"
    try:
        if path.suffix == ".png":
            _draw_png(panels, title, path)
        else:
            path.write_text(_page(panels, title), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--plot {path}: {error.strerror or error}") from None


def _series(report: Report, value) -> Series:
    """Backend → (size in bytes, value), by size. Overlapped cases are no point on a line."""
    alone = sorted((m for m in report.measurements if not m.case.overlapped), key=lambda m: m.case.size_bytes)
    return {name: [(m.case.size_bytes, value(m, name)) for m in alone] for name in report.backends}


def _draw_png(panels: list[tuple[str, str, Series]], title: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, both = pyplot.subplots(1, 2, figsize=(12, 4.8))
    for axes, (name, unit, series) in zip(both, panels, strict=True):
        for label, points in series.items():
            dashed = label == "limit"
            axes.plot(*zip(*points, strict=True), "--" if dashed else "o-", color=COLOURS[label], label=label)
        axes.set(xlabel="bytes of the tensor", ylabel=unit, title=name, yscale="log")
        axes.set_xscale("log", base=2)
        sizes = [x for x, _ in series[SWITCHML]]
        axes.set_xticks(sizes, [text_of(int(size)) for size in sizes], rotation=45)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _page(panels: list[tuple[str, str, Series]], title: str) -> str:
    pictures = "\n".join(_panel(*panel) for panel in panels)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"/><title>switchml bench allreduce</title>
<style>body {{ font: 14px sans-serif; margin: 2em }} svg {{ max-width: 48% }} text {{ font: 12px sans-serif }}</style>
</head><body><h1>switchml bench allreduce</h1><p>{html.escape(title)}</p>
{pictures}
</body></html>
"""


def _panel(name: str, unit: str, series: Series) -> str:
    """One picture as SVG."""
    points = [point for line in series.values() for point in line]
    x_of = _scale([x for x, _ in points], _LEFT, _WIDTH - 20)
    y_of = _scale([y for _, y in points], _HEIGHT - _BOTTOM, _TOP)
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{name}">']
    parts.append(f'<text x="{_LEFT}" y="18" font-weight="bold">{name} ({unit})</text>')
    low, high = min(y for _, y in points), max(y for _, y in points)
    for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        for step in (1, 2, 5):
            if low <= (value := step * 10.0**power) <= high:
                y = y_of(value)
                parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
                parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    for size in sorted({x for x, _ in points}):
        parts.append(f'<text x="{x_of(size):.1f}" y="{_HEIGHT - 28}" text-anchor="middle">{text_of(int(size))}</text>')
    for place, (label, line) in enumerate(series.items()):
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in line)
        dash = ' stroke-dasharray="6 4"' if label == "limit" else ""
        parts.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[label]}" stroke-width="2"{dash}/>')
        for x, y in line if label != "limit" else ():
            told = f"{label}, {text_of(int(x))}: {y:.4g} {unit}"
            circle = f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="4" fill="{COLOURS[label]}">'
            parts.append(f"{circle}<title>{told}</title></circle>")
        parts.append(f'<text x="{_LEFT + 90 * place}" y="{_HEIGHT - 6}" fill="{COLOURS[label]}">{label}</text>')
    return "\n".join([*parts, "</svg>"])


def _scale(values: list[float], start: float, end: float):
    """A function from a value to its place between `start` and `end`, logarithmically."""
    low, high = math.log(min(values)), math.log(max(values))
    if high - low < 1e-9:
        return lambda value: (start + end) / 2
    return lambda value: start + (math.log(value) - low) / (high - low) * (end - start)
