"""Gradients in other buckets: which gradients go into one all-reduce, by DistributedDataParallel's rule or any other.

    rebucket(joined, [1 << 20, 25 << 20])      # bucket_cap_mb=25: a first bucket of 1 MiB, then 25 MiB each

DDP takes gradients in the order in which they become final and closes a bucket once it holds at least its cap; the last
cap repeats (torch/csrc/distributed/c10d/reducer.cpp, compute_bucket_assignment_by_size).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from emulator.traces.joined import Joined
from emulator.whatif.contention import disturbed, relieved
from emulator.whatif.edits import arrange, edges, with_durations, with_rows, without_empty
from emulator.whatif.gradients import Gradients, gradients
from emulator.whatif.network import world_size
from emulator.whatif.scenario import Scenario, assume, contention_of, network_of
from emulator.whatif.serial import gaps_before, one_at_a_time
from emulator.whatif.transfers import TransferCost, all_reduces, fit, repriced
from emulator.workload.costs import NO_ROUTE
from emulator.workload.graph import Transfers
from switchml.errors import ConfigError

MIB = 1 << 20
DDP_CAPS = (1 * MIB, 25 * MIB)
"""DDP's defaults, in bytes."""


def assign(sizes: Sequence[float] | np.ndarray, caps: Sequence[float]) -> np.ndarray:
    """int64 (gradients,): DDP's bucket of each, from 0. Caps in bytes. Raises ConfigError for caps not above 0."""
    if len(caps) == 0 or min(caps) <= 0:
        raise ConfigError(f"bucket caps {list(caps)}: expected at least one, all above 0 bytes")
    bucket, filled = 0, 0.0
    result = np.empty(len(sizes), np.int64)
    for i, size in enumerate(sizes):
        result[i] = bucket
        filled += size
        if filled >= caps[min(bucket, len(caps) - 1)]:
            bucket, filled = bucket + 1, 0.0
    return result


def caps_of(sizes: Sequence[float] | np.ndarray, bucket: np.ndarray) -> tuple[int, ...]:
    """Caps with which `assign` puts gradients of these sizes into these buckets, which number runs from 0."""
    return tuple(int(size) for size in np.bincount(bucket, weights=sizes))


def buckets(joined: Joined, caps_bytes: Sequence[float]) -> Scenario:
    """DDP's buckets for these caps, of which the last repeats (`bucket_cap_mb=c`: one cap; its default: 1 MiB, then 25
    MiB). Where contention is assumed, operators that all-reduces no longer disturb take less time."""
    joined = one_at_a_time(joined)
    network, contention = network_of(joined), contention_of(joined)
    # The time between a call and its all-reduce goes with the old ones: the new ones' costs include it.
    _, gaps = gaps_before(joined, all_reduces(joined))
    joined = with_durations(joined, gaps, np.zeros(len(gaps)))
    joined = relieved(joined, contention) if contention else joined
    joined = rebucket(joined, caps_bytes, network.transfer(world_size(joined)))
    return assume(disturbed(joined, contention) if contention else joined, network=network)


def rebucket(
    joined: Joined, caps: Sequence[float], transfer: TransferCost | None = None, present: Gradients | None = None
) -> Joined:
    """The same iteration with DDP's buckets for `caps` (bytes). `transfer`: what they cost, by default what the trace's
    own cost; `present`: the gradients where they are known already."""
    present = gradients(joined) if present is None else present
    return regroup(joined, assign(present.bytes, caps), transfer, present)


