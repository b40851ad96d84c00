"""What would help, by hand."""

import pytest

from emulator.jobs.replay.conditions import Conditions
from emulator.jobs.replay.engine import replay
from emulator.jobs.workload.builder import GraphBuilder
from emulator.jobs.workload.costs import Costs
from emulator.jobs.workload.graph import Collective, Kind
from emulator.traces.whatif.faster import faster, what_if
from switchml.errors import ConfigError


def overlapped():
    """6 s of compute; after its first 2 s an all-reduce of 5 s beside the rest; 1 s of samples before everything."""
    builder = GraphBuilder()
    rank = builder.add_rank()
    compute, nccl, loader = (builder.add_stream(rank, name) for name in ("compute", "nccl", "loader"))
    loaded = builder.add_op(loader, builder.add_op_type("batch", Kind.LOAD, seconds=1.0))
    first = builder.add_op(compute, builder.add_op_type("one", seconds=2.0), after=[loaded])
    builder.add_op(compute, builder.add_op_type("two", seconds=4.0))
    reduce = builder.add_op_type("all-reduce", Kind.COLLECTIVE, collective=Collective.ALL_REDUCE, seconds=5.0)
    builder.add_op(nccl, reduce, after=[first], transfer=builder.add_transfers(reduce, builder.add_group([rank])))
    graph = builder.build()
    return replay(graph, Costs.of(graph, graph.op_types.seconds))


def test_what_helps():
    """8 s as it is. The network twice as fast leaves 1 + 6 s, compute being behind then; compute so fast 1 + 1 + 5."""
    played = overlapped()
    assert played.makespan_s == 8
    assert what_if(played) == {"compute": 7.0, "exposed communication": 7.0, "loading": 7.5}
    assert list(what_if(played, 10.0)) == ["compute", "exposed communication", "loading"]
    assert what_if(played, 10.0)["compute"] == pytest.approx(1 + 0.2 + 5)


def test_conditions_stay():
    played = overlapped()
    slow = replay(played.graph, played.costs, Conditions(slowness={0: 3.0}))
    assert what_if(slow)["loading"] == pytest.approx(slow.makespan_s - 1.5)


def test_nothing_twice_as_fast_is_nothing():
    played = overlapped()
    same = faster(played.graph, played.costs, "compression", 2.0)
    assert replay(played.graph, same).makespan_s == played.makespan_s
    for thing, factor in (("bubble", 2.0), ("compute", 0.0)):
        with pytest.raises(ConfigError):
            faster(played.graph, played.costs, thing, factor)
