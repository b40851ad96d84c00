"""Graphs: what a builder makes, op by op and in blocks, and what `check` finds wrong."""

import dataclasses
import tracemalloc

import numpy as np
import pytest

from emulator.jobs.workload.builder import GraphBuilder
from emulator.jobs.workload.checks import check
from emulator.jobs.workload.costs import Costs
from emulator.jobs.workload.graph import Collective, Kind, appended
from switchml.errors import ConfigError, GraphError


def two_ranks(members=(0, 1), after_backward=True):
    """A backward pass on each of two ranks, then an all-reduce that `members` take part in."""
    builder = GraphBuilder()
    backward = builder.add_op_type("backward", flops=1e9)
    reduce = builder.add_op_type("all-reduce", Kind.COLLECTIVE, collective=Collective.ALL_REDUCE, bytes=4096)
    ranks = [builder.add_rank() for _ in range(2)]
    transfer = builder.add_transfers(reduce, builder.add_group(ranks, name="data parallel"))
    for rank in ranks:
        done = builder.add_op(builder.add_stream(rank), backward, micro_batch=3)
        stream = builder.add_stream(rank, "nccl")
        if rank in members:
            builder.add_op(stream, reduce, after=[done] if after_backward else [], transfer=transfer)
    return builder


def changed(graph, **arrays):
    return dataclasses.replace(graph, ops=dataclasses.replace(graph.ops, **arrays))


def test_tables():
    graph = two_ranks().build()
    check(graph)
    assert len(graph.ops) == 4
    assert graph.op_rank().tolist() == [0, 0, 1, 1]
    assert graph.op_kind().tolist() == [Kind.COMPUTE, Kind.COLLECTIVE] * 2
    assert graph.ops.before(3).tolist() == [2]
    assert graph.op_name(2) == "backward, micro-batch 3 (rank 1, compute)"
    assert graph.groups.members(0).tolist() == [0, 1]
    assert graph.stages() == 1


def test_same_work_has_one_number():
    builder = GraphBuilder()
    assert builder.add_op_type("layer", flops=1.0) == builder.add_op_type("layer", flops=1.0) == 0
    assert builder.add_op_type("layer", flops=2.0) == 1
    assert builder.add_op_type("layer", flops=1.0, seconds=1.0) == 2


def test_one_long_name_takes_its_room_once():
    # Kernels of templates have names of thousands of characters; an array of strings gives as much to every other one.
    builder, count = GraphBuilder(), 5000
    long = builder.add_op_type("kernel" * 1000)
    for number in range(count):
        builder.add_op_type(f"kernel {number % 7}", seconds=float(number))
    op_types = builder.build().op_types
    tracemalloc.start()
    longer = appended(op_types, **(vars(op_types) | {"priority": 1}))
    names, number = longer.by_name()
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 400 * count
    assert len(longer) == 2 * (count + 1) and longer.priority.tolist() == [0] * (count + 1) + [1] * (count + 1)
    assert len(names) == 8 and [names[each] for each in number] == longer.name
    assert np.flatnonzero(number == number[long]).tolist() == [long, long + count + 1]


def test_blocks_are_the_same_as_ops_one_by_one():
    one_by_one, in_blocks = GraphBuilder(), GraphBuilder()
    for builder in (one_by_one, in_blocks):
        builder.add_op_type("a")
        builder.add_op_type("b")
        for _ in range(3):
            builder.add_stream(builder.add_rank())
    for rank in range(3):
        first = one_by_one.add_op(rank, 0, micro_batch=0)
        second = one_by_one.add_op(rank, 1, after=[first], micro_batch=1)
        one_by_one.add_op(rank, 0, after=[first, second], micro_batch=2)
        in_blocks.add_ops(
            np.full(3, rank), np.array([0, 1, 0]), np.full(3, -1), np.arange(3), np.array([0, 0, 1, 3]),
            np.array([0, 0, 1]),
        )  # fmt: skip
    for name in ("op_type", "stream", "transfer", "micro_batch", "dep_start", "deps"):
        np.testing.assert_array_equal(getattr(one_by_one.build().ops, name), getattr(in_blocks.build().ops, name))


