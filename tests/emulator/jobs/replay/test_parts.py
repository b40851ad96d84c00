"""Where the time went: against a look at every quarter second on random jobs, and by hand."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given

from emulator.jobs.replay.conditions import Conditions
from emulator.jobs.replay.critical import critical_path
from emulator.jobs.replay.engine import replay
from emulator.jobs.replay.parts import COMMUNICATION, COMPUTE, IDLE, LOADING, PARTS, WAITING, parts
from emulator.jobs.workload.builder import GraphBuilder
from emulator.jobs.workload.costs import Costs
from emulator.jobs.workload.graph import Collective, Kind, Order
from emulator.lab.bench.replay import Shape, job
from tests.support import replay_graphs as graphs
from tests.support.examples import examples

random_jobs = examples(40, suppress_health_check=list(HealthCheck))


def looked_at(played):
    """Seconds by rank and part, from what each op does in the middle of each quarter of a second."""
    graph = played.graph
    active = {Kind.COMPUTE: COMPUTE, Kind.COLLECTIVE: COMMUNICATION, Kind.LOAD: LOADING}
    charged = np.zeros((len(graph.ranks), len(PARTS)))
    moves_s = np.where(graph.ops.transfer < 0, played.start_s, played.start_s + played.wait_s())
    kinds = [Kind(kind) for kind in graph.op_kind()]
    what_ops_do = list(zip(graph.op_rank().tolist(), kinds, played.start_s, moves_s, played.end_s, strict=True))
    for moment in np.arange(0.125, played.makespan_s, 0.25):
        seen = [[IDLE] for _ in graph.ranks.stage]
        for rank, kind, start_s, moved_s, end_s in what_ops_do:
            if start_s < moment < end_s:
                seen[rank].append(WAITING if moment < moved_s else active[kind])
        for rank, parts_seen in enumerate(seen):
            part = min(parts_seen)
            charged[rank, WAITING if part == IDLE else part] += 0.25
    return charged


@random_jobs
@given(case=graphs.cases(orders=(Order.PROGRAM, Order.READY)))
def test_parts_are_what_one_sees_and_sum_to_the_makespan(case):
    played = replay(case.graph, case.costs)
    found = parts(played)
    np.testing.assert_allclose(found.by_rank, looked_at(played), atol=1e-9)
    np.testing.assert_allclose(found.by_rank.sum(axis=1), played.makespan_s)
    assert np.all(found.communication_s >= found.by_rank[:, COMMUNICATION] - 1e-9)


@random_jobs
@given(case=graphs.cases(orders=(Order.PROGRAM, Order.READY)))
def test_critical_path_covers_the_makespan_without_gap_or_overlap(case):
    played = replay(case.graph, case.costs)
    path = critical_path(played)
    assert path.until_s[-1] == played.makespan_s
    assert path.from_s[0] == 0
    np.testing.assert_array_equal(path.from_s[1:], path.until_s[:-1])
    assert sum(path.by_part.values()) == pytest.approx(played.makespan_s)
    assert sum(path.by_op_type.values()) == pytest.approx(played.makespan_s)


def straggling():
    """Two ranks compute 3 s and 5 s and reduce in 2 s; rank 0 computes 1 s beside the transfer."""
    builder = GraphBuilder()
    reduce = builder.add_op_type("all-reduce", Kind.COLLECTIVE, collective=Collective.ALL_REDUCE, seconds=2.0)
    ranks = [builder.add_rank() for _ in range(2)]
    transfer = builder.add_transfers(reduce, builder.add_group(ranks))
    for rank, seconds in zip(ranks, (3.0, 5.0), strict=True):
        compute, nccl = builder.add_stream(rank), builder.add_stream(rank, "nccl")
        done = builder.add_op(compute, builder.add_op_type(f"backward of rank {rank}", seconds=seconds))
        builder.add_op(nccl, reduce, after=[done], transfer=transfer)
        if rank == 0:
            # Begins at 6 s: behind a delay of the host that ends then.
            gap = builder.add_op(
                builder.add_stream(rank, "host"), builder.add_op_type("gap", Kind.DELAY, seconds=3.0), after=[done]
            )
            builder.add_op(compute, builder.add_op_type("metrics", seconds=0.5), after=[gap])
    graph = builder.build()
    return replay(graph, Costs.of(graph, graph.op_types.seconds))


def test_parts_by_hand():
    played = straggling()
    found = parts(played)
    assert played.makespan_s == 7
    assert dict(zip(PARTS, found.by_rank[0].tolist(), strict=True)) == {
        "compute": 3.5, "compression": 0, "exposed communication": 1.5, "offload": 0, "waiting for peers": 2,
        "checkpoint": 0, "host": 0, "loading": 0, "bubble": 0,
    }  # fmt: skip
    assert found.mean() == {"compute": 4.25, "exposed communication": 1.75, "waiting for peers": 1.0}
    assert found.hidden_communication_s() == 0.25


def test_critical_path_by_hand():
    played = straggling()
    path = critical_path(played)
    assert [played.graph.op_name(op) for op in path.op] == [
        "backward of rank 1 (rank 1, compute)",
        "all-reduce (rank 1, nccl)",
    ]
    assert path.by_part == {"compute": 5.0, "exposed communication": 2.0}
    assert path.by_op_type == {"backward of rank 1": 5.0, "all-reduce": 2.0}


def test_bubble_of_a_pipeline():
    """1F1B with equal stages idles (p − 1)/(m + p − 1) of the time, sends being free."""
    graph, costs = job(Shape(tensor=1, stages=4, replicas=1, layers=4, micro_batches=12))
    seconds = [1.0 if name.startswith(("attention", "mlp")) else 0.0 for name in graph.op_types.name]
    played = replay(graph, Costs.of(graph, np.array(seconds)))
    found = parts(played)
    np.testing.assert_allclose(found.by_rank[:, IDLE], played.makespan_s * 3 / 15)
    assert set(found.mean()) == {"compute", "bubble"}


def test_folded_ranks_count_for_those_they_stand_for():
    shape = Shape(tensor=2, stages=4, replicas=2, layers=8, micro_batches=6)
    whole, folded = (parts(replay(*job(shape, folded=fold))).mean() for fold in (False, True))
    assert whole.keys() == folded.keys()
    assert all(whole[name] == pytest.approx(folded[name]) for name in whole)


def test_jobs_that_start_later_are_charged_from_then_on():
    graph, costs = job(Shape(tensor=1, stages=2, replicas=1, layers=2, micro_batches=2))
    early, late = (parts(replay(graph, costs, Conditions(start_s=start))).mean() for start in ({}, {0: 100.0}))
    assert all(early[name] == pytest.approx(late[name]) for name in early)
