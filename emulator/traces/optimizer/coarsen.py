"""Reduces a job to fewer ops, so that a search can replay it a thousand times. Everything before the gradients'
all-reduces is independent of them: it is replayed once, and only the ends of gradients and of other dependencies of
later ops remain (partial replay). After them, runs of ops are merged (coarsened view); of equivalent ranks one remains
(symmetry). As in dPRO (Hu et al., MLSys 2022, section 5.3), but exact.
"""

import dataclasses

import numpy as np

from emulator.jobs.replay.engine import replay
from emulator.jobs.replay.fold import fold
from emulator.jobs.workload.graph import NO_TRANSFER, Order
from emulator.traces.joined import Joined
from emulator.traces.whatif import edits
from emulator.traces.whatif.fusion import continues_run
from emulator.traces.whatif.gradients import gradients
from switchml.runtime.jit import kernel


def coarsen(joined: Joined) -> Joined:
    """Return the smallest equivalent job: with the same end of the iteration whatever happens to the buckets of
    `gradients`."""
    return merged(frozen(folded(joined)))


def frozen(joined: Joined) -> Joined:
    """Replace everything that does not depend on a bucket's all-reduce by one chain of ops on each rank, with the end
    of an op wherever later ones depend on it. A job with streams in ready order is returned unchanged."""
    graph, ops = joined.graph, joined.graph.ops
    if np.any(graph.streams.order == Order.READY):
        return joined
    present = gradients(joined)
    later = _later(ops.stream, ops.transfer, ops.dep_start, ops.deps, np.isin(ops.transfer, present.transfers))
    end_s = replay(graph, joined.costs).end_s
    before, _ = edits.on_stream(graph)
    rank = graph.op_rank()

    # What later ops need of the frozen part: on a stream that continues later, its last op; dependencies; gradients;
    # and the very end.
    heads = np.unique(before[later & (before >= 0)])
    heads = heads[~later[heads]]
    owner, on = edits.edges(ops)
    seen = np.zeros(len(ops), bool)
    seen[on[later[owner]]] = True
    seen[present.op.ravel()] = True
    for number in range(len(graph.ranks)):
        own = np.flatnonzero((rank == number) & ~later)
        if len(own):
            seen[own[np.argmax(end_s[own])]] = True
    seen[later] = seen[heads] = False

    # A last op stays on its stream and lasts from the start until its end; the others form a chain on a separate
    # stream, in the order of their ends.
    starts = np.flatnonzero(seen)
    starts = starts[np.lexsort((starts, end_s[starts], rank[starts]))]
    is_first = np.diff(rank[starts], prepend=-1) != 0
    elapsed_s = np.where(is_first, end_s[starts], np.diff(end_s[starts], prepend=0.0))
    frozen_ops = np.concatenate([heads, starts])
    joined = edits.with_streams(joined, "until then")
    stream, transfer = ops.stream.copy(), ops.transfer.copy()
    stream[starts] = len(graph.streams) + rank[starts]
    transfer[frozen_ops] = NO_TRANSFER
    waits_later = later[owner]
    joined = edits.with_table(joined, "ops", stream=stream, transfer=transfer)
    joined = dataclasses.replace(joined, gradients=present.listed(present.bucket))
    order = np.append(frozen_ops, np.flatnonzero(later))
    small = edits.without_empty(edits.arrange(joined, order, owner[waits_later], on[waits_later]))
    return edits.with_durations(small, np.arange(len(frozen_ops)), np.append(end_s[heads], elapsed_s))


@kernel
def _later(stream, transfer, dep_start, deps, is_later):
    """Return `is_later` and all successors, bool (ops,): by dependency, on a stream, in a transfer."""
    streams = np.zeros(stream.max() + 1, np.bool_)
    transfers = np.zeros(transfer.max() + 1, np.bool_)
    comes_later = is_later.copy()
    changed = True
    while changed:  # one pass if ops follow their dependencies and transfers' members are adjacent
        changed = False
        streams[:] = False
        for op in range(len(stream)):
            is_after = comes_later[op] or streams[stream[op]] or (transfer[op] >= 0 and transfers[transfer[op]])
            for i in range(dep_start[op], dep_start[op + 1]):
                is_after = is_after or comes_later[deps[i]]
            if is_after:
                changed = changed or not comes_later[op] or (transfer[op] >= 0 and not transfers[transfer[op]])
                comes_later[op] = True
                streams[stream[op]] = True
                if transfer[op] >= 0:
                    transfers[transfer[op]] = True
    return comes_later


def merged(joined: Joined) -> Joined:
    """Merge runs of ops that behave as one."""
    graph = joined.graph
    joins = continues_run(graph)
    final = np.array([op for op, _, _ in joined.gradients], np.int64)
    joins[final] = False  # buckets of other sizes may depend on these
    _, following = edits.on_stream(graph)
    joins[following[final][following[final] >= 0]] = False
    if not joins.any():
        return joined
    # The first op of each op's run: the last one on its stream that does not continue a run.
    order = np.argsort(graph.ops.stream, kind="stable")
    head = np.empty(len(order), np.int64)
    head[order] = order[np.maximum.accumulate(np.where(joins[order], 0, np.arange(len(order))))]
    elapsed_s = np.bincount(head, weights=edits.durations(joined), minlength=len(head))
    alone = np.flatnonzero(~joins & (graph.ops.transfer == NO_TRANSFER))
    owner, on = edits.edges(graph.ops)
    leads = ~joins[owner]
    longer = edits.with_durations(joined, alone, elapsed_s[alone])
    return edits.without_empty(edits.arrange(longer, np.flatnonzero(~joins), owner[leads], head[on[leads]]))


def folded(joined: Joined) -> Joined:
    """Fold each set of equivalent ranks into one."""
    present = gradients(joined)
    whole, small = joined.graph.ops.transfer, fold(joined.graph, joined.costs)
    if len(small.graph.ranks) == len(joined.graph.ranks):
        return joined
    _, stays = np.unique(small.op, return_index=True)
    transfer_of = {
        int(whole[op]): int(small.graph.ops.transfer[small.op[op]])
        for op in np.flatnonzero(np.isin(whole, present.transfers)).tolist()
    }
    rows = np.sort(np.unique(small.representative[present.rank], return_index=True)[1])
    folded_gradients = dataclasses.replace(present, op=small.op[present.op[rows]])
    return dataclasses.replace(
        joined,
        graph=small.graph,
        costs=small.costs,
        event=joined.event[stays],
        start_s=joined.start_s[stays],
        end_s=joined.end_s[stays],
        gradients=folded_gradients.listed(np.array([transfer_of[bucket] for bucket in present.bucket.tolist()])),
    )
