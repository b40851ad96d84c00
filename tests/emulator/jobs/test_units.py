"""Fully sharded weights: what is gathered and reduced, when, and what that takes."""

import dataclasses

import numpy as np
import pytest

from emulator.cluster import cluster as clusters
from emulator.jobs import iteration, units
from emulator.jobs.costing import plan
from emulator.jobs.emulate import replayed_s
from emulator.jobs.replay.engine import replay
from emulator.jobs.workload import models
from emulator.jobs.workload.checks import check
from emulator.jobs.workload.graph import Collective
from emulator.jobs.workload.job import Job
from emulator.jobs.workload.sharding import Sharding
from switchml.errors import ConfigError

DGX = clusters.load("a100-dgx")
GPT = models.Transformer("gpt", "a small GPT", "made up", 6, 1024, 16, 51200, 512)
JOB = Job(gpus=16, batch=32, zero=3, gradient_bytes=4)


def collectives(job, model=GPT):
    """Gathered and reduce-scattered, each: bytes in the order in which they are launched."""
    graph, _ = iteration.build(plan(model, job, DGX))
    check(graph)
    op_type = graph.ops.op_type[graph.ops.transfer >= 0]
    return [
        graph.op_types.bytes[op_type[graph.op_types.collective[op_type] == kind]]
        for kind in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
    ]


def test_full_shard_gathers_every_layer_twice_and_the_root_once():
    gathered, reduced = collectives(JOB)
    layer = GPT.attention_parameters + GPT.mlp_parameters
    root = GPT.embedding_parameters
    per_pass = [2.0 * root] + [2.0 * layer] * 12
    np.testing.assert_allclose(gathered, per_pass * 2)
    np.testing.assert_allclose(reduced, ([4.0 * layer] * 6 + [4.0 * root]) * 2)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_recomputing_gathers_no_more(recompute):
    gathered, _ = collectives(JOB.replace(recompute=recompute))
    assert len(gathered) == 2 * 13


def test_settings_of_fsdp():
    kept, _ = collectives(JOB.replace(fsdp=Sharding(reshard_after_forward=False)))
    assert len(kept) == 2 * 7
    pairs, reduced = collectives(JOB.replace(fsdp=Sharding(unit_layers=2, reduce_each=False)))
    assert len(pairs) == 2 * (1 + 2 * 3) and len(reduced) == 4
    small, _ = collectives(JOB.replace(fsdp=Sharding(gather_bytes=1)))
    assert small.sum() == pytest.approx(collectives(JOB)[0].sum() / 2)


def test_units_by_size():
    step = plan(GPT, JOB, DGX).stages[0].steps
    sized = units.assign(step, JOB.replace(fsdp=Sharding(unit_parameters=30e6)))
    assert sized == [0, *[1] * 6, *[2] * 6, 0]
    table = models.load("vgg16")  # 138 M parameters, 103 M of them in one layer
    assert units.assign(plan(table, JOB.replace(micro_batch=2), DGX).stages[0].steps, JOB)[-1] == 2


def test_copies_inside_nodes_are_gathered_there_and_reduced_between_nodes():
    made = plan(GPT, JOB, DGX)
    hybrid = plan(GPT, JOB.replace(fsdp=Sharding(group=8)), DGX)
    assert hybrid.shards.nodes == 1 and hybrid.copies.ranks == 2 and hybrid.copies.nodes == 2
    assert hybrid.gather(1e8)[1].seconds < made.gather(1e8)[1].seconds
    assert hybrid.optimizer_s[0] > made.optimizer_s[0]
    with pytest.raises(ConfigError, match="can't be split into groups of 5"):
        JOB.replace(fsdp=Sharding(group=5))


def test_prefetching_hides_gathers():
    slow = dataclasses.replace(DGX, between=dataclasses.replace(DGX.between, port_bps=50e9))
    times = [
        replayed_s(plan(GPT, JOB.replace(micro_batch=2, fsdp=Sharding(prefetch=depth)), slow)) for depth in (0, 1, 2)
    ]
    assert times[0] > times[1] >= times[2]


def test_a_gather_is_on_its_way_while_the_unit_before_computes():
    made = plan(GPT, JOB, DGX)
    played = replay(*iteration.build(made))
    names = np.array(played.graph.op_types.name)[played.graph.ops.op_type]
    gathers, attention = np.flatnonzero(names == "gather weights"), np.flatnonzero(names == "attention forward")
    assert played.start_s[gathers[3]] < played.end_s[attention[2]] <= played.end_s[gathers[3]] * 10


def test_switches_gather_weights_while_they_scatter_gradients():
    """One host's accelerator on each link, which is what takes the time: a ring does one after the other, switches both
    at once, and so does the backward pass of a job whose weights are 4 bytes as its gradients are."""
    slow = dataclasses.replace(DGX, accelerators_per_node=1, between=dataclasses.replace(DGX.between, port_bps=1e9))
    job = JOB.replace(gpus=8, fsdp=Sharding(gather_bytes=4))
    ring, switches = (plan(GPT, job.replace(allreduce=name), slow) for name in ("ring", "switchml"))
    graph, costs = iteration.build(switches)
    names = np.array(graph.op_types.name)[graph.ops.op_type]
    forward, backward = (
        costs.transfer_bytes_per_s[graph.ops.transfer[names == name]]
        for name in ("gather weights", "gather weights beside gradients")
    )
    # 7/8 of a packet's data, or all of it and a packet without data for each (docs/protocol.md, section 11).
    switch = slow.switch
    assert forward.mean() / backward.mean() == pytest.approx(
        (switch.payload_bytes + 2 * switch.framing_bytes) / (7 / 8 * switch.payload_bytes + switch.framing_bytes),
        rel=1e-3,
    )
    played = replay(graph, costs)
    start_s, end_s = (
        [getattr(played, at)[names == name] for name in ("gather weights beside gradients", "gradients of a unit")]
        for at in ("start_s", "end_s")
    )
    assert (np.minimum(end_s[0][3:5], end_s[1][1:3]) > np.maximum(start_s[0][3:5], start_s[1][1:3])).any()
    assert replayed_s(switches) < 0.9 * replayed_s(ring)
    for zero in (1, 2):
        assert replayed_s(plan(GPT, job.replace(zero=zero, fsdp=Sharding(), allreduce="switchml"), slow)) > 0


def test_sharded_pipelines():
    made = plan(GPT, Job(gpus=16, pp=2, batch=32, zero=3), DGX)
    for fold in iteration.FOLDS:
        graph, costs = iteration.build(made, fold)
        check(graph)
        assert replay(graph, costs).makespan_s > 0
    with pytest.raises(ConfigError, match="schedule axonn"):
        Job(gpus=16, pp=2, batch=32, zero=3, schedule="axonn")


def test_settings_need_sharded_weights():
    with pytest.raises(ConfigError, match="use zero 3, not 2"):
        Job(zero=2, fsdp=Sharding(unit_layers=2))
