"""The HTML page: one file with everything in it, no script and nothing loaded from elsewhere. `page.html` lays it out;
here is what it is given, and the geometry of its pictures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from emulator.replay.critical import critical_path
from emulator.replay.engine import Replayed
from emulator.replay.parts import PARTS, Parts, parts
from emulator.report.lanes import COLUMNS, PHASES, SHADES, lanes, phase_of
from emulator.report.perfetto import shown_ranks
from emulator.report.tables import LONGEST, bytes_text, time_text
from emulator.workload.graph import Kind
from switchml.output_files import whole_file
from switchml.text import plain

if TYPE_CHECKING:
    import jinja2

Share = tuple[str, float, float]
"""(name, seconds, share of a whole)."""
MOST_LANES = 16
"""Ranks in the page's timeline."""


@dataclass(frozen=True)
class Curve:
    """A line of a scaling picture."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Chart:
    """Curves over a logarithmic x axis, y from 0. `is_ideal`: also y growing as x does from the first point on."""

    title: str
    x_name: str
    y_name: str
    curves: Sequence[Curve]
    is_ideal: bool = False


@dataclass(frozen=True)
class Page:
    """What the page says. All but the title and the replay may be left out."""

    title: str
    played: Replayed
    headline: dict[str, str] = field(default_factory=dict)
    """Name → value with its unit: iteration time, throughput, …"""
    settings: dict[str, str] = field(default_factory=dict)
    """What was asked for: model, cluster, parallelism, …"""
    memory_bytes: dict[str, float] = field(default_factory=dict)
    """Part → bytes on the fullest accelerator."""
    memory_limit_bytes: float | None = None
    helps: dict[str, float] = field(default_factory=dict)
    """What may be faster (`emulator.whatif.faster.THINGS`) → the iteration's seconds then, what helps most first."""
    charts: Sequence[Chart] = ()
    assumptions: Sequence[str] = ()


def write_page(page: Page, path: str | Path) -> None:
    """Render `page` into one HTML file."""
    with whole_file(path) as part:
        part.write_text(template("page.html").render(_content(page)))


def template(name: str, folder: Path | None = None) -> jinja2.Template:
    """Template `name` of `folder`, which may include what lies beside this module."""
    import jinja2

    here = Path(__file__).parent
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder or here, here]),
        autoescape=True,
        finalize=lambda value: plain(value) if type(value) is str else value,  # Markup is of our own templates
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"time": time_text, "bytes": bytes_text, "slug": lambda name: name.replace(" ", "-")}
    return environment.get_template(name)


def timeline(played: Replayed, ranks: np.ndarray, phase_of: Callable[[str, Kind], str] = phase_of) -> dict[str, Any]:
    """What `parts.html` draws a timeline of `ranks` from."""
    shown = lanes(played, ranks, phase_of=phase_of)
    used = {run.phase for lane in shown for run in lane.runs}
    phases = [phase for phase in PHASES if phase in used]
    marks = ticks(played.makespan_s)
    return {"lanes": shown, "phases": phases, "columns": COLUMNS, "shades": SHADES, "ticks": marks}


def shares(rows: Iterable[tuple[str, float]], whole_s: float) -> list[Share]:
    """Of what takes any time."""
    return [(name, float(seconds), float(seconds) / whole_s) for name, seconds in rows if seconds > 0]


def _content(page: Page) -> dict[str, Any]:
    played = page.played
    charged = parts(played)
    graph = played.graph
    ranks = shown_ranks(graph, most_ops=0 if len(graph.ranks) > MOST_LANES else len(graph.ops))[:MOST_LANES]
    path = critical_path(played)
    longest = list(path.by_work.items())[:LONGEST]
    return {
        "page": page,
        "title": page.title,
        "assumptions": page.assumptions,
        "mean": charged.mean(),
        "hidden_s": charged.hidden_communication_s(),
        "bars": _bars(played, charged),
        **timeline(played, ranks),
        "more_ranks": len(graph.ranks) - len(ranks),
        "critical": shares(longest, sum(path.by_work.values())),
        "helps": _helps(page),
        "memory_total": sum(page.memory_bytes.values()),
        "plots": [_plot(chart) for chart in page.charts],
        "ops": len(graph.ops),
        "played": played,
    }


