"""Changes that several passes make to a job: durations of some ops, ops before and after others, and the same job with
fewer ops. All return a new Joined; nothing is changed in place.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from emulator.traces.events import LaneKind
from emulator.traces.joined import GAP, Joined
from emulator.whatif.buckets import gradients
from emulator.workload.graph import NO_MEETING, NO_MICRO_BATCH, Kind, Meetings, Ops, Works


def with_durations(joined: Joined, which: np.ndarray, seconds: np.ndarray) -> Joined:
    """The ops `which` (int (n,), no members of meetings) take `seconds` (float64 (n,)); each gets a work of its own."""
    graph, works = joined.graph, joined.graph.works
    rows = graph.ops.work[which]
    names = ("kind", "collective", "flops", "bytes", "seconds", "priority", "is_source")
    columns = {name: np.append(getattr(works, name), getattr(works, name)[rows]) for name in names}
    work = graph.ops.work.copy()
    work[which] = len(works) + np.arange(len(rows))
    graph = dataclasses.replace(
        graph,
        works=Works(name=works.name + [works.name[row] for row in rows], **columns),
        ops=dataclasses.replace(graph.ops, work=work),
    )
    costs = dataclasses.replace(joined.costs, work_s=np.append(joined.costs.work_s, seconds))
    return dataclasses.replace(joined, graph=graph, costs=costs)


def durations(joined: Joined) -> np.ndarray:
    """float64 (ops,): what each op takes alone; 0 for members of meetings."""
    alone = joined.graph.ops.meeting == NO_MEETING
    return np.where(alone, joined.costs.work_s[joined.graph.ops.work], 0.0)


def computes(joined: Joined) -> np.ndarray:
    """bool (ops,): the ops that compute: an accelerator's kernels where any lane is one, else what the host runs."""
    own = (joined.graph.op_kind() == Kind.COMPUTE) & (joined.graph.ops.meeting == NO_MEETING)
    on_device = is_on_device(joined)
    return own & on_device if on_device.any() else own


def is_on_device(joined: Joined) -> np.ndarray:
    """bool (ops,): whether the event an op came from ran on an accelerator."""
    found = np.zeros(len(joined.graph.ops), bool)
    rank = joined.graph.op_rank()
    for number, trace in enumerate(joined.traces):
        if not any(lane.kind == LaneKind.DEVICE for lane in trace.lanes):
            continue
        kinds = np.array([lane.kind for lane in trace.lanes], np.int8)
        own = np.flatnonzero((rank == number) & (joined.event != GAP) & (joined.event < len(trace.events)))
        if len(own):
            found[own] = kinds[trace.events.lane[joined.event[own]]] == LaneKind.DEVICE
    return found


def kept(joined: Joined, ops: np.ndarray, deps: list[list[int]], stream: np.ndarray) -> Joined:
    """Only the ops `ops` (ascending), on `stream`, waiting for `deps` (numbers among the kept), and the meetings that
    have any of them."""
    graph = joined.graph
    meeting = graph.ops.meeting[ops]
    used, renumbered = np.unique(meeting[meeting != NO_MEETING], return_inverse=True)
    new_meeting = np.full(len(ops), NO_MEETING, np.int32)
    new_meeting[meeting != NO_MEETING] = renumbered
    place = np.full(len(graph.ops), -1, np.int64)
    place[ops] = np.arange(len(ops))
    number = {int(old): i for i, old in enumerate(used)}
    changed = dataclasses.replace(
        graph,
        meetings=Meetings(graph.meetings.work[used], graph.meetings.group[used]),
        ops=Ops(
            work=graph.ops.work[ops],
            stream=stream.astype(np.int32),
            meeting=new_meeting,
            micro_batch=np.full(len(ops), NO_MICRO_BATCH, np.int32),
            dep_start=np.concatenate([[0], np.cumsum([len(one) for one in deps])]).astype(np.int64),
            deps=np.array([op for one in deps for op in one], np.int32),
        ),
    )
    costs = joined.costs
    columns = ("meeting_fixed_s", "meeting_bytes", "meeting_bytes_per_s", "meeting_route")
    return dataclasses.replace(
        joined,
        graph=changed,
        costs=dataclasses.replace(costs, **{name: getattr(costs, name)[used] for name in columns}),
        event=joined.event[ops],
        start_s=joined.start_s[ops],
        end_s=joined.end_s[ops],
        gradients=[
            (int(place[op]), number.get(meeting, NO_MEETING), size)
            for op, meeting, size in joined.gradients
            if place[op] >= 0
        ],
    )


