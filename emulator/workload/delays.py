"""Puts something in front of an iteration: an op on a stream of its own for each rank, which all that begins there
waits for. So a stall that was found elsewhere (for samples, for a checkpoint) shows in the replay, its parts and its
timeline.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from emulator.workload.costs import Costs
from emulator.workload.graph import NO_MICRO_BATCH, NO_TRANSFER, Collective, Graph, Kind, Order, appended


def delayed(graph: Graph, costs: Costs, name: str, kind: Kind, seconds: float) -> tuple[Graph, Costs]:
    """`graph` with an op of `seconds` on each rank before everything else."""
    ops, streams, works = graph.ops, graph.streams, graph.works
    ranks, count = len(graph.ranks), len(ops)
    # What waits for nothing now waits for the new op of its rank: of a stream in program order its first op does, and
    # the others stand behind that.
    counts = np.diff(ops.dep_start)
    is_first = np.zeros(count, bool)
    is_first[np.unique(ops.stream, return_index=True)[1]] = True
    waits = (counts == 0) & (is_first | (streams.order[ops.stream] == Order.READY))
    new = np.arange(count, count + ranks, dtype=np.int32)
    dep_start = np.concatenate([[0], np.cumsum(counts + waits), np.full(ranks, len(ops.deps) + waits.sum())])
    deps = np.empty(dep_start[-1], np.int32)
    is_new = np.zeros(len(deps), bool)
    is_new[dep_start[:-1][:count][waits]] = True
    deps[is_new] = new[graph.op_rank()[waits]]
    deps[~is_new] = ops.deps
    none = {"collective": Collective.NONE, "flops": 0.0, "bytes": 0.0, "priority": 0, "is_source": False}
    return dataclasses.replace(
        graph,
        works=appended(works, name=[name], kind=kind, seconds=seconds, **none),
        streams=appended(streams, rank=np.arange(ranks), name=[name] * ranks, order=Order.PROGRAM),
        ops=dataclasses.replace(
            ops,
            work=np.append(ops.work, np.full(ranks, len(works), np.int32)),
            stream=np.append(ops.stream, np.arange(len(streams), len(streams) + ranks, dtype=np.int32)),
            transfer=np.append(ops.transfer, np.full(ranks, NO_TRANSFER, np.int32)),
            micro_batch=np.append(ops.micro_batch, np.full(ranks, NO_MICRO_BATCH, np.int32)),
            dep_start=dep_start.astype(np.int64),
            deps=deps,
        ),
    ), dataclasses.replace(costs, work_s=np.append(costs.work_s, seconds))
