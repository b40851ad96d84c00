"""The HTML page: one file with everything in it, no script and nothing loaded from elsewhere. `page.html` lays it out;
here is what it is given, and the geometry of its pictures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from emulator.replay.critical import critical_path
from emulator.replay.engine import Replayed
from emulator.replay.parts import PARTS, Parts, parts
from emulator.report.lanes import COLUMNS, PHASES, SHADES, lanes
from emulator.report.perfetto import shown_ranks
from emulator.report.tables import LONGEST, time_text
from emulator.report.templates import template

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
    """A scaling picture: curves over a logarithmic x axis, y from 0. `is_ideal`: also show y growing as x does from the
    first curve's first point on."""

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
    Path(path).write_text(template("page.html").render(_content(page)))


def _content(page: Page) -> dict[str, Any]:
    played = page.played
    charged = parts(played)
    ranks = shown_ranks(played.graph, most_ops=0 if len(played.graph.ranks) > MOST_LANES else len(played.graph.ops))
    shown = lanes(played, ranks[:MOST_LANES])
    path = critical_path(played)
    charged_s = sum(path.by_work.values())
    return {
        "page": page,
        "title": page.title,
        "assumptions": page.assumptions,
        "makespan_s": played.makespan_s,
        "mean": charged.mean(),
        "hidden_s": charged.hidden_communication_s(),
        "bars": _bars(played, charged),
        "lanes": shown,
        "phases": [phase for phase in PHASES if any(run.phase == phase for lane in shown for run in lane.runs)],
        "columns": COLUMNS,
        "shades": SHADES,
        "ticks": ticks(played.makespan_s),
        "more_ranks": len(played.graph.ranks) - len({lane.rank for lane in shown}),
        "critical": [(name, seconds, seconds / charged_s) for name, seconds in list(path.by_work.items())[:LONGEST]],
        "helps": _helps(page),
        "memory_total": sum(page.memory_bytes.values()),
        "plots": [_plot(chart) for chart in page.charts],
        "ops": len(played.graph.ops),
        "engine": played.engine,
        "events": played.events,
        "wall_s": played.wall_s,
    }


def _helps(page: Page) -> list[tuple[str, float, float]]:
    """(what is twice as fast, seconds, share of the iteration that this saves). Not loading: the graph has what
    training waits for samples, and faster storage can do more than halve that."""
    whole_s = page.played.makespan_s
    shown = {"exposed communication": "communication"}
    return [(shown.get(name, name), s, 1 - s / whole_s) for name, s in page.helps.items() if name != "loading"]


def _bars(played: Replayed, charged_parts: Parts) -> list[tuple[str, list[tuple[str, float, float]]]]:
    """For all ranks, then for each stage: name, and (part, seconds, share of the iteration) in order."""
    graph = played.graph
    rows = [("all ranks", np.ones(len(graph.ranks), bool))]
    if 1 < graph.stages() <= MOST_LANES:
        rows += [(f"stage {stage}", graph.ranks.stage == stage) for stage in range(graph.stages())]
    bars = []
    for name, chosen in rows:
        if not (chosen.any() and played.makespan_s):
            continue
        means = np.average(charged_parts.by_rank[chosen], axis=0, weights=charged_parts.weight[chosen])
        charged = [
            (part, float(s), float(s) / played.makespan_s) for part, s in zip(PARTS, means, strict=True) if s > 0
        ]
        bars.append((name, charged))
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
