"""Consecutive iterations, as in a running job, in which different ranks are late and hosts run ahead. A mean iteration
hides this: on average the slowest of several ranks is slower than the slowest of their averages.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from emulator.jobs.workload.combine import merge
from emulator.jobs.workload.costs import Costs
from emulator.jobs.workload.graph import Graph, Ops, rows
from emulator.traces.joined import GAP, Joined
from emulator.traces.readers.tables import Numbers
from switchml.errors import TraceError


def chain(iterations: Sequence[Joined]) -> tuple[Graph, Costs]:
    """Return one graph in which each rank continues with the next iteration where the previous one ended: streams of
    the same rank and name are merged, dependencies on events of earlier iterations (`Joined.earlier`) become
    dependencies on their ops, and a thread without dependencies begins together with its rank's main thread."""
    graph, costs = merge([one.graph for one in iterations], [one.costs for one in iterations])
    ranks = len(iterations[0].graph.ranks)
    for one in iterations:
        if len(one.graph.ranks) != ranks:
            raise TraceError(f"iterations of {ranks} and {len(one.graph.ranks)} ranks: expected those of one job")
    owner, on = _across(iterations)
    number, rank = Numbers(), graph.streams.rank % ranks
    stream_of = np.array([number[key] for key in zip(rank.tolist(), graph.streams.name, strict=True)], np.int32)
    _, streams = np.unique(stream_of, return_index=True)
    first = iterations[0].graph
    ops = _with_edges(graph.ops, owner, on)
    graph = dataclasses.replace(
        graph,
        ranks=first.ranks,
        job_names=first.job_names,
        streams=dataclasses.replace(rows(graph.streams, streams), rank=rank[streams]),
        groups=dataclasses.replace(graph.groups, ranks=graph.groups.ranks % ranks),
        ops=dataclasses.replace(ops, stream=stream_of[ops.stream]),
    )
    return graph, costs


def _across(iterations: Sequence[Joined]) -> tuple[np.ndarray, np.ndarray]:
    """Return ops of the merged graph, and the ops of earlier iterations that they depend on, int64 (edges,) each."""
    begins = np.cumsum([0, *(len(one.graph.ops) for one in iterations)])
    most = 1 + max((int(one.event.max(initial=0)) for one in iterations), default=0)
    key = np.concatenate([np.where(one.event == GAP, -1, one.graph.op_rank() * most + one.event) for one in iterations])
    by_key = np.argsort(key, kind="stable")
    pairs = [np.empty((2, 0), np.int64)]
    for before, one, begin in zip(iterations[:-1], iterations[1:], begins[1:-1].tolist(), strict=True):
        op, event = one.earlier.T
        wanted = one.graph.op_rank()[op] * most + event
        place = np.searchsorted(key[by_key], wanted, side="right") - 1
        awaited = by_key[np.maximum(place, 0)]
        is_there = (place >= 0) & (key[awaited] == wanted) & (awaited < begin)
        pairs.append(np.stack([op[is_there] + begin, awaited[is_there]]))
        starts = _beginning(one)
        last = _last_on_main(before)[one.graph.op_rank()[starts]]
        pairs.append(np.stack([starts[last >= 0] + begin, last[last >= 0] + begin - len(before.graph.ops)]))
    owner, on = np.concatenate(pairs, axis=1)
    return owner, on


def _beginning(joined: Joined) -> np.ndarray:
    """Return the first op of each stream if it has no dependencies, without those of main threads, int64."""
    ops = joined.graph.ops
    _, first = np.unique(ops.stream, return_index=True)
    waits = np.diff(ops.dep_start) > 0
    waits[joined.earlier[:, 0]] = True
    return first[~waits[first] & ~np.isin(ops.stream[first], joined.main)]


def _last_on_main(joined: Joined) -> np.ndarray:
    """Return the last op of each rank's main thread, int64 (ranks,), -1 if there is none or the main thread is
    unknown."""
    last = np.full(len(joined.graph.streams), -1, np.int64)
    last[joined.graph.ops.stream] = np.arange(len(joined.graph.ops))
    return last[joined.main] if len(joined.main) else np.full(len(joined.graph.ranks), -1, np.int64)


def _with_edges(ops: Ops, owner: np.ndarray, on: np.ndarray) -> Ops:
    """Return `ops` with additional dependencies of op `owner[i]` on op `on[i]`."""
    every = np.concatenate([np.repeat(np.arange(len(ops)), np.diff(ops.dep_start)), owner])
    order = np.argsort(every, kind="stable")
    return dataclasses.replace(
        ops,
        dep_start=np.searchsorted(every[order], np.arange(len(ops) + 1)).astype(np.int64),
        deps=np.concatenate([ops.deps, on])[order].astype(np.int32),
    )
