"""Gradients in other buckets: which gradients go into one all-reduce, by DistributedDataParallel's rule or any other.

    rebucket(joined, [1 << 20, 25 << 20])      # bucket_cap_mb=25: a first bucket of 1 MiB, then 25 MiB each

DDP takes gradients in the order in which they become final and closes a bucket once it holds at least its cap; the last
cap repeats (torch/csrc/distributed/c10d/reducer.cpp, compute_bucket_assignment_by_size).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emulator.traces.joined import GAP, Joined
from emulator.whatif.transfers import Transfer, all_reduces, fit, meeting_bytes, repriced
from emulator.workload.costs import NO_ROUTE
from emulator.workload.graph import NO_MEETING, NO_MICRO_BATCH, Meetings, Ops
from switchml.errors import ConfigError, GraphError

MIB = 1 << 20
DDP_CAPS = (1 * MIB, 25 * MIB)
"""DDP's defaults, in bytes."""


@dataclass(frozen=True)
class Gradients:
    """What can be put into buckets. Gradient i is the same parameter's on all ranks."""

    op: np.ndarray
    """int64 (ranks, gradients): the op that made it final."""
    bytes: np.ndarray
    """float64 (gradients,)."""
    bucket: np.ndarray
    """int64 (gradients,): its meeting at present."""
    rank: np.ndarray
    """int64 (ranks,): of each row."""

    @property
    def meetings(self) -> np.ndarray:
        """int64: the present buckets, in order."""
        return np.unique(self.bucket)


def gradients(joined: Joined) -> Gradients:
    """The gradients that the traces name with their bytes; where they name none, each all-reduce that all ranks take
    part in counts as one: then buckets can be fused, but not cut. What has no bytes is in nobody's way, and left out.
    Raises GraphError where there is nothing to put into buckets."""
    graph = joined.graph
    listed = [row for row in joined.gradients if row[1] != NO_MEETING and row[2] > 0]
    if not listed:
        return _whole_buckets(joined)
    op = np.array([row[0] for row in listed], np.int64)
    rank = graph.op_rank()[op]
    ranks, counts = np.unique(rank, return_counts=True)
    if np.ptp(counts):
        each = ", ".join(f"rank {r} {n}" for r, n in zip(ranks[:8], counts, strict=False))
        raise GraphError(f"ranks have different numbers of gradients ({each}): they can't share buckets")
    order = np.argsort(rank, kind="stable").reshape(len(ranks), -1)
    size = np.array([row[2] for row in listed], np.float64)[order]
    bucket = np.array([row[1] for row in listed], np.int64)[order]
    if np.any(bucket != bucket[0]):
        raise GraphError("ranks put their gradients into different buckets: the traces are not of one job's iteration")
    return Gradients(op[order], size[0], bucket[0], ranks)


def _whole_buckets(joined: Joined) -> Gradients:
    graph, size = joined.graph, meeting_bytes(joined)
    everyone = [
        meeting
        for meeting in all_reduces(joined)
        if size[meeting] > 0 and len(graph.groups.members(graph.meetings.group[meeting])) == len(graph.ranks)
    ]
    if not everyone:
        raise GraphError("the trace names no gradients with bytes, and no such all-reduce that all ranks take part in")
    rank = graph.op_rank()
    op = np.full((len(graph.ranks), len(everyone)), -1, np.int64)
    column = {int(meeting): i for i, meeting in enumerate(everyone)}
    for member in np.flatnonzero(np.isin(graph.ops.meeting, everyone)):
        before = graph.ops.before(member)
        if len(before) == 0:
            raise GraphError(f"{graph.op_name(int(member))} has no producer, so nothing says when a bucket is ready")
        op[rank[member], column[int(graph.ops.meeting[member])]] = before.max()
    meetings = np.array(everyone, np.int64)
    return Gradients(op, size[meetings], meetings, np.arange(len(graph.ranks)))


