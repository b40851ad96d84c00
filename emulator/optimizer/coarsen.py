"""The same job with fewer ops, so that a search can replay it a thousand times. Nothing upstream of the gradients' all-
reduces depends on how these are done, so it is replayed once: what is left of it is when each gradient, and whatever
else later ops wait for, is final (partial replay). Downstream, runs of ops that nobody looks into become one (coarsened
view), and of ranks that do the same one stays (symmetry). dPRO (Hu et al., MLSys 2022, section 5.3) does these three on
its graphs; here all of them are exact.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from emulator.optimizer import chains
from emulator.replay.engine import replay
from emulator.replay.fold import fold
from emulator.traces.joined import Joined
from emulator.whatif import edits as edit
from emulator.whatif.buckets import Gradients, gradients
from emulator.workload.graph import NO_MEETING, Order, Streams
from switchml.runtime.jit import kernel


def coarsen(joined: Joined) -> Joined:
    """As small as it gets with the same end of the iteration whatever happens to the buckets of `gradients`."""
    return merged(frozen(folded(joined)))


def frozen(joined: Joined) -> Joined:
    """Everything that does not come after a bucket's all-reduce is one chain of ops on each rank, with an op's end
    wherever something later waits for one. A job with streams that take what is ready stays what it is."""
    graph, ops = joined.graph, joined.graph.ops
    if np.any(graph.streams.order == Order.READY):
        return joined
    found = gradients(joined)
    later = _later(ops.stream, ops.meeting, ops.dep_start, ops.deps, np.isin(ops.meeting, found.meetings))
    end_s = replay(graph, joined.costs).end_s
    before, _ = chains.on_stream(graph)
    rank = graph.op_rank()

    # What of the frozen part is waited for: on a stream that goes on later, its last op; dependencies; gradients; and
    # the very end.
    heads = np.unique(before[later & (before >= 0)])
    heads = heads[~later[heads]]
    of_dep = np.repeat(np.arange(len(ops)), np.diff(ops.dep_start))
    seen = np.zeros(len(ops), bool)
    seen[ops.deps[later[of_dep]]] = True
    seen[found.op.ravel()] = True
    for number in range(len(graph.ranks)):
        own = np.flatnonzero((rank == number) & ~later)
        if len(own):
            seen[own[np.argmax(end_s[own])]] = True
    seen[later] = seen[heads] = False

    # A last op stays on its stream and lasts from the start until its end; the others are a chain on a stream of their
    # own, in the order of their ends.
    starts = np.flatnonzero(seen)
    starts = starts[np.lexsort((starts, end_s[starts], rank[starts]))]
    is_first = np.diff(rank[starts], prepend=-1) != 0
    took_s = np.where(is_first, end_s[starts], np.diff(end_s[starts], prepend=0.0))
    rest = np.flatnonzero(later)
    order = np.concatenate([heads, starts, rest])
    place = np.full(len(ops), -1, np.int64)
    place[order] = np.arange(len(order))
    before_start: list[list[int]] = [[] for _ in range(len(heads) + len(starts))]
    deps = before_start + [sorted(set(place[ops.before(op)].tolist())) for op in rest]
    stream = np.concatenate([ops.stream[heads], len(graph.streams) + rank[starts], ops.stream[rest]])
    small = edit.kept(_alone(joined, order[: len(before_start)], found), order, deps, stream)
    return edit.with_durations(small, np.arange(len(before_start)), np.concatenate([end_s[heads], took_s]))


def _alone(joined: Joined, starts: np.ndarray, found: Gradients) -> Joined:
    """With a stream more on each rank, the ops `starts` in no meeting, and the gradients as `found`."""
    graph, streams = joined.graph, joined.graph.streams
    meeting = graph.ops.meeting.copy()
    meeting[starts] = NO_MEETING
    ranks = np.arange(len(graph.ranks), dtype=np.int32)
    graph = dataclasses.replace(
        graph,
        ops=dataclasses.replace(graph.ops, meeting=meeting),
        streams=Streams(
            rank=np.append(streams.rank, ranks),
            name=streams.name + ["until then"] * len(ranks),
            order=np.append(streams.order, np.full(len(ranks), Order.PROGRAM)).astype(np.int8),
        ),
    )
    listed = [
        (int(op), int(bucket), float(size))
        for row in found.op
        for op, bucket, size in zip(row, found.bucket, found.bytes, strict=True)
    ]
    return dataclasses.replace(joined, graph=graph, gradients=listed)


@kernel
def _later(stream, meeting, dep_start, deps, is_later):
    """bool (ops,): `is_later`, and all that comes after one of these: by dependency, on a stream, in a meeting."""
    streams = np.zeros(stream.max() + 1, np.bool_)
    meetings = np.zeros(meeting.max() + 1, np.bool_)
    found = is_later.copy()
    changed = True
    while changed:  # once where ops stand behind what they wait for, and meetings' members side by side
        changed = False
        streams[:] = False
        for op in range(len(stream)):
            after = found[op] or streams[stream[op]] or (meeting[op] >= 0 and meetings[meeting[op]])
            for i in range(dep_start[op], dep_start[op + 1]):
                after = after or found[deps[i]]
            if after:
                changed = changed or not found[op] or (meeting[op] >= 0 and not meetings[meeting[op]])
                found[op] = True
                streams[stream[op]] = True
                if meeting[op] >= 0:
                    meetings[meeting[op]] = True
    return found


def merged(joined: Joined) -> Joined:
    """Runs of ops that behave as one are one."""
    graph = joined.graph
    joins = chains.follower(graph)
    made = np.array([op for op, _, _ in joined.gradients], np.int64)
    joins[made] = False  # buckets of other sizes may wait for these
    _, after = chains.on_stream(graph)
    joins[after[made][after[made] >= 0]] = False
    if not joins.any():
        return joined
    heads = np.flatnonzero(~joins)
    head = _heads(joins, chains.on_stream(graph)[0])
    took_s = np.bincount(head, weights=edit.durations(joined), minlength=len(head))
    place = np.full(len(head), -1, np.int64)
    place[heads] = np.arange(len(heads))
    deps = [sorted(set(place[head[graph.ops.before(op)]].tolist())) for op in heads]
    small = edit.kept(joined, heads, deps, graph.ops.stream[heads])
    alone = np.flatnonzero(small.graph.ops.meeting == NO_MEETING)
    return edit.with_durations(small, alone, took_s[heads][alone])


@kernel
def _heads(joins, before):
    """int64 (ops,): the first op of each op's run."""
    head = np.arange(len(joins))
    for op in range(len(joins)):
        if joins[op]:
            head[op] = head[before[op]]
    return head


def folded(joined: Joined) -> Joined:
    """One rank for each set of ranks that do the same at the same time."""
    found = gradients(joined)
    whole, small = joined.graph.ops.meeting, fold(joined.graph, joined.costs)
    if len(small.graph.ranks) == len(joined.graph.ranks):
        return joined
    _, stays = np.unique(small.op, return_index=True)
    meeting_of = {
        int(whole[op]): int(small.graph.ops.meeting[small.op[op]])
        for op in np.flatnonzero(np.isin(whole, found.meetings)).tolist()
    }
    rows = np.sort(np.unique(small.representative[found.rank], return_index=True)[1])
    return dataclasses.replace(
        joined,
        graph=small.graph,
        costs=small.costs,
        event=joined.event[stays],
        start_s=joined.start_s[stays],
        end_s=joined.end_s[stays],
        gradients=[
            (int(small.op[op]), meeting_of[int(bucket)], float(size))
            for row in rows
            for op, bucket, size in zip(found.op[row], found.bucket, found.bytes, strict=True)
        ],
    )