@pytest.mark.parametrize("amounts", [{"flops": -1.0}, {"bytes": float("inf")}, {"seconds": -0.5}])
def test_builder_refuses_nonsense(amounts):
    with pytest.raises(ConfigError, match="'layer' has"):
        GraphBuilder().add_op_type("layer", **amounts)


def of_two(*ops, **options):
    """Those of two ranks with another one each: its stream, or None for one of a third rank, and what is known."""
    builder = two_ranks(**options)
    builder.add_op_type("receive", Kind.RECV)
    for stream, op_type, known in ops:
        builder.add_op(builder.add_stream(builder.add_rank()) if stream is None else stream, op_type, **known)
    return builder


def in_circles(streams, *after):
    """One op after the other, in `streams`, each of a rank of its own; `after` is what each waits for."""
    builder = GraphBuilder()
    op_type = builder.add_op_type("layer")
    made = [builder.add_stream(builder.add_rank()) for _ in range(max(streams) + 1)]
    for number, (stream, causes) in enumerate(zip(streams, after, strict=True)):
        builder.add_op(made[stream], op_type, after=causes, micro_batch=number)
    return builder


@pytest.mark.parametrize(
    ("builder", "message"),
    [
        (of_two(members=(0,)), r"'all-reduce' \(transfer 0, data parallel\) has 1 members, expected 2; .*rank 1"),
        (of_two((1, 1, {"after": [0], "transfer": 0}), members=(0,)), "rank 0 takes part twice"),
        (
            of_two((None, 1, {"after": [0], "transfer": 0}), members=(0,)),
            "rank 2, compute.* takes part in a transfer of data parallel",
        ),
        (of_two(after_backward=False), "2 communication ops depend on nothing .* first: all-reduce"),
        (of_two((0, 2, {})), "receive .* takes part in no transfer"),
        (
            in_circles([0, 0, 1], [], [2], [1]),
            r"in a cycle: layer, micro-batch 1 \(rank 0.*, layer, micro-batch 2 \(rank 1",
        ),
        (in_circles([0, 0], [1], []), "cycle: layer, micro-batch 0 .*layer, micro-batch 1"),  # by their stream
    ],
)
def test_what_can_never_run_is_named(builder, message):
    with pytest.raises(GraphError, match=message):
        check(builder.build())


def test_communication_that_may_start_by_itself():
    builder = GraphBuilder()
    gather = builder.add_op_type("gather", Kind.COLLECTIVE, collective=Collective.ALL_GATHER, bytes=1.0, is_source=True)
    stream = builder.add_stream(builder.add_rank())
    builder.add_op(stream, gather, transfer=builder.add_transfers(gather, builder.add_group([0])))
    check(builder.build())


def test_later_op_may_be_waited_for():
    check(in_circles([0, 1], [1], []).build())


@pytest.mark.parametrize(("arrays", "message"), [
    ({"op_type": [0, 1, 0, 7]}, "op 3 names an op type 7, but there are 2"),
    ({"stream": [0, 1, -1, 3]}, "op 2 names a stream -1, but there are 4"),
    ({"transfer": [-1, 5, -1, 0]}, "op 1 names a transfer 5, but there are 1"),
    ({"deps": [0, 9]}, "dependency 1 names an op to wait for 9, but there are 4"),
    ({"micro_batch": [0]}, "different lengths"),
    ({"dep_start": [0, 0, 1, 1, 1]}, "dep_start must rise from 0 to the 2"),
])  # fmt: skip
def test_numbers_out_of_range(arrays, message):
    graph = two_ranks().build()
    with pytest.raises(GraphError, match=message):
        check(changed(graph, **{name: np.array(values) for name, values in arrays.items()}))


def test_costs_must_cover_what_is_done():
    graph = two_ranks().build()
    Costs.of(graph, [1.0, 2.0]).check(graph)
    Costs.of(graph, [1.0, np.nan], transfer_s=[2.0]).check(graph)
    with pytest.raises(GraphError, match="op type 'backward' has no cost"):
        Costs.of(graph, [np.nan, 2.0]).check(graph)
    with pytest.raises(GraphError, match="'all-reduce' .transfer 0. has no cost"):
        Costs.of(graph, [1.0, np.nan]).check(graph)
    with pytest.raises(GraphError, match="for 1 op types"):
        Costs.of(graph, [1.0], transfer_s=[2.0]).check(graph)
