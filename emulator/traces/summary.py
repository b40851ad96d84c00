"""Summary of a trace in numbers: `switchml trace info`."""

from collections import Counter
from typing import Any

import numpy as np

from emulator.jobs.workload.graph import Collective
from emulator.traces.communication_kernels import family_of
from emulator.traces.completeness import lost_device, unanswered
from emulator.traces.events import LaneKind, RankTrace, What
from emulator.traces.intervals import under_way_s
from emulator.traces.plan import Job
from emulator.traces.steps import Steps
from switchml.errors import TraceError


def of_job(traces: list[RankTrace]) -> dict[str, Any]:
    """Summarize all ranks, ready for JSON. `iteration_s`: as in `Job`; for traces that form none, the mean over
    ranks."""
    between = across(traces)
    try:
        job = Job(traces)
    except TraceError:
        steps = [Steps(trace) for trace in traces]
        count = min(len(trace.steps) for trace in traces)
        ranks = [summary(each, 0, count) for each in steps]
        iteration_s = float(np.mean([rank["mean_iteration_s"] for rank in ranks]))
    else:
        ranks = [summary(each, job.warm_up, job.count) for each in job.steps]
        iteration_s = job.iteration_s
        if job.warm_up > job.first:
            between.append(f"the mean begins with iteration {job.warm_up}: those before it took much longer")
        between += [note for note in job.notes if note.startswith("iterations ")]
    return {"iteration_s": iteration_s, "ranks": ranks, "missing": between}


def summary(steps: Steps, first: int, count: int) -> dict[str, Any]:
    """Summarize one rank, ready for JSON: numbers by lane, kind and collective; `mean_iteration_s` is that of the
    iterations from `first` to `count`; `missing` has a sentence for each piece of information that later steps lack."""
    trace, events = steps.trace, steps.trace.events
    many = np.bincount(events.what, minlength=len(What))
    per_lane = np.bincount(events.lane, minlength=len(trace.lanes))
    steps_s = [steps.duration_s(step) for step in range(len(trace.steps))]
    whole_s = steps.complete_s(count - 1) - steps.begin_s(first) if count else 0.0
    return {
        **{name: getattr(trace, name) for name in ("rank", "world_size", "host", "format", "backend", "epoch_s")},
        "source": str(trace.source),
        "duration_s": float(np.ptp(np.concatenate([events.start_s, events.end_s]))) if len(events) else 0.0,
        "events": len(events),
        "kinds": {what.name.lower(): int(many[what]) for what in What if many[what]},
        "lanes": [
            {"name": lane.name, "kind": lane.kind.name.lower(), "events": int(per_lane[i]), "busy_s": _busy_s(trace, i)}
            for i, lane in enumerate(trace.lanes)
        ],
        "device_busy_s": _busy_s(trace, *trace.lanes_of(LaneKind.DEVICE)),
        "groups": [{"name": group.name, "ranks": len(group.ranks)} for group in trace.groups],
        "collectives": collectives(trace),
        "causes": len(trace.causes),
        "iterations": len(steps_s),
        "iteration_s": steps_s,
        "mean_iteration_s": whole_s / max(count - first, 1),
        "gradients": {"events": int(events.gradient.sum()), "bytes": float(events.bytes[events.gradient].sum())},
        "wire_records": len(trace.wire) if trace.wire is not None else 0,
        "about": trace.about,
        "missing": missing(trace),
    }


def _busy_s(trace: RankTrace, *lanes: int) -> float:
    """Return the time during which any event was in progress on any of these lanes."""
    events = np.flatnonzero(np.isin(trace.events.lane, lanes) & (trace.events.parent < 0))
    return under_way_s(trace.events.start_s[events], trace.events.duration_s[events]) if len(events) else 0.0


def collectives(trace: RankTrace) -> list[dict[str, Any]]:
    """Return communication by operation, group and size, by falling total time."""
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
            "count": len(elapsed_s),
            "total_s": sum(elapsed_s),
            "median_s": float(np.median(elapsed_s)),
        }
        for (name, group, size), elapsed_s in sorted(rows.items(), key=lambda row: -sum(row[1]))
    ]


def missing(trace: RankTrace) -> list[str]:
    """Return sentences on information that the trace lacks for a replay."""
    events, sentences = trace.events, []
    if not (events.what == What.COLLECTIVE).any() and trace.world_size > 1:
        sentences.append("no collective is in it, although the job has several ranks")
    communication = (events.collective > 0) & (events.collective != Collective.BARRIER)
    if (sizeless := int((communication & (events.bytes == 0)).sum())) > 0:
        says = any((family := family_of(name)) and family.library != "nccl" for name in trace.names)
        hint = "of some libraries, nothing records them" if says else _with_shapes(trace)
        sentences.append(f"{sizeless} collectives have no size: {hint}")
    on_device = np.flatnonzero(np.isin(events.lane, trace.lanes_of(LaneKind.DEVICE)))
    launched = set(trace.causes[:, 1].tolist())
    if lost := lost_device(trace):
        sentences.append(lost)
    elif "ranks" not in trace.about and (count := len(unanswered(trace))) and launched.intersection(on_device.tolist()):
        sentences.append(f"{count} launches put nothing on a device: graphs that were captured, or lost kernels")
    if unlaunched := len(set(on_device.tolist()) - launched):
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
    """Return inconsistencies between ranks: missing ranks, different numbers of collectives."""
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