def _helps(page: Page) -> list[tuple[str, float, float]]:
    """(what is twice as fast, seconds, share of the iteration that this saves). Not loading: the graph has what
    training waits for samples, and faster storage can do more than halve that."""
    whole_s = page.played.makespan_s
    shown = {"exposed communication": "communication"}
    return [(shown.get(name, name), s, 1 - s / whole_s) for name, s in page.helps.items() if name != "loading"]


def _bars(played: Replayed, charged_parts: Parts) -> list[tuple[str, list[Share]]]:
    """For all ranks, then for each stage: name, and its parts of the iteration in order."""
    graph = played.graph
    rows = [("all ranks", np.ones(len(graph.ranks), bool))]
    if 1 < graph.stages() <= MOST_LANES:
        rows += [(f"stage {stage}", graph.ranks.stage == stage) for stage in range(graph.stages())]
    bars = []
    for name, chosen in rows:
        if chosen.any() and played.makespan_s:
            means = np.average(charged_parts.by_rank[chosen], axis=0, weights=charged_parts.weight[chosen])
            bars.append((name, shares(zip(PARTS, means, strict=True), played.makespan_s)))
    return bars


def _step(most: float, ticks: int = 6) -> float:
    """The distance of about that many round ticks up to `most`."""
    raw = most / ticks
    size = 10.0 ** math.floor(math.log10(raw))
    return next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw)


def ticks(most: float) -> list[tuple[float, str]]:
    """(share of the axis, text) of ticks on an axis of time."""
    if most <= 0:
        return []
    step = _step(most, 8)
    return [(number * step / most, time_text(number * step)) for number in range(int(most / step + 1e-9) + 1)]


WIDTH, HEIGHT = 400, 230


def _plot(chart: Chart) -> dict[str, Any]:
    """Pixel coordinates of a chart, y downwards."""
    xs = sorted({float(x) for curve in chart.curves for x in curve.x})
    low, high = math.log2(xs[0]), math.log2(xs[-1])
    curves = [(curve.name, list(zip(curve.x, curve.y, strict=True)), False) for curve in chart.curves]
    if chart.is_ideal:
        x, y = curves[0][1][0]
        curves.append(("linear", [(each, y * each / x) for each in xs], True))
    most = max(y for _, points, _ in curves for _, y in points) or 1.0
    step = _step(most)
    top = step * math.ceil(most / step - 1e-9)

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log2(x) - low) / (high - low) if high > low else 0.5
        return round(across * WIDTH, 1), round(HEIGHT * (1 - y / top), 1)

    names = [(place(x, 0)[0], f"{x:,.0f}" if x >= 10 else f"{x:g}") for x in xs]
    x_ticks = names[:1]
    for position, text in names[1:]:
        if position - x_ticks[-1][0] >= 46:
            x_ticks.append((position, text))
    drawn = [(name, [place(x, y) for x, y in sorted(points)], is_ideal) for name, points, is_ideal in curves]
    return {
        "chart": chart,
        "curves": [
            (name, points, " ".join(f"{x},{y}" for x, y in points), is_ideal) for name, points, is_ideal in drawn
        ],
        "labels": _spread([(points[-1][1], name) for name, points, _ in drawn]),
        "x_ticks": x_ticks,
        "y_ticks": [(place(xs[0], n * step)[1], f"{n * step:,.6g}") for n in range(round(top / step) + 1)],
        "width": WIDTH,
        "height": HEIGHT,
    }


def _spread(labels: list[tuple[float, str]]) -> dict[str, float]:
    """Name → height of its label: at its curve's end, but no two closer than a line."""
    ordered = sorted(labels)
    heights = [height for height, _ in ordered]
    for _ in range(len(ordered)):
        for i, (one, other) in enumerate(pairwise(heights)):
            if other - one < 14:
                heights[i], heights[i + 1] = (one + other) / 2 - 7, (one + other) / 2 + 7
    return {name: height for (_, name), height in zip(ordered, heights, strict=True)}
