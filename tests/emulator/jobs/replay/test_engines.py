"""The two compiled engines against the plain simpy writing, on random jobs; and small jobs worked out by hand."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from emulator.jobs.replay.conditions import Conditions, Pause
from emulator.jobs.replay.engine import replay
from emulator.jobs.replay.reference import Reference
from emulator.jobs.workload.builder import GraphBuilder
from emulator.jobs.workload.checks import check
from emulator.jobs.workload.costs import Costs, Links
from emulator.jobs.workload.graph import Collective, Kind, Order
from switchml.errors import BudgetSpent, ConfigError, Deadlock
from tests.support import replay_graphs as graphs
from tests.support.examples import examples

thorough = examples(60, suppress_health_check=list(HealthCheck))


def agree(case, conditions=None, *, engine="auto", exactly=True):
    played = replay(case.graph, case.costs, conditions, engine=engine)
    reference = Reference(case.graph, case.costs, conditions)
    span_s = reference.run()
    same = (
        np.testing.assert_array_equal
        if exactly
        else lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
    )
    same(played.start_s, reference.start_s)
    same(played.end_s, reference.end_s)
    same(played.transfer_start_s, reference.transfer_start_s)
    same(played.makespan_s, span_s)
    return played


@thorough
@given(case=graphs.cases(), data=st.data())
def test_sweep_is_the_reference(case, data):
    conditions = data.draw(graphs.conditions(len(case.graph.ranks)))
    assert agree(case, conditions, exactly=False).engine == "sweep"


@thorough
@given(case=graphs.cases())
def test_both_engines_and_the_reference_are_equal_without_noise(case):
    agree(case, engine="sweep")
    agree(case, engine="calendar")


@thorough
@given(case=graphs.cases(orders=(Order.READY, Order.PROGRAM)))
def test_the_calendar_is_the_reference_where_streams_choose(case):
    agree(case, engine="calendar")


@thorough
@given(case=graphs.cases(with_links=True), data=st.data())
def test_the_calendar_is_the_reference_where_links_are_shared(case, data):
    conditions = data.draw(graphs.conditions(len(case.graph.ranks), overlap=True))
    agree(case, conditions, engine="calendar", exactly=False)


@thorough
@given(
    case=graphs.cases(orders=(Order.READY, Order.PROGRAM), with_links=True, durations=st.floats(0.01, 4.0)),
    data=st.data(),
)
def test_the_calendar_is_the_reference_with_everything_at_once(case, data):
    conditions = data.draw(graphs.conditions(len(case.graph.ranks), overlap=True))
    agree(case, conditions, engine="calendar", exactly=False)


# Small jobs by hand


def one_rank_each(*works_of_ranks, order=Order.PROGRAM):
    """A builder with a compute stream for each rank, and on it ops of 1 s × each number given."""
    builder = GraphBuilder()
    for seconds in works_of_ranks:
        stream = builder.add_stream(builder.add_rank(), order=order)
        for number, duration_s in enumerate(seconds):
            builder.add_op(stream, builder.add_op_type(f"{duration_s} s", seconds=duration_s), micro_batch=number)
    return builder


def play(builder, conditions=None, transfer_s=None, **options):
    graph = builder.build()
    check(graph)
    return replay(graph, Costs.of(graph, graph.op_types.seconds, transfer_s), conditions, **options)


def all_reduce(builder, after, seconds=2.0):
    """All ranks, each after one op of its own, on a stream of their own; returns the ops."""
    op_type = builder.add_op_type("all-reduce", Kind.COLLECTIVE, collective=Collective.ALL_REDUCE, seconds=seconds)
    transfer = builder.add_transfers(op_type, builder.add_group(range(len(after))))
    streams = [builder.add_stream(rank, "nccl") for rank in range(len(after))]
    return [
        builder.add_op(stream, op_type, after=[op], transfer=transfer)
        for stream, op in zip(streams, after, strict=True)
    ]


@pytest.mark.parametrize("engine", ["sweep", "calendar"])
def test_collective_waits_for_the_last_and_tells_waiting_from_transfer(engine):
    builder = one_rank_each([3.0], [5.0])
    all_reduce(builder, [0, 1])
    played = play(builder, engine=engine)
    assert played.start_s.tolist() == [0, 0, 3, 5]
    assert played.end_s.tolist() == [3, 5, 7, 7]
    assert played.transfer_start_s.tolist() == [5]
    assert played.transfer_last.tolist() == [3]
    assert played.wait_s().tolist() == [0, 0, 2, 0]
    assert (played.makespan_s, played.engine) == (7, engine)


@pytest.mark.parametrize("engine", ["sweep", "calendar"])
def test_conditions(engine):
    builder = one_rank_each([3.0], [5.0])
    pauses = (Pause(1, 1.0, 1.5), Pause(1, 4.0, 8.0))
    played = play(builder, Conditions(slowness={0: 2.0}, pauses=pauses), engine=engine)
    assert played.end_s.tolist() == [6, 9.5]
    assert play(builder, Conditions(start_s={0: 10.0}), engine=engine).end_s.tolist() == [13, 15]


@pytest.mark.parametrize("engine", ["sweep", "calendar"])
def test_jitter_keeps_the_mean_and_follows_the_seed(engine):
    builder = one_rank_each([1.0] * 20_000)
    one = play(builder, Conditions(jitter=0.3, seed=1), engine=engine)
    durations_s = one.end_s - one.start_s
    assert durations_s.mean() == pytest.approx(1, abs=0.01)
    assert durations_s.std() == pytest.approx(0.3, abs=0.01)
    assert play(builder, Conditions(jitter=0.3, seed=1), engine=engine).makespan_s == one.makespan_s
    assert play(builder, Conditions(jitter=0.3, seed=2), engine=engine).makespan_s != one.makespan_s


def test_stream_that_takes_what_is_ready():
    """Priority first, then who was ready first."""
    builder = GraphBuilder()
    stream = builder.add_stream(builder.add_rank(), order=Order.READY)
    late, urgent = builder.add_op_type("late", seconds=1.0), builder.add_op_type("urgent", seconds=1.0, priority=1)
    first = builder.add_op(stream, late)
    second = builder.add_op(stream, late)
    third = builder.add_op(stream, urgent, after=[first])
    assert play(builder).start_s[[first, second, third]].tolist() == [0, 2, 1]


def reads(routes, bytes_each, links):
    """One read for each route, all at once, over links of these rates."""
    builder = GraphBuilder()
    op_type = builder.add_op_type("read", Kind.LOAD, collective=Collective.READ)
    for rank in range(len(routes)):
        stream = builder.add_stream(builder.add_rank(), "loader")
        builder.add_op(stream, op_type, transfer=builder.add_transfers(op_type, builder.add_group([rank])))
    graph = builder.build()
    check(graph)
    costs = Costs(
        op_type_s=np.zeros(1),
        transfer_fixed_s=np.zeros(len(routes)),
        transfer_bytes=np.array(bytes_each, float),
        transfer_bytes_per_s=np.full(len(routes), np.inf),
        transfer_route=np.arange(len(routes), dtype=np.int32),
        links=Links(
            link_name=[f"link {i}" for i in range(len(links))],
            link_bytes_per_s=np.array(links, float),
            start=np.cumsum([0, *map(len, routes)]),
            link=np.array([link for route in routes for link in route], np.int32),
            share=np.ones(sum(map(len, routes))),
        ),
    )
    return graph, costs


def test_transfers_share_a_link_and_get_it_back():
    played = replay(*reads([[0], [0]], [10, 30], [10]))
    assert played.end_s.tolist() == [2, 4]
    assert played.engine == "calendar"
    alone = replay(*reads([[0], [0]], [10, 30], [10]), Conditions(share_links=False))
    assert alone.end_s.tolist() == [1, 3]
    assert alone.engine == "sweep"


def test_max_min_fairness():
    """Bertsekas and Gallager's picture: who crosses the narrow link gets half of it, the other link's rest goes to
    who is there alone."""
    played = replay(*reads([[0], [0, 1], [1]], [5, 5, 15], [10, 20]))
    assert played.end_s.tolist() == [1, 1, 1]


def test_communication_slows_compute():
    """The all-reduce from 1 s to 3 s overlaps the second kernel, which then has 2 s / 1.5 done and goes on alone."""
    builder = one_rank_each([1.0, 4.0])
    all_reduce(builder, [0])
    played = play(builder, Conditions(overlap_slowdown=0.5))
    assert played.end_s[1] == pytest.approx(3 + (4 - 2 / 1.5))
    assert played.engine == "calendar"


# What can't go on


@pytest.mark.parametrize("engine", ["sweep", "calendar"])
def test_ranks_that_call_collectives_in_different_order(engine):
    builder = one_rank_each([1.0], [1.0])
    streams = [builder.add_stream(rank, "nccl") for rank in range(2)]
    group = builder.add_group(range(2), name="world")
    op_types = [builder.add_op_type(name, Kind.COLLECTIVE, collective=1, seconds=1.0) for name in ("weights", "biases")]
    transfers = [builder.add_transfers(op_type, group) for op_type in op_types]
    for rank, order in ((0, (0, 1)), (1, (1, 0))):
        for which in order:
            builder.add_op(streams[rank], op_types[which], after=[rank], transfer=transfers[which])
    with pytest.raises(Deadlock) as caught:
        play(builder, engine=engine)
    assert caught.value.waiting == (
        "weights (world) has rank 0 and waits for rank 1: rank 1 is in biases (rank 1, nccl)",
        "biases (world) has rank 1 and waits for rank 0: rank 0 is in weights (rank 0, nccl)",
    )
    assert "4 of 6 ops can never run, after 1 s" in str(caught.value)


@pytest.mark.parametrize("engine", ["sweep", "calendar"])
def test_budgets(engine, monkeypatch):
    monkeypatch.setattr("emulator.jobs.replay.engine.SLICE", 1_000)
    builder = one_rank_each([0.5] * 10_000)
    seen = []
    with pytest.raises(BudgetSpent, match="not over after 4000 events: .* of 10000 ops done, its clock at") as caught:
        play(builder, engine=engine, event_budget=4_000, progress=lambda done, ops: seen.append((done, ops)))
    assert 4_000 <= caught.value.events <= 4_002
    assert seen[0][0] in (999, 1_000) and {ops for _, ops in seen} == {10_000}
    with pytest.raises(BudgetSpent, match="not over after 1e-06 s of wall-clock time"):
        play(builder, engine=engine, time_budget_s=1e-6)
    assert play(builder, engine=engine, event_budget=20_000, time_budget_s=60).makespan_s == 5_000


def test_refusals():
    builder = one_rank_each([1.0])
    with pytest.raises(ConfigError, match="unknown engine 'fast'"):
        play(builder, engine="fast")
    with pytest.raises(ConfigError, match="sweep engine can't replay this job: communication slows compute"):
        play(builder, Conditions(overlap_slowdown=0.1), engine="sweep")
    with pytest.raises(ConfigError, match="slowness names rank 3; the job has ranks 0 to 0"):
        play(builder, Conditions(slowness={3: 2.0}))
    with pytest.raises(ConfigError, match="two pauses of rank 0 overlap, from 1.0 s on"):
        play(builder, Conditions(pauses=(Pause(0, 0.0, 2.0), Pause(0, 1.0, 3.0))))
    for wrong in ({"jitter": -0.1}, {"slowness": {0: 0.0}}, {"pauses": (Pause(0, 2.0, 1.0),)}, {"start_s": {0: -1.0}}):
        with pytest.raises(ConfigError):
            Conditions(**wrong)


def test_empty_job():
    assert play(GraphBuilder()).makespan_s == 0


def test_deadlock_without_any_transfer_names_ops():
    """A circle that nobody checked for."""
    builder = GraphBuilder()
    op_type = builder.add_op_type("layer", seconds=1.0)
    for other in (1, 0):
        builder.add_op(builder.add_stream(builder.add_rank()), op_type, after=[other])
    graph = builder.build()
    with pytest.raises(Deadlock, match=r"layer \(rank 0, compute\) waits for layer \(rank 1, compute\)"):
        replay(graph, Costs.of(graph, graph.op_types.seconds))


def test_rank_that_never_comes_is_followed_back():
    """Rank 1 is in another collective, two ops before the one that rank 0 waits in."""
    builder = one_rank_each([1.0], [1.0])
    streams = [builder.add_stream(rank, "nccl") for rank in range(2)]
    group = builder.add_group(range(2), name="world")
    op_types = [builder.add_op_type(name, Kind.COLLECTIVE, collective=1, seconds=1.0) for name in ("weights", "biases")]
    first, second = (builder.add_transfers(op_type, group) for op_type in op_types)
    builder.add_op(streams[0], op_types[0], after=[0], transfer=first)
    stuck = builder.add_op(streams[1], op_types[1], after=[1], transfer=second)
    later = builder.add_op(1, builder.add_op_type("norm", seconds=1.0), after=[stuck])
    builder.add_op(streams[1], op_types[0], after=[later], transfer=first)
    builder.add_op(streams[0], op_types[1], after=[0], transfer=second)
    with pytest.raises(Deadlock) as caught:
        play(builder)
    assert caught.value.waiting[0] == (
        "weights (world) has rank 0 and waits for rank 1: rank 1 is in biases (rank 1, nccl)"
    )
