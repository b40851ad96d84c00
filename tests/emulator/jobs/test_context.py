"""Context parallelism, pieces of unequal length, and tensor-parallel exchanges behind products."""

import dataclasses

import pytest

from emulator.cluster import cluster as clusters
from emulator.cluster.collectives import cost
from emulator.cluster.topology import place
from emulator.jobs import iteration
from emulator.jobs.costing import plan
from emulator.jobs.emulate import replayed_s
from emulator.jobs.replay.engine import replay
from emulator.jobs.workload import models
from emulator.jobs.workload.checks import check
from emulator.jobs.workload.job import Job
from switchml.errors import ConfigError

DGX = clusters.load("a100-dgx")
GPT = models.Transformer("gpt", "a small GPT", "made up", 10, 1024, 16, 51200, 8192, attention="flash")


@pytest.mark.parametrize("exchange", ["ring", "all-to-all"])
def test_context_parallel_ranks_share_a_sequence(exchange):
    one = plan(GPT, Job(gpus=1, batch=1), DGX)
    shared = plan(GPT, Job(gpus=8, batch=1, cp=8, cp_exchange=exchange), DGX)
    assert shared.job.micro_batches == 1 and shared.job.replicas == 1 and shared.data_parallel.ranks == 8
    flops = [sum(s.forward_flops + s.backward_flops for s in made.stages[0].steps) for made in (one, shared)]
    assert flops[1] == pytest.approx(flops[0] / 8)
    times = []
    for fold in iteration.FOLDS:
        graph, costs = iteration.build(shared, fold)
        check(graph)
        assert any(name.startswith("context of attention") for name in graph.op_types.name)
        times.append(replay(graph, costs).makespan_s)
    assert times == pytest.approx([times[0]] * 3, rel=1e-9)
    assert times[0] < replayed_s(one)


def test_a_ring_hides_behind_attention_and_an_all_to_all_does_not():
    long = dataclasses.replace(GPT, sequence=65536)
    ring, all_to_all = (
        next(step for step in plan(long, job, DGX).stages[0].steps if any(step.context_bytes)).context
        for job in (Job(gpus=8, batch=1, cp=8, cp_exchange=name) for name in ("ring", "all-to-all"))
    )
    assert ring[0].seconds < all_to_all[0].seconds


def test_torch_gathers_keys_of_every_head_and_waits_for_them_when_compiled():
    grouped = dataclasses.replace(GPT, kv_heads=4)
    megatron, torch, compiled = (
        next(step for step in plan(grouped, job, DGX).stages[0].steps if any(step.context_bytes))
        for job in (Job(gpus=8, batch=1, cp=8, implementation=name) for name in ("megatron", "torch", "compiled"))
    )
    keys = 2 * 2 * 1024 * GPT.hidden / 4
    assert megatron.context_bytes == pytest.approx((keys, keys + keys * 8 / 7))
    assert torch.context_bytes == compiled.context_bytes
    assert torch.context_bytes == pytest.approx((4 * keys, 4 * keys + 2 * 4 * keys * 8 / 7))  # gradients in fp32
    assert compiled.context[0].seconds > torch.context[0].seconds > megatron.context[0].seconds
    where = place(8, 1, DGX.accelerators_per_node)
    assert compiled.context[0].seconds == pytest.approx(cost(DGX, "all_gather", 8 * 4 * keys, where).seconds)


def test_pieces_of_unequal_length():
    job = Job(gpus=4, pp=4, batch=8, schedule="interleaved", virtual_stages=2)
    assert [job.piece_layers(GPT, stage) for stage in range(4)] == [[2, 1], [2, 1], [1, 1], [1, 1]]
    made = plan(GPT, job, DGX)
    assert [sum(step.name == "mlp" for step in stage.steps) for stage in made.stages] == [3, 3, 2, 2]
    graph, costs = iteration.build(made)
    check(graph)
    layers = 8 * GPT.flops_per_sample(8192)
    assert graph.op_types.flops[graph.ops.op_type].sum() == pytest.approx(layers, rel=0.3)
    assert replay(graph, costs).makespan_s > 0


def test_exchanges_behind_products():
    made = [
        plan(GPT, Job(gpus=8, tp=8, batch=1, sequence_parallel=True, async_tp=hidden), DGX) for hidden in (False, True)
    ]
    assert replayed_s(made[1]) < replayed_s(made[0])


@pytest.mark.parametrize(("implementation", "micro_batch", "hides", "copies"), [
    ("compiled", 2, False, 2), ("compiled", 1, False, 0), ("compiled", 2, True, 0), ("megatron", 2, False, 0),
])  # fmt: skip
def test_tokens_of_several_samples_are_copied_around_collectives(implementation, micro_batch, hides, copies):
    """torch's samples come first in memory: what is gathered, and what is to be scattered, is copied once each way."""
    known = {"gpus": 8, "tp": 8, "batch": 2, "implementation": implementation, "micro_batch": micro_batch}
    plain, split = (
        next(step for step in plan(GPT, job, DGX).stages[0].steps if step.name == "mlp")
        for job in (Job(**known), Job(**known, sequence_parallel=True, async_tp=hides))
    )
    assert split.forward_kernels - plain.forward_kernels == copies
    assert split.backward_kernels - plain.backward_kernels == copies


@pytest.mark.parametrize(("precision", "share", "scales"), [("bf16", 1, 0), ("fp8", 1 / 2, 1), ("mxfp8", 33 / 64, 0)])
def test_operands_are_quantized_before_they_are_gathered(precision, share, scales):
    """Of 2 bytes an element, half is gathered in fp8, after the maximum of all ranks; results are scattered whole."""
    cluster, group = clusters.load("b200-dgx"), place(8, 1, 8)
    job = Job(gpus=8, tp=8, batch=1, sequence_parallel=True, precision=precision, implementation="megatron-core")
    mlp = next(step for step in plan(GPT, job, cluster).stages[0].steps if step.name == "mlp")
    whole = 2 * 8192 * 1024
    parts = [("reduce_scatter", whole), ("all_gather", share * whole), *[("all_reduce", 4)] * scales]
    assert mlp.reduce.seconds == pytest.approx(sum(cost(cluster, *part, group).seconds for part in parts))


@pytest.mark.parametrize(("fields", "message"), [
    ({"gpus": 8, "cp": 3}, "can't be split into 3 context-parallel"),
    ({"gpus": 8, "pp": 2, "cp": 2, "schedule": "axonn", "batch": 8}, "message-driven"),
    ({"gpus": 8, "tp": 8, "async_tp": True}, "use sequence-parallel"),
    ({"gpus": 2, "cp": 2, "cp_exchange": "pigeon"}, "unknown cp-exchange|unknown cp_exchange"),
])  # fmt: skip
def test_what_makes_no_sense(fields, message):
    with pytest.raises(ConfigError, match=message):
        Job(**fields)


def test_what_a_model_does_not_allow():
    with pytest.raises(ConfigError, match="heads can't be split over tp 1 and cp 32"):
        Job(gpus=32, cp=32, cp_exchange="all-to-all").fit(GPT)
    with pytest.raises(ConfigError, match="10 layers can't be split into 12 pieces"):
        Job(gpus=4, pp=4, batch=8, schedule="interleaved", virtual_stages=3).fit(GPT)
