"""Norms and activations that are run again in backward: what that takes and what it saves, counted by tensor."""

import dataclasses

import pytest

from emulator.cluster import cluster as clusters
from emulator.jobs import iteration
from emulator.jobs.costing import plan
from emulator.jobs.emulate import replayed_s
from emulator.jobs.workload import models
from emulator.jobs.workload.checks import check
from emulator.jobs.workload.job import Job
from emulator.jobs.workload.memory import layer_activations, memory
from switchml.errors import ConfigError

DGX = clusters.load("h100-dgx")
JOB = Job(gpus=1, batch=2, precision="bf16", implementation="megatron-core", attention="fa2")
STATISTICS = 2 * 8
"""Bytes of a token: mean and deviation of both norms."""


@pytest.mark.parametrize("name", ["llama3-8b", "gpt3-1.3b", "gpt-oss-20b"])
def test_results_of_norms_and_activations_are_not_kept(name):
    model = models.load(name)
    kept, again = (layer_activations(model, JOB.replace(recompute=how)) for how in ("none", "pointwise"))
    inside = (3 if model.clamped else 1) * model.width  # what is clamped, too
    each = 2 * (2 * model.hidden + model.experts_per_token * inside) + STATISTICS
    assert kept - again == pytest.approx(model.sequence * each)
    assert memory(model, JOB.replace(recompute="pointwise")).total < memory(model, JOB).total


@pytest.mark.parametrize("name", ["llama3-8b", "gpt3-1.3b", "gpt-oss-20b"])
def test_they_take_their_memory_traffic_again(name):
    model = models.load(name)
    plain, again = (plan(model, JOB.replace(recompute=how), DGX) for how in ("none", "pointwise"))
    tokens, h = model.sequence, model.hidden
    elements = tokens * model.experts_per_token * model.width
    # Norms read and write; activations read one or two and write one; clamps read and write two halves, then join them.
    moved = {"attention": 2 * tokens * h, "mlp": 2 * tokens * h + (3 if model.gated else 2) * elements}
    kernels = {"attention": 1, "mlp": 2}
    if model.clamped:
        moved["mlp"], kernels["mlp"] = moved["mlp"] + 8 * elements, kernels["mlp"] + 3
    rate, each_s = DGX.device.memory_bytes_per_s * DGX.software.memory_efficiency, DGX.software.kernel_s
    for own, other in zip(again.stages[0].steps, plain.stages[0].steps, strict=True):
        seconds = 2 * moved[own.name] / rate + kernels[own.name] * each_s if own.name in moved else 0.0
        assert own.recompute_s == pytest.approx(seconds) and other.recompute_s == 0
        assert dataclasses.replace(own, recompute_s=0.0, recomputed_kernels=0) == other
    graph, _ = iteration.build(again)
    check(graph)
    full = plan(model, JOB.replace(recompute="full"), DGX)
    assert replayed_s(plain) < replayed_s(again) < replayed_s(full)


def test_tables_of_layers_have_none():
    with pytest.raises(ConfigError, match="is not a transformer"):
        Job(recompute="pointwise").fit(models.load("vgg16"))
