"""`switchml bench replay`: the job it plays, and what it prints."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from emulator.jobs.replay.engine import replay
from emulator.jobs.replay.reference import Reference
from emulator.jobs.workload.checks import check
from emulator.jobs.workload.graph import Kind
from emulator.lab.bench.replay import OPS_A_LAYER, Shape, competing, job
from switchml.cli.main import cli


def test_job_is_whole():
    shape = Shape(tensor=2, stages=4, replicas=2, layers=8, micro_batches=5)
    graph, costs = job(shape)
    check(graph)
    costs.check(graph)
    # A rank: 3 passes of 2 layers of 4 ops for each micro-batch, start, gradients, Adam; at the ends of the pipeline
    # embedding and loss, forward and backward; sends and receives at 3 boundaries.
    assert OPS_A_LAYER == 3 * 4
    each_pipeline = 4 * (5 * 3 * 2 * 4 + 3) + 2 * 2 * 5 + 3 * 2 * 2 * 5
    assert len(graph.ops) == each_pipeline * 4
    assert graph.ranks.weight.sum() == shape.ranks
    assert (graph.groups.size[[name.startswith("tensor") for name in graph.groups.name]] == 2).all()
    sends = graph.op_kind() == Kind.SEND
    assert sends.sum() == (graph.op_kind() == Kind.RECV).sum() == 3 * 2 * 5 * 4


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
    assert 0.5 < shape.ranks * shape.micro_batches * 12 * OPS_A_LAYER / ops < 2


def test_command():
    result = CliRunner().invoke(cli, ["bench", "replay", "--ops", "1000", "--repeats", "1", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["ops_per_s"] > report["reference_ops_per_s"] > 0
    assert report["calendar_ops_per_s"] > 0 and report["competing_ops_per_s"] > 0 and report["ops"] > 500
    assert np.isclose(report["speedup"], report["ops_per_s"] / report["reference_ops_per_s"])
    table = CliRunner().invoke(cli, ["bench", "replay", "--ops", "1000", "--repeats", "1"])
    assert "plain simpy" in table.stdout and "ops/s" in table.stdout
