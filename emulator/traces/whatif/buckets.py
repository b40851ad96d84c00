"""Change: the assignment of gradients to all-reduces, by DistributedDataParallel's rule or any other. DDP takes
gradients in the order in which they become final and closes a bucket once it holds its cap; the last cap repeats
(torch/csrc/distributed/c10d/reducer.cpp, compute_bucket_assignment_by_size).

    rebucket(joined, [1 << 20, 25 << 20])      # bucket_cap_mb=25: a first bucket of 1 MiB, then 25 MiB each
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from emulator.traces.joined import Joined
from emulator.traces.network import TransferCost
from emulator.traces.whatif import edits
from emulator.traces.whatif.contention import disturbed, relieved
from emulator.traces.whatif.gradients import Gradients, gradients
from emulator.traces.whatif.network import network_of, world_size
from emulator.traces.whatif.serial import gaps_before, one_at_a_time
from emulator.traces.whatif.transfers import all_reduces, fit, repriced
from switchml.errors import ConfigError

MIB = 1 << 20
DDP_CAPS = (1 * MIB, 25 * MIB)
"""DDP's defaults, in bytes."""
MAX_MOVES = 10_000
"""Maximum number of ops moved in sequence; a graph with more has a cycle, which a replay reports."""


def assign(sizes: Sequence[float] | np.ndarray, caps: Sequence[float]) -> np.ndarray:
    """Return DDP's bucket of each gradient, from 0, int64 (gradients,). Caps in bytes. Raises ConfigError for caps not
    above 0."""
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
    """Return caps with which `assign` puts gradients of these sizes into these buckets, numbered from 0."""
    return tuple(int(size) for size in np.bincount(bucket, weights=sizes))


def buckets(joined: Joined, caps_bytes: Sequence[float]) -> Joined:
    """Use DDP's buckets for these caps, of which the last repeats (`bucket_cap_mb=c`: one cap; its default: 1 MiB, then
    25 MiB). If contention is modeled, operators no longer disturbed by all-reduces take less time. Caps that give the
    traced buckets change nothing."""
    present = gradients(joined)
    if np.array_equal(assign(present.bytes, caps_bytes), np.unique(present.bucket, return_inverse=True)[1]):
        return dataclasses.replace(joined, network=network_of(joined))
    return in_buckets(joined, caps_bytes)


def in_buckets(joined: Joined, caps_bytes: Sequence[float]) -> Joined:
    """Apply `buckets`, but with serialized all-reduces costed by the network model even for traced caps, so that caps
    are comparable."""
    network, contention = network_of(joined), joined.contention
    # Remove the time between a call and its all-reduce, which the new ones' costs include, and the waiting of a thread
    # for its next one; before its first, a trace of all-reduces alone has the rank's compute.
    _, gaps = gaps_before(joined, all_reduces(joined))
    gaps = gaps[(np.diff(joined.graph.ops.dep_start)[gaps] > 0) | (edits.on_stream(joined.graph)[0][gaps] >= 0)]
    joined = one_at_a_time(edits.with_durations(joined, gaps, np.zeros(len(gaps))))
    joined = relieved(joined, contention) if contention else joined
    joined = rebucket(joined, caps_bytes, network.transfer(world_size(joined)))
    joined = disturbed(joined, contention) if contention else joined
    return dataclasses.replace(joined, network=network)


def rebucket(joined: Joined, caps: Sequence[float], transfer: TransferCost | None = None) -> Joined:
    """Return the same iteration with DDP's buckets for `caps` (bytes). `transfer`: their cost; default: as in the
    trace."""
    present = gradients(joined)
    return regroup(joined, assign(present.bytes, caps), transfer, present)


def _after_needed(order: np.ndarray, owner: np.ndarray, on: np.ndarray) -> np.ndarray:
    """Return `order`, int64 (ops,), with each op after its dependencies, as larger buckets have later last
    gradients."""
    count = max(int(order.max()), int(owner.max(initial=0)), int(on.max(initial=0))) + 1
    key = np.full(count, np.nan)
    key[order] = np.arange(len(order))
    here = ~np.isnan(key[owner]) & ~np.isnan(key[on])
    owner, on, step = owner[here], on[here], 0.5 / (count + 1)
    for _ in range(MAX_MOVES):
        if not len(late := np.flatnonzero(key[owner] <= key[on])):
            break
        np.maximum.at(key, owner[late], key[on[late]] + step)
    return order[np.argsort(key[order], kind="stable")]


def regroup(
    joined: Joined, bucket: np.ndarray, cost: TransferCost | None = None, present: Gradients | None = None
) -> Joined:
    """Put gradient i into bucket `bucket[i]`, numbered from 0 and never decreasing. Dependents of an old bucket depend
    on all new ones that share its gradients. `cost`: as in `rebucket`; `present`: the gradients, if known already."""
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

    # Tables: an op type and a collective for each new bucket, like the first old one's.
    first_old, first = int(present.bucket[0]), len(graph.transfers)
    names = [f"bucket {number}" for number in range(buckets)]
    numbers = np.arange(buckets)
    op_type = np.full(buckets, graph.transfers.op_type[first_old])
    joined, first_op_type = edits.with_rows(joined, names, op_type, bytes=sizes, seconds=np.full(buckets, np.nan))
    joined = edits.with_transfers(joined, np.append(np.arange(first), np.full(buckets, first_old)))
    op_type = np.append(graph.transfers.op_type, first_op_type + numbers).astype(np.int32)
    joined = edits.with_table(joined, "transfers", op_type=op_type)

    # Ops: those of a new bucket directly follow its last gradient, so that a stream keeps its order.
    last = np.maximum.accumulate(present.op[:, np.flatnonzero(np.diff(np.append(bucket, buckets)))], axis=1)
    new = len(ops) + np.arange(ranks * buckets).reshape(ranks, buckets)
    stays = np.delete(np.arange(len(ops)), old)
    order = np.argsort(np.concatenate([stays, (last + 0.5).ravel()]), kind="stable")
    order = np.concatenate([stays, new.ravel()])[order]

    # Dependencies: a new bucket waits for its gradients; dependents of an old one wait for the new ones it is divided
    # into.
    owner, on = edits.edges(ops)
    owners, ons = [owner, new[:, bucket].ravel()], [on, present.op.ravel()]
    place = np.full(len(ops), -1)
    place[old] = np.arange(len(old))
    waits = np.flatnonzero(place[on] >= 0)
    for transfer in present.transfers.tolist():
        cut_into = np.unique(bucket[present.bucket == transfer])
        mine = waits[ops.transfer[on[waits]] == transfer]
        owners.append(np.repeat(owner[mine], len(cut_into)))
        ons.append(new[row_of[place[on[mine]]]][:, cut_into].ravel())
    all_owners, all_ons = np.concatenate(owners), np.concatenate(ons)
    changed = edits.arrange(
        dataclasses.replace(joined, gradients=present.listed(first + bucket)),
        _after_needed(order, all_owners, all_ons),
        all_owners,
        all_ons,
        op_type=np.tile(first_op_type + numbers, ranks),
        stream=np.repeat(stream, buckets),
        transfer=np.tile(first + numbers, ranks),
    )
    changed = edits.without_empty(changed)
    return repriced(changed, cost, len(changed.graph.transfers) - buckets + numbers)
