"""LoRA: what adapters add and what frozen weights leave out, counted layer by layer."""

import pytest

from emulator.cluster import cluster as clusters
from emulator.cluster import kernels
from emulator.jobs import iteration
from emulator.jobs.costing import plan
from emulator.jobs.emulate import replayed_s
from emulator.jobs.workload import models, transformer
from emulator.jobs.workload.checks import check
from emulator.jobs.workload.implementations import cross_entropies, implementations
from emulator.jobs.workload.job import Job
from emulator.jobs.workload.memory import layer_activations, memory
from switchml.errors import ConfigError

DGX = clusters.load("h100-dgx")
LLAMA = models.load("llama3-8b")
CODE = transformer.Code(
    implementations()["megatron-core"], cross_entropies()["fused"], 1.3, (1e14, 1e14), (5e13, 5e13), 1.0
)
RANK = 16
LINEAR = {"qkv": (4096, 6144), "proj": (4096, 4096), "up": (4096, 28672), "down": (14336, 4096)}
"""Inputs and outputs of a layer's linear layers (Dubey et al. 2024, table 3)."""


def adapted(targets):
    return [LINEAR["qkv"]] if targets == "qkv" else list(LINEAR.values())


@pytest.mark.parametrize("targets", ["qkv", "all"])
def test_flops_of_a_layer_are_those_of_frozen_weights_and_of_adapters(targets):
    tokens, job = LLAMA.sequence, Job(gpus=1, precision="bf16", lora=RANK, lora_targets=targets)
    parts = transformer.attention(LLAMA, job, CODE), transformer.mlp(LLAMA, job, CODE)
    forward, backward = (sum(kernels.flops(getattr(part, way)) for part in parts) for way in ("forward", "backward"))
    frozen = sum(2 * tokens * inputs * outputs for inputs, outputs in LINEAR.values())
    trained = sum(2 * tokens * RANK * (inputs + outputs) for inputs, outputs in adapted(targets))
    scores = 2 * tokens**2 * 4096  # queries by keys and shares by values, half of each
    assert forward == pytest.approx(frozen + trained + scores)
    assert backward == pytest.approx(frozen + 2 * trained + 2.5 * scores)


@pytest.mark.parametrize("targets", ["qkv", "all"])
def test_memory_is_that_of_frozen_weights_and_of_the_states_of_adapters(targets):
    job = Job(gpus=1, batch=4, precision="bf16", optimizer="adam", lora=RANK, lora_targets=targets)
    trained = LLAMA.layers * sum(RANK * (inputs + outputs) for inputs, outputs in adapted(targets))
    own, whole = memory(LLAMA, job), memory(LLAMA, job.replace(lora=0))
    assert own.weights == pytest.approx(2 * (LLAMA.parameters + trained), rel=1e-4)
    assert own.optimizer == pytest.approx(12 * trained)
    assert own.optimizer < 0.01 * whole.optimizer and own.gradients < 0.01 * whole.gradients
    kept = [layer_activations(LLAMA, each) for each in (job, job.replace(lora=0))]
    # Other linear layers' inputs are results of norm, attention and gate; attention keeps its own for itself.
    unneeded = 2 * LLAMA.sequence * (4096 + 14336) if targets == "qkv" else 0
    assert kept[0] == pytest.approx(kept[1] - unneeded)


@pytest.mark.parametrize(("precision", "implementation", "each"), [
    ("fp8", "megatron-core", 1), ("mxfp8", "megatron-core", 2 * (1 + 1 / 32)), ("fp8", "compiled", 2),
])  # fmt: skip
def test_frozen_weights_are_kept_as_they_are_multiplied(precision, implementation, each):
    """Transposed where backward needs it, but for blocks with scales of their own; torchao quantizes anew."""
    job = Job(gpus=1, precision=precision, implementation=implementation, lora=RANK)
    assert memory(LLAMA, job).weights == pytest.approx(each * LLAMA.parameters, rel=2e-3)


def test_sharded_frozen_weights_are_gathered_and_gradients_of_adapters_reduced():
    """FSDP: weights of a layer before forward and backward, gradients once."""
    job = Job(gpus=8, batch=8, zero=3, precision="bf16", lora=RANK, implementation="torch")
    made = plan(LLAMA, job, DGX)
    graph, _ = iteration.build(made, "none")
    check(graph)
    sizes = list(zip(graph.op_types.name, graph.op_types.bytes, strict=True))
    trained = RANK * (4096 + 6144)
    layer = trained + sum(inputs * outputs for inputs, outputs in LINEAR.values()) + 2 * 4096
    gathers = [size for name, size in sizes if name == "gather weights"]
    assert max(gathers) == pytest.approx(2 * LLAMA.vocabulary * 4096 * 2, rel=1e-3)  # embedding and projection
    assert sorted(gathers)[0] == pytest.approx(2 * layer, rel=1e-3)
    reduced = [size for name, size in sizes if "gradients" in name]
    assert min(reduced) == max(reduced) == pytest.approx(job.gradient_bytes * trained)
    own, whole = memory(LLAMA, job), memory(LLAMA, job.replace(zero=0))
    assert own.weights == pytest.approx(whole.weights / 8, rel=1e-2)
    assert own.gradients < 0.01 * memory(LLAMA, job.replace(lora=0)).gradients


def test_gradients_of_adapters_alone_are_reduced():
    job = Job(gpus=8, tp=2, pp=2, batch=8, precision="bf16", lora=RANK, sequence_parallel=True)
    made = plan(LLAMA, job, DGX)
    graph, _ = iteration.build(made, "none")
    check(graph)
    reduced = [
        size
        for name, size in zip(graph.op_types.name, graph.op_types.bytes, strict=True)
        if "gradients" in name and "bucket" in name
    ]
    assert sum(reduced) == pytest.approx(job.gradient_bytes * LLAMA.layers / 2 * RANK * (4096 + 6144) / 2)
    assert replayed_s(made) < 0.85 * replayed_s(plan(LLAMA, job.replace(lora=0), DGX))


def test_published_rows():
    """Llama 3 70B on 8 H100, rank 16 on queries, keys and values: 2,643 tokens a second and accelerator (NVIDIA-NeMo/
    Megatron-Bridge, docs/performance-summary-archive.md, 26.06)."""
    job = Job(gpus=8, batch=32, sequence=4096, tp=2, pp=4, virtual_stages=20, schedule="interleaved", lora=RANK)
    job = job.replace(sequence_parallel=True, zero=1, precision="fp8", implementation="megatron-core", attention="fa3")
    step_s = replayed_s(plan(models.load("llama3-70b"), job, DGX))
    assert 32 * 4096 / step_s / 8 == pytest.approx(2643, rel=0.15)


@pytest.mark.parametrize(("model", "changes", "message"), [
    ("llama3-8b", {"zero": 3, "pp": 2}, "use zero 0 to 2"),
    ("llama3-8b", {"tp": 2, "lora_targets": "all"}, "take lora-targets qkv, or tp 1"),
    ("mixtral-8x7b", {}, "adapters .lora. are not modelled"), ("vgg16", {}, "is not a transformer"),
])  # fmt: skip
def test_what_is_not_modelled_is_refused(model, changes, message):
    with pytest.raises(ConfigError, match=message):
        Job(lora=RANK, **changes).fit(models.load(model))