def around(
    joined: Joined, which: np.ndarray, before_s: np.ndarray, after_s: np.ndarray, name: str, kind: Kind
) -> Joined:
    """Each op of `which` (ascending) gets an op of `before_s` seconds in front of it on its stream, which waits for
    what it waited for, and one of `after_s` behind it, for which all wait who waited for it."""
    graph, ops, count = joined.graph, joined.graph.ops, len(joined.graph.ops)
    extra = np.zeros(count, np.int64)
    extra[which] = 1
    place = np.arange(count) + 2 * (np.cumsum(extra) - extra) + extra  # an op of `which` stands in the middle of three
    first, last = place[which] - 1, place[which] + 1
    total = count + 2 * len(which)
    works = graph.works
    rows = {
        "kind": np.full(2 * len(which), kind),
        "collective": np.zeros(2 * len(which)),
        "flops": np.zeros(2 * len(which)),
        "bytes": np.zeros(2 * len(which)),
        "seconds": np.concatenate([before_s, after_s]),
        "priority": np.tile(works.priority[ops.work[which]], 2),
        "is_source": np.zeros(2 * len(which)),
    }
    new_works = Works(
        name=works.name + [name] * (2 * len(which)),
        **{
            key: np.append(getattr(works, key), column).astype(getattr(works, key).dtype)
            for key, column in rows.items()
        },
    )

    def column(old: np.ndarray, of_first: np.ndarray | int, of_last: np.ndarray | int) -> np.ndarray:
        found = np.empty(total, old.dtype)
        found[place], found[first], found[last] = old, of_first, of_last
        return found

    numbers = np.arange(len(which)) + len(works)
    end = place.copy()
    end[which] = last
    start = place.copy()
    start[which] = first
    widths = np.diff(ops.dep_start)
    owner = np.concatenate([start[np.repeat(np.arange(count), widths)], place[which], last])
    on = np.concatenate([end[ops.deps], first, place[which]])
    order = np.argsort(owner, kind="stable")
    changed = dataclasses.replace(
        graph,
        works=new_works,
        ops=Ops(
            work=column(ops.work, numbers, numbers + len(which)),
            stream=column(ops.stream, ops.stream[which], ops.stream[which]),
            meeting=column(ops.meeting, NO_MEETING, NO_MEETING),
            micro_batch=column(ops.micro_batch, NO_MICRO_BATCH, NO_MICRO_BATCH),
            dep_start=np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=total))]).astype(np.int64),
            deps=on[order].astype(np.int32),
        ),
    )
    return dataclasses.replace(
        joined,
        graph=changed,
        costs=dataclasses.replace(joined.costs, work_s=np.concatenate([joined.costs.work_s, before_s, after_s])),
        event=column(joined.event, GAP, GAP),
        start_s=column(joined.start_s, np.nan, np.nan),
        end_s=column(joined.end_s, np.nan, np.nan),
        gradients=[(int(end[op]), meeting, size) for op, meeting, size in joined.gradients],
    )


def without_meetings(joined: Joined) -> Joined:
    """Collectives take no time; members still wait for each other."""
    count = np.zeros(len(joined.graph.meetings))
    return dataclasses.replace(
        joined, costs=dataclasses.replace(joined.costs, meeting_fixed_s=count, meeting_bytes=count)
    )


def after_backward(joined: Joined) -> np.ndarray:
    """bool (ops,): those that come after the last gradient of their rank in the order of the graph."""
    found = gradients(joined)
    last = np.zeros(len(joined.graph.ranks), np.int64)
    last[found.rank] = found.op.max(axis=1)
    return np.arange(len(joined.graph.ops)) > last[joined.graph.op_rank()]
