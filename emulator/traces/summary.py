"""What is in a trace, in figures: `switchml trace info`."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from emulator.jobs.workload.graph import Collective
from emulator.traces.events import LaneKind, RankTrace, What


def summary(trace: RankTrace) -> dict[str, Any]:
    """Of one rank, ready for JSON: figures by lane, kind and collective; `missing` has a sentence for each thing that
    later steps will miss."""
    events = trace.events
    many = np.bincount(events.what, minlength=len(What))
    busy = np.bincount(events.lane, events.duration_s * (events.parent < 0), len(trace.lanes))
    per_lane = np.bincount(events.lane, minlength=len(trace.lanes))
    steps_s = np.diff(trace.steps, axis=1)[:, 0]
    return {
        **{name: getattr(trace, name) for name in ("rank", "world_size", "host", "format", "backend", "epoch_s")},
        "source": str(trace.source),
        "duration_s": float(np.ptp(np.concatenate([events.start_s, events.end_s]))) if len(events) else 0.0,
        "events": len(events),
        "kinds": {what.name.lower(): int(many[what]) for what in What if many[what]},
        "lanes": [
            {"name": lane.name, "kind": lane.kind.name.lower(), "events": int(per_lane[i]), "busy_s": float(busy[i])}
            for i, lane in enumerate(trace.lanes)
        ],
        "groups": [{"name": group.name, "ranks": len(group.ranks)} for group in trace.groups],
        "collectives": collectives(trace),
        "causes": len(trace.causes),
        "iterations": len(steps_s),
        "iteration_s": steps_s.tolist(),
        "gradients": {"events": int(events.gradient.sum()), "bytes": float(events.bytes[events.gradient].sum())},
        "wire_records": len(trace.wire) if trace.wire is not None else 0,
        "about": trace.about,
        "missing": missing(trace),
    }


def collectives(trace: RankTrace) -> list[dict[str, Any]]:
    """Communication by operation, group and size, the most time first."""
    events = trace.events
    rows: dict[tuple, list[float]] = {}
    for event in np.flatnonzero(events.collective).tolist():
        what = What(events.what[event])
        name = what.name if what != What.COLLECTIVE else Collective(events.collective[event]).name
        key = (name.lower(), int(events.group[event]), float(events.bytes[event]))
        rows.setdefault(key, []).append(float(events.duration_s[event]))
    return [
        {
            "operation": name,
            "group": trace.groups[group].name,
            "ranks": len(trace.groups[group].ranks),
            "bytes": size,
            "count": len(took),
            "total_s": sum(took),
            "median_s": float(np.median(took)),
        }
        for (name, group, size), took in sorted(rows.items(), key=lambda row: -sum(row[1]))
    ]


def missing(trace: RankTrace) -> list[str]:
    """What the trace does not say and a replay has to do without."""
    events, sentences = trace.events, []
    if not (events.what == What.COLLECTIVE).any() and trace.world_size > 1:
        sentences.append("no collective is in it, although the job has several ranks")
    communication = (events.collective > 0) & (events.collective != Collective.BARRIER)
    if (sizeless := int((communication & (events.bytes == 0)).sum())) > 0:
        sentences.append(f"{sizeless} collectives have no size: {_with_shapes(trace)}")
    devices = [i for i, lane in enumerate(trace.lanes) if lane.kind == LaneKind.DEVICE]
    on_device = np.flatnonzero(np.isin(events.lane, devices))
    if unlaunched := len(set(on_device.tolist()) - set(trace.causes[:, 1].tolist())):
        sentences.append(f"{unlaunched} of {len(on_device)} events on devices have no launch on the host")
    if len(trace.steps) == 1 and trace.format == "kineto":
        sentences.append("one iteration, or no step marks: call profiler.step() at the end of each")
    if events.gradient.any() and not events.bytes[events.gradient].any():
        sentences.append(f"gradients have no sizes: {_with_shapes(trace)}")
    if not trace.epoch_s:
        sentences.append("it has no wall-clock time: clocks are aligned by collectives alone")
    return sentences


def _with_shapes(trace: RankTrace) -> str:
    return "capture with --shapes" if trace.format == "switchml" else "profile with record_shapes=True"


def across(traces: list[RankTrace]) -> list[str]:
    """What does not fit together between ranks: ranks that are not there, collectives that they count differently."""
    sentences = []
    world = max(trace.world_size for trace in traces)
    there = {trace.rank for trace in traces}
    if absent := sorted(set(range(world)) - there):
        names = ", ".join(map(str, absent[:8])) + (", …" if len(absent) > 8 else "")
        sentences.append(f"{len(absent)} of {world} ranks have no trace here ({names})")
    counts = {
        trace.rank: Counter(
            trace.groups[group].name for group in trace.events.group[trace.events.what == What.COLLECTIVE].tolist()
        )
        for trace in traces
    }
    for trace in traces[1:]:
        for group in trace.groups:
            ours, first = counts[trace.rank][group.name], counts[traces[0].rank][group.name]
            if traces[0].rank in group.ranks and ours != first:
                sentences.append(
                    f"group {group.name!r}: rank {traces[0].rank} has {first} collectives, rank {trace.rank} has {ours}"
                )
    return sentences
