"""The report of a diagnosis: one self-contained HTML page with findings, breakdown of time, which ranks wait for which,
the iteration with its critical path, possible gains (its template is `diagnosis.html`); or a plot.
"""

from pathlib import Path
from typing import Any

import numpy as np

from emulator.jobs.replay.parts import PARTS
from emulator.jobs.replay.report import LONGEST
from emulator.jobs.workload.graph import Kind
from emulator.surface.report.page import breakdown, render, shares, timeline
from emulator.surface.report.tracks import Lane, cause_of, is_above
from emulator.traces.diagnosis.checks import Diagnosis
from switchml import plotting
from switchml.pages import charts, page
from switchml.units import time_text

SHORT = {"exposed communication": "communication"}
"""Name of a part where its hidden time counts too, or where it is on the critical path."""
MAX_RANKS = 16
"""Maximum ranks in the page's plots: those that findings and the critical path name, then the first ones."""


def write_report(diagnosis: Diagnosis, path: Path, title: str) -> None:
    """Write `diagnosis` in the format of the file's suffix: a page, or a plot of the causes of each rank's time and
    of what would help. Raises ConfigError if it can't be written."""
    if path.suffix == ".html":
        write_page(diagnosis, path, title)
        return
    shown = _content(diagnosis, title)
    drawn = [{"title": "Where the time goes", "spec": shown["breakdown"]["spec"]}]
    if shown["speedups"]:
        drawn.append({"title": "What would help", "spec": shown["speedups_chart"]})
    plotting.draw_charts(path, title, drawn)


def write_page(diagnosis: Diagnosis, path: str | Path, title: str) -> None:
    """Render `diagnosis` into one HTML file."""
    page.write(path, render("diagnosis.html", _content(diagnosis, title), Path(__file__).parent))


def _content(diagnosis: Diagnosis, title: str) -> dict[str, Any]:
    context = diagnosis.context
    shown = _shown(diagnosis)
    parts = sorted(context.path.by_part.items(), key=lambda part: -part[1])
    whole_s = sum(context.path.by_op_type.values())
    waiting_s = context.causes.waiting_s[np.ix_(shown, shown)]
    gains = _speedups(diagnosis)
    return {
        "title": title,
        "assumptions": diagnosis.assumptions,
        "found": diagnosis,
        "context": context,
        "ranks": len(context.graph.ranks),
        "more_ranks": len(context.graph.ranks) - len(shown),
        "shown": [context.short_name(rank) for rank in shown],
        "mean": context.causes.parts.mean(),
        "hidden_s": context.causes.parts.hidden_communication_s(),
        "breakdown": breakdown(_rows(diagnosis, shown)),
        "waiting": [[float(s) for s in row] for row in waiting_s] if waiting_s.any() else [],
        "most_waited_s": float(waiting_s.max(initial=0.0)),
        "timeline": timeline(context.played, shown, cause_of, lambda lanes: _path(diagnosis, lanes)),
        "zoom": charts.ZOOM,
        "path_parts": shares([(SHORT.get(name, name), s) for name, s in parts], whole_s),
        "path_streams": shares(list(context.path_by_stream.items())[:LONGEST], whole_s),
        "path_op_types": shares(list(context.path.by_op_type.items())[:LONGEST], whole_s),
        "speedups": gains,
        "speedups_chart": charts.marked_bars(
            [
                {"row": name, "part": kind, "value": s, "text": f"{time_text(s)} ({share:.1%})"}
                for name, kind, s, share in gains
            ],
            "seconds",
        ),
    }


def _shown(diagnosis: Diagnosis) -> np.ndarray:
    """The ranks shown in plots, int64."""
    context = diagnosis.context
    named = [sighting.rank for finding in diagnosis.findings for sighting in finding.sightings]
    named += context.rank[context.path.op].tolist()
    ranks = list(dict.fromkeys([*named, *range(len(context.graph.ranks))]))
    return np.array(sorted(ranks[:MAX_RANKS]))


def _rows(diagnosis: Diagnosis, shown: np.ndarray) -> dict[str, dict[str, float]]:
    """Seconds by row and part, for the average rank, then for each shown rank: name → part → seconds."""
    context = diagnosis.context
    by_rank = context.causes.parts.by_rank
    rows = {"all ranks": np.average(by_rank, axis=0, weights=context.causes.parts.weight)}
    if len(by_rank) > 1:
        rows |= {context.short_name(int(rank)): by_rank[rank] for rank in shown}
    return {name: dict(zip(PARTS, charged.tolist(), strict=True)) for name, charged in rows.items()}


def _path(diagnosis: Diagnosis, lanes: list[tuple[Lane, str]]) -> list[tuple[float, str]]:
    """Corners (s, lane) of the critical path on the timeline; ops on ranks that are not shown are left out."""
    context = diagnosis.context
    above = {lane.rank: name for lane, name in lanes if lane.name}
    below = {lane.rank: name for lane, name in lanes if not lane.name}
    names, kinds = context.graph.op_types.name, context.graph.op_types.kind
    corners: list[tuple[float, str]] = []
    for op, from_s, until_s in zip(context.path.op, context.path.from_s, context.path.until_s, strict=True):
        rank, op_type = int(context.rank[op]), context.graph.ops.op_type[op]
        if rank not in above or until_s <= from_s:
            continue
        upper = is_above(cause_of(names[op_type], Kind(kinds[op_type])))
        lane = above[rank] if upper else below.get(rank, above[rank])
        if len(corners) > 1 and corners[-1][1] == lane:
            corners[-1] = (float(until_s), lane)
        else:
            corners += [(float(from_s), lane), (float(until_s), lane)]
    return corners


def _speedups(diagnosis: Diagnosis) -> list[tuple[str, str, float, float]]:
    """(change, class, seconds gained, share) of each finding and of each resource at twice its speed, largest gain
    first."""
    whole_s = diagnosis.context.iteration_s
    rows = [(f"{n}. {each.title}", "finding", each.gain_s) for n, each in enumerate(diagnosis.findings, 1)]
    rows += [
        (f"{SHORT.get(thing, thing)} twice as fast", "twice as fast", whole_s - seconds)
        for thing, seconds in diagnosis.helps().items()
    ]
    rows = [row for row in rows if row[2] > 1e-3 * whole_s]
    return [(*row, row[2] / whole_s) for row in sorted(rows, key=lambda row: -row[2])]
