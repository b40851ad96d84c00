"""`switchml bench replay`: the job it plays, and what it prints."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from emulator.bench.replay import Shape, competing, job, one_f_one_b
from emulator.replay.engine import replay
from emulator.replay.reference import Reference
from emulator.workload.checks import check
from emulator.workload.graph import Kind
from switchml.cli.main import cli


@pytest.mark.parametrize("folded", [False, True])
def test_job_is_whole(folded):
    shape = Shape(tensor=2, stages=4, replicas=2, layers=8, micro_batches=5)
    graph, costs = job(shape, folded=folded)
    check(graph)
    costs.check(graph)
    # A rank: 3 passes of 2 layers of 6 ops for each micro-batch, gradients, Adam; sends and receives at 3 boundaries.
    each_pipeline = 4 * (5 * 3 * 2 * 6 + 2) + 3 * 2 * 2 * 5
    assert len(graph.ops) == each_pipeline * (1 if folded else 4)
    assert graph.ranks.weight.sum() == shape.ranks
    assert (graph.groups.size[[name.startswith("tensor") for name in graph.groups.name]] == 2).all()
    sends = graph.op_kind() == Kind.SEND
    assert sends.sum() == (graph.op_kind() == Kind.RECV).sum() == 3 * 2 * 5 * (1 if folded else 4)


def test_competing_job_agrees_with_simpy():
    graph, costs = job(Shape(tensor=2, stages=4, replicas=2, layers=8, micro_batches=5))
    contested = competing(graph, costs)
    played = replay(*contested)
    assert played.engine == "calendar" and played.makespan_s != replay(graph, costs).makespan_s
    reference = Reference(*contested)
    assert np.isclose(reference.run(), played.makespan_s, rtol=1e-9)
    np.testing.assert_allclose(played.end_s, reference.end_s, rtol=1e-9)


@pytest.mark.parametrize("ops", [1_000, 30_000, 1_000_000])
def test_size_of_the_job(ops):
    shape = Shape.of_about(ops)
    assert 0.5 < shape.ranks * shape.micro_batches * 12 * 18 / ops < 2


def test_1f1b_order():
    """The second of three stages: one forward pass to fill, then by turns, then what is left."""
    assert one_f_one_b(3, 1, 3) == [
        ("forward", 0),
        ("forward", 1),
        ("backward", 0),
        ("forward", 2),
        ("backward", 1),
        ("backward", 2),
    ]
    for stage in range(4):
        order = one_f_one_b(4, stage, 2)
        assert sorted(order) == sorted((name, number) for name in ("forward", "backward") for number in range(2))


def test_command():
    result = CliRunner().invoke(cli, ["bench", "replay", "--ops", "1000", "--repeats", "1", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["ops_per_s"] > report["reference_ops_per_s"] > 0
    assert report["calendar_ops_per_s"] > 0 and report["competing_ops_per_s"] > 0 and report["ops"] > 500
    assert np.isclose(report["speedup"], report["ops_per_s"] / report["reference_ops_per_s"])
    table = CliRunner().invoke(cli, ["bench", "replay", "--ops", "1000", "--repeats", "1"])
    assert "plain simpy" in table.stdout and "ops/s" in table.stdout
