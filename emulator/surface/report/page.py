"""The report of an emulated job: an HTML page, whose content the template `page.html` lays out, or a plot of where the
time goes, memory, and the curves of a sweep.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from emulator.jobs.replay.critical import critical_path
from emulator.jobs.replay.engine import Replayed
from emulator.jobs.replay.parts import PARTS, Parts, parts
from emulator.jobs.replay.perfetto import shown_ranks
from emulator.jobs.replay.report import LONGEST
from emulator.jobs.workload.graph import Kind
from emulator.surface.report.tracks import COLUMNS, PHASES, SHADES, Lane, lanes, phase_of
from switchml import plotting
from switchml.pages import charts, page
from switchml.pages.panels import Bar, Bars, Curves, Panel, chart
from switchml.units import GIB, memory_text, time_text

Share = tuple[str, float, float]
"""(name, seconds, share of the total)."""
MAX_LANES = 16
"""Maximum ranks in the page's timeline."""


@dataclass(frozen=True)
class Page:
    """The content of the page. All but the title and the replay may be left out."""

    title: str
    played: Replayed
    headline: dict[str, str] = field(default_factory=dict)
    """Name → value with its unit: iteration time, throughput, …"""
    settings: dict[str, str] = field(default_factory=dict)
    """Settings of the job: model, cluster, parallelism, …"""
    memory_bytes: dict[str, float] = field(default_factory=dict)
    """Part → bytes on the fullest accelerator."""
    memory_limit_bytes: float | None = None
    speedups: dict[str, float] = field(default_factory=dict)
    """Resource that may be faster (`emulator.traces.whatif.faster.RESOURCES`) → seconds of the iteration at that speed,
    largest gain first."""
    charts: Sequence[Curves] = ()
    """Curves of a sweep."""
    assumptions: Sequence[str] = ()


def write_report(content: Page, path: Path) -> None:
    """Write `content` in the format of the file's suffix: a page, or a picture. Raises ConfigError if it can't be
    written."""
    if path.suffix == ".html":
        write_page(content, path)
    else:
        plotting.draw(path, content.title, _panels(content))


def _panels(content: Page) -> list[Panel]:
    whole_s = content.played.makespan_s
    shares = {name: 100 * s / whole_s for name, s in parts(content.played).mean().items() if s}
    shown: list[Panel] = [_bars(f"An iteration of {time_text(whole_s)}", "% of its time", shares)]
    if memory_bytes := content.memory_bytes:
        limit = f" of {memory_text(content.memory_limit_bytes)}" if content.memory_limit_bytes else ""
        title = f"Memory: {memory_text(sum(memory_bytes.values()))}{limit}"
        shown.append(_bars(title, "GiB", {name: size / GIB for name, size in memory_bytes.items()}))
    return [*shown, *content.charts]


def _bars(title: str, unit: str, values: Mapping[str, float]) -> Bars:
    return Bars(title, unit, [Bar(name, name, value) for name, value in values.items()])


def write_page(content: Page, path: str | Path) -> None:
    """Render `content` into one HTML file."""
    page.write(path, render("page.html", _content(content)))


def render(name: str, content: Mapping[str, Any], *folders: Path) -> str:
    """A page from the template `name` in `folders` or next to this module."""
    return page.render(name, (*folders, Path(__file__).parent), content, time=time_text, bytes=memory_text)


def timeline(
    played: Replayed,
    ranks: np.ndarray,
    phase_of: Callable[[str, Kind], str] = phase_of,
    path: Callable[[list[tuple[Lane, str]]], Sequence[tuple[float, str]]] = lambda named: (),
) -> charts.Spec:
    """Timeline of `ranks`. `path` returns the corners (s, lane) of a line across lanes, from the
    lanes and their names."""
    named: list[tuple[Lane, str]] = []
    for lane in lanes(played, ranks, phase_of=phase_of):
        name = lane.name or f"{named[-1][1]}, exchanges"
        taken = {other for _, other in named}
        named.append(
            (lane, next(n for k in range(1, len(taken) + 2) if (n := f"{name} ({k})" if k > 1 else name) not in taken))
        )
    step_s = played.makespan_s / COLUMNS
    blocks = [
        charts.Block(name, run.phase, run.first * step_s, (run.first + run.columns) * step_s, run.shade / SHADES)
        for lane, name in named
        for run in lane.runs
    ]
    blocks.sort(key=lambda block: PHASES.index(block.kind))
    return charts.timeline(
        [(name, bool(lane.name)) for lane, name in named], blocks, played.makespan_s, time_text, path(named)
    )


