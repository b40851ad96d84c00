"""Folding equal ranks of any graph: the same times, op by op."""

import dataclasses

import numpy as np
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from emulator.jobs import iteration
from emulator.jobs.costing import plan
from emulator.jobs.description import load_cluster, load_model, request
from emulator.jobs.replay.conditions import Conditions
from emulator.jobs.replay.engine import replay
from emulator.jobs.replay.fold import fold
from emulator.jobs.workload.builder import GraphBuilder
from emulator.jobs.workload.checks import check
from emulator.jobs.workload.combine import merge
from emulator.jobs.workload.costs import Costs
from emulator.jobs.workload.graph import Collective, Kind, Order
from emulator.lab.bench.replay import Shape, competing, job
from tests.support import replay_graphs as graphs
from tests.support.examples import examples


def same_times(graph, costs, conditions=None):
    small = fold(graph, costs, conditions)
    whole, part = replay(graph, costs, conditions), replay(small.graph, small.costs, small.conditions)
    np.testing.assert_array_equal(whole.end_s, part.end_s[small.op])
    np.testing.assert_array_equal(whole.start_s, part.start_s[small.op])
    assert small.graph.ranks.weight.sum() == graph.ranks.weight.sum()
    return small


def copies(case, count):
    """The same ranks several times in one job."""
    graph, costs = merge([case.graph] * count, [case.costs] * count)
    one_job = dataclasses.replace(graph.ranks, job=np.zeros(len(graph.ranks), np.int32))
    return dataclasses.replace(graph, ranks=one_job, job_names=["job"], op_types=graph.op_types), costs


@examples(60, suppress_health_check=list(HealthCheck))
@given(case=graphs.cases(orders=(Order.PROGRAM, Order.READY)), count=st.integers(1, 3), data=st.data())
def test_times_stay_what_they_are(case, count, data):
    graph, costs = copies(case, count)
    # Copies of one work have numbers of their own in a merged graph; make them one again.
    of = len(case.graph.op_types)
    ops = dataclasses.replace(graph.ops, op_type=graph.ops.op_type % of)
    transfers = dataclasses.replace(graph.transfers, op_type=graph.transfers.op_type % of)
    graph = dataclasses.replace(graph, ops=ops, transfers=transfers)
    ranks = len(graph.ranks)
    slow = data.draw(st.dictionaries(st.integers(0, ranks - 1), st.sampled_from([0.5, 2.0]), max_size=2))
    small = same_times(graph, costs, Conditions(slowness=slow, overlap_slowdown=data.draw(st.sampled_from([0.0, 0.5]))))
    meets_when_chosen = (graph.streams.order[graph.ops.stream] == Order.READY) & (graph.ops.transfer >= 0)
    if not slow and not meets_when_chosen.any():
        assert len(small.graph.ranks) <= len(case.graph.ranks)


def test_a_transformer_folds_to_its_stages():
    graph, costs = job(Shape(tensor=2, stages=4, replicas=2, layers=8, micro_batches=5))
    small = same_times(graph, costs)
    assert small.graph.ranks.stage.tolist() == [0, 1, 2, 3]
    assert small.graph.ranks.weight.tolist() == [4.0] * 4
    assert set(small.graph.groups.size.tolist()) == {2}
    check(small.graph)


def test_a_straggler_keeps_apart_who_meets_it():
    graph, costs = job(Shape(tensor=4, stages=2, replicas=4, layers=2, micro_batches=3))
    small = same_times(graph, costs, Conditions(slowness={5: 2.0}))
    # Of each stage: itself (or who is at its place), its tensor-parallel peers, its data-parallel ones, all others.
    assert sorted(small.graph.ranks.weight.tolist()) == [1, 1, 3, 3, 3, 3, 9, 9]


def test_it_finds_what_the_generator_folds():
    asked = request({"model": "gpt3-125m", "job": {"gpus": 32, "tp": 2, "pp": 4, "batch": 32, "micro_batch": 1}})
    made = plan(load_model(asked), asked.job, load_cluster(asked))
    small = same_times(*iteration.build(made, "none"))
    by_hand = iteration.build(made, "all")[0]
    assert len(small.graph.ops) == len(by_hand.ops) and len(small.graph.ranks) == len(by_hand.ranks) == 4


def test_a_ring_folds_to_one_rank_that_meets_itself():
    builder = GraphBuilder()
    compute = builder.add_op_type("compute", seconds=1.0)
    send = builder.add_op_type("send", Kind.SEND, collective=Collective.P2P)
    ranks = [builder.add_rank() for _ in range(5)]
    streams = [[builder.add_stream(rank, name) for name in ("compute", "out", "in")] for rank in ranks]
    transfers = [builder.add_transfers(send, builder.add_group([rank, (rank + 1) % 5])) for rank in ranks]
    for rank in ranks:
        done = builder.add_op(streams[rank][0], compute)
        builder.add_op(streams[rank][1], send, after=[done], transfer=transfers[rank])
        builder.add_op(streams[rank][2], send, after=[done], transfer=transfers[rank - 1])
    graph = builder.build()
    small = same_times(graph, Costs.of(graph, graph.op_types.seconds, np.full(5, 0.5)))
    assert len(small.graph.ranks) == 1 and len(small.graph.transfers) == 1


def test_nothing_is_folded_where_ranks_may_come_to_differ():
    graph, costs = job(Shape(tensor=2, stages=2, replicas=2, layers=2, micro_batches=2))
    for case in ((graph, costs, Conditions(jitter=0.1)), competing(graph, costs)):
        small = fold(*case)
        assert len(small.graph.ops) == len(graph.ops)
        assert replay(small.graph, small.costs, small.conditions).makespan_s == replay(*case).makespan_s
