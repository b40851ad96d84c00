"""Loaders as a choice of a job: what stalls shows in its iteration."""

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given

from emulator.jobs.description import request
from emulator.jobs.emulate import emulate
from emulator.jobs.replay.engine import replay
from emulator.jobs.workload.checks import check
from emulator.jobs.workload.combine import delayed
from emulator.jobs.workload.graph import Kind, Order
from switchml.errors import ConfigError
from tests.support import replay_graphs as graphs
from tests.support.examples import examples

JOB = {"model": "resnet50", "cluster": "v100-summit", "job": {"gpus": 12, "micro_batch": 64}}


def emulated(**loading):
    return emulate(request({**JOB, "data": loading} if loading else JOB))


@examples(40, suppress_health_check=list(HealthCheck))
@given(case=graphs.cases(orders=(Order.PROGRAM, Order.READY)))
def test_delayed_jobs_are_the_same_later(case):
    graph, costs = delayed(case.graph, case.costs, "samples", Kind.LOAD, 2.5)
    check(
        dataclasses.replace(
            graph, op_types=dataclasses.replace(graph.op_types, is_source=np.ones(len(graph.op_types), bool))
        )
    )
    before, after = replay(case.graph, case.costs), replay(graph, costs)
    count = len(case.graph.ops)
    np.testing.assert_array_equal(after.start_s[:count], before.start_s + 2.5)
    np.testing.assert_array_equal(after.end_s[:count], before.end_s + 2.5)
    np.testing.assert_array_equal(after.end_s[count:], 2.5)


def test_stalls_are_the_part_loading():
    without = emulated()
    slow = emulated(loader="pytorch", samples=100_000, sample_bytes=20e6)
    assert slow.loading.stall_s > 0
    assert slow.iteration_s == pytest.approx(without.iteration_s + slow.loading.stall_s)
    assert slow.parts["loading"] == pytest.approx(slow.loading.stall_s)
    assert slow.parts["compute"] == pytest.approx(without.parts["compute"])
    assert slow.samples_per_s < without.samples_per_s
    figures = slow.to_json()
    assert figures["loading"]["hit_rate"] == 0
    assert any("100,000 samples of 20000 kB, loader pytorch" in line for line in figures["assumptions"])
    # Storage is what limits it: 64 samples a rank, six ranks to a node.
    node_s = 6 * 64 * 20e6 / slow.plan.cluster.storage.node_bytes_per_s
    assert slow.loading.busy_s == pytest.approx(node_s, rel=0.1)


def test_loaders_rank():
    """With buffers for half of the samples together, SOLAR reads least and stalls least."""
    found = {
        name: emulated(
            loader=name, samples=10_000, sample_bytes=20e6, epochs=4, buffer_bytes=20e6 * 10_000 / 12 / 2
        ).loading
        for name in ("pytorch", "lru", "nopfs", "solar")
    }
    assert found["solar"].hit_rate > found["lru"].hit_rate > found["pytorch"].hit_rate == 0
    assert found["solar"].stall_s < found["lru"].stall_s < found["pytorch"].stall_s
    assert found["solar"].storage_bytes < found["lru"].storage_bytes


def test_fast_storage_stalls_only_the_first_step():
    found = emulated(loader="pytorch", samples=76_800, sample_bytes=110e3, epochs=1)
    assert 0 < found.loading.stall_s < 0.02 * found.iteration_s


@pytest.mark.parametrize(("loading", "message"), [
    ({"loader": "dali"}, "unknown loader 'dali'; expected one of pytorch, lru, nopfs, solar"),
    ({"loader": "lru", "samples": 10**9}, "1,000,000,000 samples in 3 epochs are too many"),
    ({"loader": "lru", "samples": 10, "sample_bytes": 1.0}, "global batch of 768"),
])  # fmt: skip
def test_nonsense_is_refused(loading, message):
    with pytest.raises(ConfigError, match=message):
        emulated(**loading)
