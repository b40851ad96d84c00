"""Random jobs for hypothesis: some ranks with streams of both orders, ops with dependencies on earlier ones of their
rank, and transfers that all members reach in one global order, so that nothing deadlocks."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from emulator.jobs.replay.conditions import Conditions, Pause
from emulator.jobs.workload.builder import GraphBuilder
from emulator.jobs.workload.costs import NO_ROUTE, Costs, Links
from emulator.jobs.workload.graph import Collective, Graph, Kind, Order

DYADIC = st.integers(0, 16).map(lambda quarters: quarters / 4)
"""Durations whose sums are exact, so that ties are ties in every engine."""


@dataclass
class Case:
    graph: Graph
    costs: Costs


@st.composite
def cases(draw, orders=(Order.PROGRAM,), with_links=False, durations=DYADIC):
    builder = GraphBuilder()
    ranks = draw(st.integers(1, 4))
    streams = []
    for _ in range(ranks):
        rank = builder.add_rank()
        names = [f"stream {i}" for i in range(draw(st.integers(1, 3)))]
        streams.append([builder.add_stream(rank, name, draw(st.sampled_from(orders))) for name in names])
    op_types = [
        builder.add_op_type(
            f"work {i}", draw(st.sampled_from([Kind.COMPUTE, Kind.LOAD])), priority=draw(st.integers(0, 2))
        )
        for i in range(4)
    ]
    reduces = [
        builder.add_op_type(
            f"reduce {i}", Kind.COLLECTIVE, collective=Collective.ALL_REDUCE, priority=draw(st.integers(0, 2))
        )
        for i in range(2)
    ]
    groups = []
    for _ in range(draw(st.integers(1, 3))):
        groups.append(sorted(draw(st.sets(st.integers(0, ranks - 1), min_size=1))))
        builder.add_group(groups[-1])
    done = [[] for _ in range(ranks)]

    def add(rank, op_type, transfer):
        earlier = draw(st.sets(st.sampled_from(done[rank]), max_size=3)) if done[rank] else set()
        stream = draw(st.sampled_from(streams[rank]))
        done[rank].append(builder.add_op(stream, op_type, after=sorted(earlier), transfer=transfer))

    for _ in range(draw(st.integers(1, 25))):
        if draw(st.booleans()):
            add(draw(st.integers(0, ranks - 1)), draw(st.sampled_from(op_types)), -1)
        else:
            group = draw(st.integers(0, len(groups) - 1))
            op_type = draw(st.sampled_from(reduces))
            transfer = builder.add_transfers(op_type, group)
            for rank in groups[group]:
                add(rank, op_type, transfer)
    graph = builder.build()
    transfers = len(graph.transfers)
    op_type_s = draw(st.lists(durations, min_size=len(graph.op_types), max_size=len(graph.op_types)))
    costs = Costs.of(graph, op_type_s, np.array([draw(durations) for _ in range(transfers)]))
    if with_links:
        links = draw(st.integers(1, 3))
        routes = [sorted(draw(st.sets(st.integers(0, links - 1), min_size=1))) for _ in range(draw(st.integers(1, 3)))]
        hops = [link for route in routes for link in route]
        links = Links(
            link_name=[f"link {i}" for i in range(links)],
            link_bytes_per_s=np.array([draw(st.sampled_from([1.0, 2.0, 5.0])) for _ in range(links)]),
            start=np.cumsum([0, *map(len, routes)]),
            link=np.array(hops, np.int32),
            share=np.array([draw(st.sampled_from([0.5, 1.0, 2.0])) for _ in hops]),
        )
        costs = Costs(
            op_type_s=costs.op_type_s,
            transfer_fixed_s=costs.transfer_fixed_s,
            transfer_bytes=np.array([float(draw(st.integers(0, 9))) for _ in range(transfers)]),
            transfer_bytes_per_s=np.array([draw(st.sampled_from([0.5, 1.5, np.inf])) for _ in range(transfers)]),
            transfer_route=np.array([draw(st.integers(NO_ROUTE, len(routes) - 1)) for _ in range(transfers)], np.int32),
            links=links,
        )
        unlimited = (costs.transfer_route == NO_ROUTE) & np.isinf(costs.transfer_bytes_per_s)
        costs.transfer_bytes_per_s[unlimited] = 3.0
    return Case(graph, costs)


@st.composite
def conditions(draw, ranks, overlap=False):
    slowness = draw(st.dictionaries(st.integers(0, ranks - 1), st.sampled_from([0.5, 1.5, 3.0]), max_size=2))
    pauses = []
    for rank in draw(st.sets(st.integers(0, ranks - 1), max_size=2)):
        at_s = 0.0
        for _ in range(draw(st.integers(1, 2))):
            from_s = at_s + draw(st.integers(0, 12)) / 4
            at_s = from_s + draw(st.integers(0, 8)) / 4
            pauses.append(Pause(rank, from_s, at_s))
    return Conditions(
        slowness=slowness,
        jitter=draw(st.sampled_from([0.0, 0.2])),
        comm_jitter=draw(st.sampled_from([0.0, 0.3])),
        seed=draw(st.integers(0, 3)),
        pauses=tuple(pauses),
        overlap_slowdown=draw(st.sampled_from([0.0, 0.5])) if overlap else 0.0,
    )