def assign(sizes: Sequence[float] | np.ndarray, caps: Sequence[float]) -> np.ndarray:
    """int64 (gradients,): DDP's bucket of each, from 0. Caps in bytes. Raises ConfigError for caps not above 0."""
    if len(caps) == 0 or min(caps) <= 0:
        raise ConfigError(f"bucket caps {list(caps)}: expected at least one, all above 0 bytes")
    bucket, held = 0, 0.0
    found = np.empty(len(sizes), np.int64)
    for i, size in enumerate(sizes):
        found[i] = bucket
        held += size
        if held >= caps[min(bucket, len(caps) - 1)]:
            bucket, held = bucket + 1, 0.0
    return found


def caps_of(sizes: Sequence[float] | np.ndarray, bucket: np.ndarray) -> tuple[int, ...]:
    """Caps with which `assign` puts gradients of these sizes into these buckets, which number runs from 0."""
    return tuple(int(held) for held in np.bincount(bucket, weights=sizes))


def rebucket(
    joined: Joined, caps: Sequence[float], transfer: Transfer | None = None, found: Gradients | None = None
) -> Joined:
    """The same iteration with DDP's buckets for `caps` (bytes). `transfer`: what they cost, by default what the trace's
    own cost; `found`: the gradients where they are known already."""
    found = gradients(joined) if found is None else found
    return regroup(joined, assign(found.bytes, caps), transfer, found)