def regroup(
    joined: Joined, bucket: np.ndarray, cost: TransferCost | None = None, present: Gradients | None = None
) -> Joined:
    """Gradient i into bucket `bucket[i]`; numbers must not fall. An op that waited for an old bucket waits for the new
    ones that hold its gradients. Arguments as for `rebucket`."""
    present = gradients(joined) if present is None else present
    bucket = np.asarray(bucket, np.int64)
    if len(bucket) != len(present.bytes) or np.any(np.diff(bucket) < 0) or np.any(np.diff(bucket) > 1) or bucket[0]:
        raise ConfigError(f"buckets {bucket.tolist()}: expected {len(present.bytes)} numbers from 0 that rise by 1")
    cost = fit(joined, present.transfers) if cost is None else cost
    graph, ops, ranks, buckets = joined.graph, joined.graph.ops, len(present.rank), int(bucket[-1]) + 1
    sizes = np.bincount(bucket, weights=present.bytes)
    rank_of = graph.op_rank()
    old = np.flatnonzero(np.isin(ops.transfer, present.transfers))
    row_of = np.searchsorted(present.rank, rank_of[old])
    stream = np.zeros(ranks, np.int32)  # that of the first old bucket
    is_first = ops.transfer[old] == present.bucket[0]
    stream[row_of[is_first]] = ops.stream[old[is_first]]

    # The tables: a work and a collective for each new bucket, like the first old one's.
    first_old, first = int(present.bucket[0]), len(graph.transfers)
    work, group = graph.transfers.work[first_old], graph.transfers.group[first_old]
    names = [f"bucket {number}" for number in range(buckets)]
    joined, first_work = with_rows(joined, names, np.full(buckets, work), bytes=sizes, seconds=np.full(buckets, np.nan))
    joined = _with_collectives(joined, first_work + np.arange(buckets), group)

    # The ops: a new bucket's come right behind the last gradient that it holds, so that a stream keeps its order.
    last = np.maximum.accumulate(present.op[:, np.flatnonzero(np.diff(np.append(bucket, buckets)))], axis=1)
    new = len(ops) + np.arange(ranks * buckets).reshape(ranks, buckets)
    stays = np.delete(np.arange(len(ops)), old)
    order = np.argsort(np.concatenate([stays, (last + 0.5).ravel()]), kind="stable")
    order = np.concatenate([stays, new.ravel()])[order]

    # Dependencies: a new bucket waits for its gradients, and who waited for an old one for those that it is cut into.
    owner, on = edges(ops)
    owners, ons = [owner, new[:, bucket].ravel()], [on, present.op.ravel()]
    place = np.full(len(ops), -1)
    place[old] = np.arange(len(old))
    waits = np.flatnonzero(place[on] >= 0)
    for transfer in present.transfers.tolist():
        cut_into = np.unique(bucket[present.bucket == transfer])
        mine = waits[ops.transfer[on[waits]] == transfer]
        owners.append(np.repeat(owner[mine], len(cut_into)))
        ons.append(new[row_of[place[on[mine]]]][:, cut_into].ravel())
    numbers = np.tile(np.arange(buckets), ranks)
    listed = [
        (int(op), first + int(number), float(size))
        for row in present.op
        for op, number, size in zip(row, bucket, present.bytes, strict=True)
    ]
    changed = arrange(
        dataclasses.replace(joined, gradients=listed),
        order,
        np.concatenate(owners),
        np.concatenate(ons),
        work=first_work + numbers,
        stream=np.repeat(stream, buckets),
        transfer=first + numbers,
    )
    changed = without_empty(changed)
    return repriced(changed, cost, len(changed.graph.transfers) - buckets + np.arange(buckets))


def _with_collectives(joined: Joined, work: np.ndarray, group: int) -> Joined:
    """One more of `group` for each row of `work`; they take no time yet."""
    transfers, costs, count = joined.graph.transfers, joined.costs, len(work)
    transfers = Transfers(
        np.append(transfers.work, work).astype(np.int32), np.append(transfers.group, np.full(count, group, np.int32))
    )
    costs = dataclasses.replace(
        costs,
        transfer_fixed_s=np.append(costs.transfer_fixed_s, np.zeros(count)),
        transfer_bytes=np.append(costs.transfer_bytes, np.zeros(count)),
        transfer_bytes_per_s=np.append(costs.transfer_bytes_per_s, np.full(count, np.inf)),
        transfer_route=np.append(costs.transfer_route, np.full(count, NO_ROUTE, np.int32)),
    )
    return dataclasses.replace(joined, graph=dataclasses.replace(joined.graph, transfers=transfers), costs=costs)
