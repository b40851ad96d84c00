"""Several jobs on one fabric: their graphs as one, in which only links are shared."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from emulator.workload.costs import NO_ROUTE, Costs, Links
from emulator.workload.graph import NO_TRANSFER, TABLES, Graph, Transfers, stacked
from switchml.errors import ConfigError, GraphError


def merge(graphs: Sequence[Graph], costs: Sequence[Costs]) -> tuple[Graph, Costs]:
    """One graph with the ranks of all jobs, one after the other, and what it costs. `ranks.device` stays what it is:
    place the jobs before. Fabrics must have the same links; a job without links shares none."""
    if not graphs or len(graphs) != len(costs):
        raise ConfigError(f"{len(graphs)} jobs with costs for {len(costs)}; expected at least one, and as many costs")
    names = [name for graph in graphs for name in graph.job_names]
    if len(set(names)) < len(names):
        names = [f"{name} {number}" for number, name in enumerate(names)]
    counts = {name: [len(getattr(graph, name)) for graph in graphs] for name in TABLES}
    counts["job_names"] = [len(graph.job_names) for graph in graphs]
    tables = {name: [getattr(graph, name) for graph in graphs] for name in TABLES}

    def shifted(table: str, column: str, into: str, none: int | None = None) -> np.ndarray:
        return _shifted([getattr(part, column) for part in tables[table]], counts[into], none)

    def runs(table: str, column: str) -> np.ndarray:
        return _joined_runs([getattr(part, column) for part in tables[table]])

    merged = Graph(
        works=stacked(tables["works"]),
        ranks=stacked(tables["ranks"], job=shifted("ranks", "job", "job_names")),
        streams=stacked(tables["streams"], rank=shifted("streams", "rank", "ranks")),
        groups=stacked(tables["groups"], start=runs("groups", "start"), ranks=shifted("groups", "ranks", "ranks")),
        transfers=Transfers(work=shifted("transfers", "work", "works"), group=shifted("transfers", "group", "groups")),
        ops=stacked(
            tables["ops"],
            work=shifted("ops", "work", "works"),
            stream=shifted("ops", "stream", "streams"),
            transfer=shifted("ops", "transfer", "transfers", NO_TRANSFER),
            dep_start=runs("ops", "dep_start"),
            deps=shifted("ops", "deps", "ops"),
        ),
        job_names=names,
    )
    each = ("work_s", "transfer_fixed_s", "transfer_bytes", "transfer_bytes_per_s")
    columns = {name: np.concatenate([getattr(cost, name) for cost in costs]) for name in each}
    routes = [len(cost.links.start) - 1 for cost in costs]
    route = _shifted([cost.transfer_route for cost in costs], routes, NO_ROUTE)
    return merged, Costs(**columns, transfer_route=route, links=_same_links([cost.links for cost in costs]))


def _shifted(parts: Sequence[np.ndarray], counts: Sequence[int], none: int | None = None) -> np.ndarray:
    """Numbers into tables that now stand behind each other, of `counts` records; `none` stays what it is."""
    first = np.concatenate([[0], np.cumsum(counts)])
    moved = [
        part if none is None else np.where(part == none, none - at, part)
        for part, at in zip(parts, first, strict=False)
    ]
    return np.concatenate([part + at for part, at in zip(moved, first, strict=False)]).astype(np.int32)


def _joined_runs(starts: Sequence[np.ndarray]) -> np.ndarray:
    """Where runs begin, of runs that now stand behind each other."""
    return np.concatenate([[0], *(np.diff(start) for start in starts)]).cumsum().astype(np.int64)


def _same_links(all_links: Sequence[Links]) -> Links:
    links = next((each for each in all_links if each.link_name), all_links[0])
    for each in all_links:
        same = each.link_name == links.link_name and np.array_equal(each.link_bytes_per_s, links.link_bytes_per_s)
        if each.link_name and not same:
            raise GraphError("jobs on one fabric must name the same links at the same rates")
    return Links(
        link_name=links.link_name,
        link_bytes_per_s=links.link_bytes_per_s,
        start=_joined_runs([each.start for each in all_links]),
        link=np.concatenate([each.link for each in all_links]).astype(np.int32),
        share=np.concatenate([each.share for each in all_links]),
    )