def regroup(
    joined: Joined, bucket: np.ndarray, transfer: Transfer | None = None, found: Gradients | None = None
) -> Joined:
    """Gradient i into bucket `bucket[i]`; numbers must not fall. An op that waited for an old bucket waits for the new
    ones that hold its gradients. Arguments as for `rebucket`."""
    found = gradients(joined) if found is None else found
    bucket = np.asarray(bucket, np.int64)
    if len(bucket) != len(found.bytes) or np.any(np.diff(bucket) < 0) or np.any(np.diff(bucket) > 1) or bucket[0]:
        raise ConfigError(f"buckets {bucket.tolist()}: expected {len(found.bytes)} numbers from 0 that rise by 1")
    transfer = fit(joined, found.meetings) if transfer is None else transfer
    graph, ops = joined.graph, joined.graph.ops
    count, ranks, buckets = len(ops), len(found.rank), int(bucket[-1]) + 1
    sizes = np.bincount(bucket, weights=found.bytes)
    ends = np.flatnonzero(np.diff(np.append(bucket, buckets)))
    is_old = np.isin(ops.meeting, found.meetings)
    old_of = {(int(rank), int(m)): op for op in np.flatnonzero(is_old) for rank, m in [_rank_and_meeting(graph, op)]}
    stream = np.array([ops.stream[old_of[int(rank), int(found.bucket[0])]] for rank in found.rank], np.int32)

    # Works and meetings: the old buckets' meetings go, the new ones follow the others.
    work = int(graph.meetings.work[found.bucket[0]])
    group = int(graph.meetings.group[found.bucket[0]])
    works = _with_copies(graph.works, work, sizes)
    others = np.delete(np.arange(len(graph.meetings)), found.meetings)
    first_work, first_meeting = len(graph.works), len(others)
    number = np.full(len(graph.meetings) + 1, NO_MEETING)  # the last place is NO_MEETING's own
    number[others] = np.arange(len(others))
    meetings = Meetings(
        work=np.append(graph.meetings.work[others], first_work + np.arange(buckets)).astype(np.int32),
        group=np.append(graph.meetings.group[others], np.full(buckets, group)).astype(np.int32),
    )

    # Ops: those of new buckets come right after the last gradient that they hold, so that a stream keeps its order.
    kept = np.flatnonzero(~is_old)
    last = np.maximum.accumulate(found.op[:, ends], axis=1)  # (ranks, buckets): buckets are reduced in order
    key = np.concatenate([kept.astype(np.float64), (last + 0.5).ravel()])
    order = np.argsort(key, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    moved = np.full(count, -1, np.int64)
    moved[kept] = place[: len(kept)]
    new = place[len(kept) :].reshape(ranks, buckets)

    shape = (ranks, buckets)

    def column(old: np.ndarray, of_new: np.ndarray | int | float) -> np.ndarray:
        return np.concatenate([old[kept], np.broadcast_to(of_new, shape).ravel()])[order]

    instead = {
        int(op): new[row, np.unique(bucket[found.bucket == meeting])]
        for row, rank in enumerate(found.rank)
        for meeting in found.meetings
        if (op := old_of.get((int(rank), int(meeting)))) is not None
    }
    dep_start, deps = _dependencies(ops, order, moved, moved[found.op], new[:, bucket], instead)
    numbers = np.arange(buckets)
    graph = dataclasses.replace(
        graph,
        works=works,
        meetings=meetings,
        ops=Ops(
            work=column(ops.work, first_work + numbers).astype(np.int32),
            stream=column(ops.stream, stream[:, None]).astype(np.int32),
            meeting=column(number[ops.meeting], first_meeting + numbers).astype(np.int32),
            micro_batch=column(ops.micro_batch, NO_MICRO_BATCH).astype(np.int32),
            dep_start=dep_start,
            deps=deps,
        ),
    )
    costs = joined.costs
    costs = dataclasses.replace(
        costs,
        work_s=np.append(costs.work_s, np.full(buckets, np.nan)),
        meeting_fixed_s=np.append(costs.meeting_fixed_s[others], np.zeros(buckets)),
        meeting_bytes=np.append(costs.meeting_bytes[others], sizes),
        meeting_bytes_per_s=np.append(costs.meeting_bytes_per_s[others], np.full(buckets, np.inf)),
        meeting_route=np.append(costs.meeting_route[others], np.full(buckets, NO_ROUTE)).astype(np.int32),
    )
    listed = [
        (int(moved[found.op[row, i]]), int(first_meeting + bucket[i]), float(found.bytes[i]))
        for row in range(ranks)
        for i in range(len(bucket))
    ]
    changed = dataclasses.replace(
        joined,
        graph=graph,
        costs=costs,
        event=column(joined.event, GAP),
        start_s=column(joined.start_s, np.nan),
        end_s=column(joined.end_s, np.nan),
        gradients=listed,
    )
    return repriced(changed, transfer, first_meeting + numbers)


def _rank_and_meeting(graph, op: int) -> tuple[int, int]:
    return int(graph.streams.rank[graph.ops.stream[op]]), int(graph.ops.meeting[op])


def _with_copies(works, work: int, sizes: np.ndarray):
    """`works` and a copy of `work` for each size."""
    count = len(sizes)
    columns = {
        name: np.append(getattr(works, name), np.full(count, getattr(works, name)[work])).astype(
            getattr(works, name).dtype
        )
        for name in ("kind", "collective", "flops", "seconds", "priority", "is_source")
    }
    names = works.name + [f"bucket {i}" for i in range(count)]
    return type(works)(name=names, bytes=np.append(works.bytes, sizes), **columns)


def _dependencies(
    ops: Ops, order: np.ndarray, moved: np.ndarray, made: np.ndarray, bucket: np.ndarray, instead: dict
) -> tuple[np.ndarray, np.ndarray]:
    """CSR of the new order: ops keep what they waited for (old buckets replaced by `instead`), the op `bucket[r, i]`
    waits for the gradient that the op `made[r, i]` makes."""
    widths = np.diff(ops.dep_start)
    old = np.isin(ops.deps, np.fromiter(instead, np.int64, len(instead)))
    of_dep = np.repeat(np.arange(len(ops)), widths)
    plain = ~old & (moved[of_dep] >= 0)
    owner, on = [moved[of_dep[plain]]], [moved[ops.deps[plain]]]
    for dep in np.flatnonzero(old & (moved[of_dep] >= 0)):
        replaced = instead[int(ops.deps[dep])]
        owner.append(np.full(len(replaced), moved[of_dep[dep]]))
        on.append(replaced)
    owner.append(bucket.ravel())
    on.append(made.ravel())
    pairs = np.unique(np.stack([np.concatenate(owner), np.concatenate(on)], axis=1), axis=0)
    dep_start = np.concatenate([[0], np.cumsum(np.bincount(pairs[:, 0], minlength=len(order)))]).astype(np.int64)
    return dep_start, pairs[:, 1].astype(np.int32)
