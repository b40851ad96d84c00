"""Combines graphs: an op before an iteration, a repeated iteration, several jobs on one fabric."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from emulator.jobs.workload.costs import TRANSFER_COLUMNS, Costs, Links
from emulator.jobs.workload.graph import (
    NO_MICRO_BATCH,
    NO_TRANSFER,
    TABLES,
    Collective,
    Graph,
    Kind,
    Order,
    appended,
    stacked,
)
from switchml.errors import ConfigError, GraphError

REFERENCES = {
    "ranks": {"job": "job_names"},
    "streams": {"rank": "ranks"},
    "groups": {"ranks": "ranks"},
    "transfers": {"op_type": "op_types", "group": "groups"},
    "ops": {"op_type": "op_types", "stream": "streams", "transfer": "transfers", "deps": "ops"},
}
"""Table → column → the table that its numbers index; -1 is none."""
RUNS = {"groups": "start", "ops": "dep_start"}
"""Table → column with the start of each record's run of entries."""


def delayed(graph: Graph, costs: Costs, name: str, kind: Kind, seconds: float) -> tuple[Graph, Costs]:
    """Return `graph` with an op of `seconds` on each rank before everything else, on a separate stream, so that a stall
    computed elsewhere (for samples, for a checkpoint) appears in the replay, its parts and its timeline."""
    ops, streams, op_types = graph.ops, graph.streams, graph.op_types
    ranks, count = len(graph.ranks), len(ops)
    # Ops without dependencies now wait for the new op of their rank; on a stream in program order that is only the
    # first op, as the others follow it.
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
        op_types=appended(op_types, name=[name], kind=kind, seconds=seconds, **none),
        streams=appended(streams, rank=np.arange(ranks), name=[name] * ranks, order=Order.PROGRAM),
        ops=dataclasses.replace(
            ops,
            op_type=np.append(ops.op_type, np.full(ranks, len(op_types), np.int32)),
            stream=np.append(ops.stream, np.arange(len(streams), len(streams) + ranks, dtype=np.int32)),
            transfer=np.append(ops.transfer, np.full(ranks, NO_TRANSFER, np.int32)),
            micro_batch=np.append(ops.micro_batch, np.full(ranks, NO_MICRO_BATCH, np.int32)),
            dep_start=dep_start.astype(np.int64),
            deps=deps,
        ),
    ), dataclasses.replace(costs, op_type_s=np.append(costs.op_type_s, seconds))


def repeat(graph: Graph, costs: Costs, times: int) -> tuple[Graph, Costs]:
    """Return `graph` repeated `times` times. Its ops are `times` equal blocks, iteration by iteration; the last op of
    each rank in a block has no duration and separates iterations."""
    graph, costs = delayed(graph, costs, "between iterations", Kind.DELAY, 0.0)
    ops, ranks, count, transfers = graph.ops, len(graph.ranks), len(graph.ops), len(graph.transfers)
    rank, last = _last(graph, count - ranks)
    # In later blocks the separating op waits for all final ops of its rank in the block before.
    counts = np.diff(ops.dep_start)
    later = counts.copy()
    later[count - ranks :] += np.bincount(rank, minlength=ranks)
    shift = np.arange(times)[:, None]
    deps = (np.concatenate([ops.deps, last - count]) + shift * count).astype(np.int32)
    deps[0, len(ops.deps) :] = 0
    repeated = stacked(
        [ops] * times,
        transfer=_shifted([ops.transfer] * times, [transfers] * times),
        dep_start=np.concatenate([[0], np.cumsum(np.concatenate([counts, *[later] * (times - 1)]))]),
        deps=np.concatenate([ops.deps, deps[1:].ravel()]),
    )
    tiled: dict[str, Any] = {name: np.tile(getattr(costs, name), times) for name in TRANSFER_COLUMNS}
    graph = dataclasses.replace(graph, transfers=stacked([graph.transfers] * times), ops=repeated)
    return graph, dataclasses.replace(costs, **tiled)


def _last(graph: Graph, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (ranks, ops), by rank: of the first `count` ops, the last on each stream in program order, and on other
    streams those without dependents."""
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


def merge(graphs: Sequence[Graph], costs: Sequence[Costs]) -> tuple[Graph, Costs]:
    """Return one graph with the ranks of all jobs in sequence, and its costs. `ranks.device` is unchanged: place the
    jobs before. Fabrics must have the same links; a job without links shares none."""
    if not graphs or len(graphs) != len(costs):
        raise ConfigError(f"{len(graphs)} jobs with costs for {len(costs)}; expected at least one, and as many costs")
    names = [name for graph in graphs for name in graph.job_names]
    if len(set(names)) < len(names):
        names = [f"{name} {number}" for number, name in enumerate(names)]
    counts = {name: [len(getattr(graph, name)) for graph in graphs] for name in (*TABLES, "job_names")}

    def behind_each_other(table: str) -> Any:
        parts = [getattr(graph, table) for graph in graphs]
        columns = {
            column: _shifted([getattr(part, column) for part in parts], counts[into])
            for column, into in REFERENCES.get(table, {}).items()
        }
        if table in RUNS:
            columns[RUNS[table]] = _joined_runs([getattr(part, RUNS[table]) for part in parts])
        return stacked(parts, **columns)

    merged = Graph(**{table: behind_each_other(table) for table in TABLES}, job_names=names)
    each = ("op_type_s", *TRANSFER_COLUMNS)
    columns = {name: np.concatenate([getattr(cost, name) for cost in costs]) for name in each}
    routes = [len(cost.links.start) - 1 for cost in costs]
    columns["transfer_route"] = _shifted([cost.transfer_route for cost in costs], routes)
    return merged, Costs(**columns, links=_same_links([cost.links for cost in costs]))


def _shifted(parts: Sequence[np.ndarray], counts: Sequence[int]) -> np.ndarray:
    """Return numbers adjusted to concatenated tables of `counts` records, int32; -1 is preserved."""
    first = np.cumsum(counts) - counts
    moved = [np.where(part < 0, part, part + at) for part, at in zip(parts, first, strict=True)]
    return np.concatenate(moved).astype(np.int32)


def _joined_runs(starts: Sequence[np.ndarray]) -> np.ndarray:
    """Return where runs begin in the concatenation of their tables."""
    return np.concatenate([[0], *(np.diff(start) for start in starts)]).cumsum().astype(np.int64)


def _same_links(all_links: Sequence[Links]) -> Links:
    links = next((each for each in all_links if each.link_name), all_links[0])
    for each in all_links:
        same = each.link_name == links.link_name and np.array_equal(each.link_bytes_per_s, links.link_bytes_per_s)
        if each.link_name and not same:
            raise GraphError("jobs on one fabric must have the same links at the same rates")
    return dataclasses.replace(
        links,
        start=_joined_runs([each.start for each in all_links]),
        link=np.concatenate([each.link for each in all_links]).astype(np.int32),
        share=np.concatenate([each.share for each in all_links]),
    )
