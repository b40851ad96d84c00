"""Changes to a joined iteration's ops that several what-ifs make: other durations, another order, ops in front of
others. All return a new Joined.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from emulator.traces.joined import GAP, Joined
from emulator.workload.graph import NO_MEETING, NO_MICRO_BATCH, Kind, Ops, Works


def op_seconds(joined: Joined) -> np.ndarray:
    """float64 (ops,): what each op takes alone; 0 for members of meetings."""
    own = joined.graph.ops.meeting == NO_MEETING
    return np.where(own, joined.costs.work_s[joined.graph.ops.work], 0.0)


def with_seconds(joined: Joined, which: np.ndarray, seconds: np.ndarray) -> Joined:
    """The ops `which`, int (n,) and no members of meetings, take `seconds`, float64 (n,)."""
    graph, works = joined.graph, joined.graph.works
    rows = graph.ops.work[which]
    columns = {
        name: np.append(getattr(works, name), getattr(works, name)[rows])
        for name in ("kind", "collective", "flops", "bytes", "priority", "is_source")
    }
    columns["seconds"] = np.append(works.seconds, seconds)
    work = graph.ops.work.copy()
    work[which] = len(works) + np.arange(len(rows))
    works = Works(name=works.name + [works.name[row] for row in rows], **columns)
    graph = dataclasses.replace(graph, works=works, ops=dataclasses.replace(graph.ops, work=work))
    costs = dataclasses.replace(joined.costs, work_s=np.append(joined.costs.work_s, seconds))
    return dataclasses.replace(joined, graph=graph, costs=costs)


def with_meeting_seconds(joined: Joined, meetings: np.ndarray, seconds: np.ndarray) -> Joined:
    """The meetings take `seconds`, whatever they move."""
    costs = joined.costs
    fixed_s, moved = costs.meeting_fixed_s.copy(), costs.meeting_bytes.copy()
    fixed_s[meetings], moved[meetings] = seconds, 0.0
    return dataclasses.replace(joined, costs=dataclasses.replace(costs, meeting_fixed_s=fixed_s, meeting_bytes=moved))


def reordered(joined: Joined, key: np.ndarray) -> Joined:
    """Ops in the order of `key`, float64 (ops,); equal keys stay as they are. Streams take ops in that order."""
    ops = joined.graph.ops
    order = np.argsort(key, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    widths = np.diff(ops.dep_start)[order]
    dep_start = np.concatenate([[0], np.cumsum(widths)]).astype(np.int64)
    taken = np.repeat(ops.dep_start[:-1][order] - dep_start[:-1], widths) + np.arange(len(ops.deps))
    columns = {name: getattr(ops, name)[order] for name in ("work", "stream", "meeting", "micro_batch")}
    moved = Ops(**columns, dep_start=dep_start, deps=place[ops.deps[taken]].astype(np.int32))
    return dataclasses.replace(
        joined,
        graph=dataclasses.replace(joined.graph, ops=moved),
        event=joined.event[order],
        start_s=joined.start_s[order],
        end_s=joined.end_s[order],
        gradients=[(int(place[op]), meeting, size) for op, meeting, size in joined.gradients],
    )


def in_front(joined: Joined, which: np.ndarray, name: str, kind: Kind, seconds: Sequence[float]) -> Joined:
    """A new op before each of `which`, on its stream: it takes over the dependencies, the op then waits for it."""
    graph, ops = joined.graph, joined.graph.ops
    which = np.asarray(which, np.int64)
    count, more = len(ops), len(which)
    works = graph.works
    kinds = {"kind": kind, "collective": 0, "flops": 0.0, "bytes": 0.0, "priority": 0, "is_source": False}
    columns = {
        column: np.append(getattr(works, column), np.full(more, value, getattr(works, column).dtype))
        for column, value in kinds.items()
    }
    columns["seconds"] = np.append(works.seconds, seconds)
    widths = np.diff(ops.dep_start)
    owner = np.repeat(np.arange(count), widths)
    new_of = np.arange(count)
    new_of[which] = count + np.arange(more)
    owner = np.concatenate([new_of[owner], which])
    deps = np.concatenate([ops.deps, count + np.arange(more)])
    by_owner = np.argsort(owner, kind="stable")
    dep_start = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=count + more))]).astype(np.int64)
    grown = Ops(
        work=np.append(ops.work, len(works) + np.arange(more)).astype(np.int32),
        stream=np.append(ops.stream, ops.stream[which]),
        meeting=np.append(ops.meeting, np.full(more, NO_MEETING, np.int32)),
        micro_batch=np.append(ops.micro_batch, np.full(more, NO_MICRO_BATCH, np.int32)),
        dep_start=dep_start,
        deps=deps[by_owner].astype(np.int32),
    )
    graph = dataclasses.replace(graph, works=Works(name=works.name + [name] * more, **columns), ops=grown)
    joined = dataclasses.replace(
        joined,
        graph=graph,
        costs=dataclasses.replace(joined.costs, work_s=np.append(joined.costs.work_s, seconds)),
        event=np.append(joined.event, np.full(more, GAP)),
        start_s=np.append(joined.start_s, np.full(more, np.nan)),
        end_s=np.append(joined.end_s, np.full(more, np.nan)),
    )
    return reordered(joined, np.append(np.arange(count, dtype=np.float64), which - 0.5))
