"""Several iterations one after the other, as in a running job, whose ranks are late in one iteration and early in the
next. A mean iteration hides that: the slowest of several ranks takes longer on average than the slowest of their
averages.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from emulator.traces.align import Clocks, align
from emulator.traces.events import RankTrace
from emulator.traces.join import join, warm_up
from emulator.traces.joined import Joined
from emulator.traces.readers.tables import Numbers
from emulator.workload.combine import merge
from emulator.workload.costs import Costs
from emulator.workload.graph import Graph, rows
from switchml.errors import TraceError


def join_each(traces: Sequence[RankTrace], clocks: Clocks | None = None) -> list[Joined]:
    """Every iteration of its own, in order, without those in which profilers started."""
    clocks = align(sorted(traces, key=lambda trace: trace.rank)) if clocks is None else clocks
    steps = min((len(trace.steps) for trace in traces), default=0)
    if not steps:
        raise TraceError("the traces have no iterations")
    first = warm_up(traces)
    return [join(traces, iteration=step, clocks=clocks, check=step == first) for step in range(first, steps)]


def chain(iterations: Sequence[Joined]) -> tuple[Graph, Costs]:
    """One graph in which each rank goes on with the next iteration where it has ended the one before: streams of the
    same rank and name are one."""
    graph, costs = merge([one.graph for one in iterations], [one.costs for one in iterations])
    ranks = len(iterations[0].graph.ranks)
    for one in iterations:
        if len(one.graph.ranks) != ranks:
            raise TraceError(f"iterations of {ranks} and {len(one.graph.ranks)} ranks: expected those of one job")
    number, rank = Numbers(), graph.streams.rank % ranks
    stream_of = np.array([number[key] for key in zip(rank.tolist(), graph.streams.name, strict=True)], np.int32)
    _, streams = np.unique(stream_of, return_index=True)
    first = iterations[0].graph
    graph = dataclasses.replace(
        graph,
        ranks=first.ranks,
        job_names=first.job_names,
        streams=dataclasses.replace(rows(graph.streams, streams), rank=rank[streams]),
        groups=dataclasses.replace(graph.groups, ranks=graph.groups.ranks % ranks),
        ops=dataclasses.replace(graph.ops, stream=stream_of[graph.ops.stream]),
    )
    return graph, costs