def breakdown(rows: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Chart and table of seconds: row → part → seconds. Parts are in the order of the first row."""
    names = list(dict.fromkeys(name for parts in rows.values() for name, s in parts.items() if s > 0))
    table = [
        [row, *(time_text(parts[name]) if parts.get(name) else "–" for name in names)] for row, parts in rows.items()
    ]
    return {"spec": charts.stacked(rows, "s", time_text), "table": charts.Table(["", *names], table)}


def shares(rows: Iterable[tuple[str, float]], whole_s: float) -> list[Share]:
    """The share of each row that takes any time."""
    return [(name, float(seconds), float(seconds) / whole_s) for name, seconds in rows if seconds > 0]


def _content(content: Page) -> dict[str, Any]:
    played = content.played
    charged = parts(played)
    graph = played.graph
    ranks = ranks_shown(played)
    path = critical_path(played)
    longest = list(path.by_op_type.items())[:LONGEST]
    return {
        "page": content,
        "title": content.title,
        "assumptions": content.assumptions,
        "breakdown": breakdown(stage_rows(played, charged)),
        "hidden_s": charged.hidden_communication_s(),
        "timeline": timeline(played, ranks),
        "zoom": charts.ZOOM,
        "more_ranks": len(graph.ranks) - len(ranks),
        "critical": shares(longest, sum(path.by_op_type.values())),
        "speedups": _speedups(content),
        "memory": memory_chart({"memory": content.memory_bytes}) if content.memory_bytes else None,
        "memory_total": sum(content.memory_bytes.values()),
        "plots": [chart(curves) for curves in content.charts],
        "ops": len(graph.ops),
        "played": played,
    }


def ranks_shown(played: Replayed) -> np.ndarray:
    """The ranks of the page's timeline, int64: all, or one of each stage."""
    graph = played.graph
    return shown_ranks(graph, most_ops=0 if len(graph.ranks) > MAX_LANES else len(graph.ops))[:MAX_LANES]


def memory_chart(rows_bytes: Mapping[str, Mapping[str, float]]) -> charts.Spec:
    """One bar per row, of parts in bytes."""
    rows = {name: {part: size / GIB for part, size in parts.items()} for name, parts in rows_bytes.items()}
    return charts.stacked(rows, "GiB", lambda size: memory_text(size * GIB))


def _speedups(page: Page) -> list[tuple[str, float, float]]:
    """(what is twice as fast, seconds, share of the iteration saved). Without loading: the graph only contains the time
    that training waits for samples, and faster storage can more than halve that."""
    whole_s = page.played.makespan_s
    shown = {"exposed communication": "communication"}
    return [(shown.get(name, name), s, 1 - s / whole_s) for name, s in page.speedups.items() if name != "loading"]


def stage_rows(played: Replayed, charged: Parts | None = None) -> dict[str, dict[str, float]]:
    """Seconds for all ranks, then for each stage: name → part → seconds."""
    graph, charged = played.graph, charged or parts(played)
    chosen = {"all ranks": np.ones(len(graph.ranks), bool)}
    if 1 < graph.stages() <= MAX_LANES:
        chosen |= {f"stage {stage}": graph.ranks.stage == stage for stage in range(graph.stages())}
    rows = {}
    for name, members in chosen.items():
        if members.any() and played.makespan_s:
            means = np.average(charged.by_rank[members], axis=0, weights=charged.weight[members])
            rows[name] = dict(zip(PARTS, means.tolist(), strict=True))
    return rows
