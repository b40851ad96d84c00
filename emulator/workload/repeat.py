"""An iteration several times over: a rank begins the next one when all of its own ops of the one before are done."""

from __future__ import annotations

import dataclasses

import numpy as np

from emulator.workload.costs import Costs
from emulator.workload.delays import delayed
from emulator.workload.graph import NO_TRANSFER, Graph, Kind, Ops, Order, Transfers


def repeat(graph: Graph, costs: Costs, times: int) -> tuple[Graph, Costs]:
    """`graph` `times` times. Its ops are `times` blocks of as many, iteration by iteration; the last op of each rank in
    a block is one of no duration that stands between iterations."""
    graph, costs = delayed(graph, costs, "between iterations", Kind.DELAY, 0.0)
    ops, ranks, count, transfers = graph.ops, len(graph.ranks), len(graph.ops), len(graph.transfers)
    rank, last = _last(graph, count - ranks)
    # In later blocks the op between iterations waits for all that is last on its rank in the block before.
    counts = np.diff(ops.dep_start)
    later = counts.copy()
    later[count - ranks :] += np.bincount(rank, minlength=ranks)
    shift = np.arange(times)[:, None]
    deps = (np.concatenate([ops.deps, last - count]) + shift * count).astype(np.int32)
    deps[0, len(ops.deps) :] = 0
    return dataclasses.replace(
        graph,
        transfers=Transfers(work=np.tile(graph.transfers.work, times), group=np.tile(graph.transfers.group, times)),
        ops=Ops(
            work=np.tile(ops.work, times),
            stream=np.tile(ops.stream, times),
            transfer=np.where(ops.transfer == NO_TRANSFER, NO_TRANSFER, ops.transfer + shift * transfers)
            .ravel()
            .astype(np.int32),
            micro_batch=np.tile(ops.micro_batch, times),
            dep_start=np.concatenate([[0], np.cumsum(np.concatenate([counts, *[later] * (times - 1)]))]),
            deps=np.concatenate([ops.deps, deps[1:].ravel()]),
        ),
    ), dataclasses.replace(
        costs,
        **{
            name: np.tile(getattr(costs, name), times)
            for name in ("transfer_fixed_s", "transfer_bytes", "transfer_bytes_per_s", "transfer_route")
        },
    )


def _last(graph: Graph, count: int) -> tuple[np.ndarray, np.ndarray]:
    """(ranks, ops), by rank: of the first `count` ops the last on each stream in program order, and on others those
    that nothing waits for."""
    stream = graph.ops.stream[:count]
    final = count - 1 - np.unique(stream[::-1], return_index=True)[1]
    final = final[graph.streams.order[stream[final]] == Order.PROGRAM]
    is_awaited = np.zeros(len(graph.ops), bool)
    is_awaited[graph.ops.deps] = True
    loose = np.flatnonzero((graph.streams.order[stream] == Order.READY) & ~is_awaited[:count])
    ops = np.concatenate([final, loose])
    rank = graph.streams.rank[stream[ops]]
    order = np.argsort(rank, kind="stable")
    return rank[order], ops[order]
