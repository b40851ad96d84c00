"""A layer's kernels: their FLOPs are those of the published formula, split as tensor parallelism splits them."""

import dataclasses

import numpy as np
import pytest

from emulator.cluster import kernels
from emulator.jobs.workload import models, transformer
from emulator.jobs.workload.implementations import cross_entropies, implementations
from emulator.jobs.workload.job import Job

GPT = models.load("gpt3-175b")
MEGATRON = transformer.Code(
    implementations()["megatron"], cross_entropies()["megatron"], 1.3, (1e14, 1e14), (5e13, 5e13), 100.0
)


def flops(job, model=GPT):
    both = transformer.attention(model, job, MEGATRON), transformer.mlp(model, job, MEGATRON)
    forward = sum(kernels.flops(part.forward) for part in both)
    return forward, sum(kernels.flops(part.backward) for part in both)


def test_flops_of_a_layer():
    b, s, h = 4, 2048, GPT.hidden
    forward, backward = flops(Job(gpus=1, micro_batch=b))
    assert forward == pytest.approx(24 * b * s * h**2 + 4 * b * s**2 * h)
    assert backward == pytest.approx(2 * forward)


@pytest.mark.parametrize("tp", [2, 8, 16])
def test_tensor_parallel_ranks_share_the_flops(tp):
    whole, part = flops(Job(gpus=1, micro_batch=4)), flops(Job(gpus=tp, tp=tp, micro_batch=4))
    assert part == pytest.approx(np.array(whole) / tp)


def test_model_flops_are_the_layers_and_the_projection():
    job = Job(gpus=1)
    head = transformer.head(GPT, job, MEGATRON)
    whole = GPT.layers * sum(flops(job)) + kernels.flops(head.forward) + kernels.flops(head.backward)
    assert whole == pytest.approx(GPT.flops_per_sample(2048))


def test_selective_recomputation_repeats_the_core_of_attention():
    core = transformer.attention(GPT, Job(gpus=1), MEGATRON).recomputed
    assert kernels.flops(core) == pytest.approx(4 * 2048**2 * GPT.hidden)


def test_experts_take_the_tokens_that_are_routed_to_them():
    mixtral, dense = models.load("mixtral-8x7b"), models.load("llama2-7b")
    one = kernels.flops(transformer.mlp(mixtral, Job(gpus=1), MEGATRON).forward)
    ffn = 2 * 4096 * 3 * 4096 * 14336
    router = 2 * 4096 * 4096 * 8
    assert one == pytest.approx(2 * ffn + router)
    spread = transformer.mlp(mixtral, Job(gpus=8, ep=8), MEGATRON)
    assert kernels.flops(spread.forward) == pytest.approx(one)
    assert spread.exchange_bytes == 2 * 4096 * 2 * 4096
    assert transformer.mlp(dense, Job(gpus=1), MEGATRON).exchange_bytes == 0


def test_products_of_experts_are_one_kernel_or_one_for_each():
    mixtral, job = models.load("mixtral-8x7b"), Job(gpus=4, ep=4)
    loop = transformer.mlp(mixtral, job, MEGATRON)
    grouped = dataclasses.replace(MEGATRON.implementation, experts="grouped")
    one = transformer.mlp(mixtral, job, dataclasses.replace(MEGATRON, implementation=grouped))
    assert len(loop.forward) == len(one.forward) + 2 and len(loop.backward) == len(one.backward) + 6
    for mine, others in ((loop.forward, one.forward), (loop.backward, one.backward)):
        assert kernels.flops(mine) == pytest.approx(kernels.flops(others))


def test_tensor_parallel_exchanges():
    job = Job(gpus=8, tp=8, micro_batch=2)
    for part in (transformer.attention(GPT, job, MEGATRON), transformer.mlp(GPT, job, MEGATRON)):
        assert part.reduce_bytes == 2 * 2 * 2048 * GPT.hidden
    assert transformer.mlp(GPT, Job(gpus=1), MEGATRON).reduce_bytes == 0


def test_every_implementation_and_kernel_has_a_source():
    from emulator.jobs.workload.implementations import attention_kernels

    for table in (implementations(), cross_entropies(), attention_kernels()):
        assert all(one.title and one.source for one in table.values())
    assert all(one.cross_entropy in cross_entropies() for one in implementations().values())


@pytest.mark.parametrize(("head", "padded"), [(64, 64), (80, 96), (108, 128), (128, 128), (132, 192), (512, 512)])
def test_heads_are_computed_as_the_next_size_that_a_kernel_has(head, padded):
    """FlashAttention does the FLOPs of the padded head in the time of the padded head."""
    from emulator.cluster.accelerator import accelerators
    from emulator.jobs.workload.implementations import attention_kernels

    kernel, device = attention_kernels()["fa2"], accelerators()["a100-80g"]
    assert kernel.padded(head) == padded
    own, whole = (kernel.rates(device, "fa2", "bf16", 4096, size) for size in (head, padded))
    assert own == pytest.approx([rate * head / padded for rate in whole])


def test_heads_that_no_fused_kernel_takes_keep_scores_in_memory():
    """Transformer Engine's take multiples of 8. Heads of 132 in place of 128 cost a 70B model with 8,192 tokens 41 % of
    its FLOP/s (Dao-AILab/flash-attention issue 1141: 16 x 8 H100, tp 4, pp 4, 370 and 219 TFLOP/s)."""
    from emulator.cluster import cluster as clusters
    from emulator.jobs.costed import closed_form_s
    from emulator.jobs.costing import plan

    llama = models.load("llama3-70b")
    job = Job(gpus=128, tp=4, pp=4, batch=256, sequence=8192, sequence_parallel=True, zero=1, precision="bf16")
    job = job.replace(implementation="megatron-core", attention="fa2")
    reached = {}
    for head in (128, 132):
        model = dataclasses.replace(llama, head_size=head)
        made = plan(model, job, clusters.load("h100-dgx"))
        reached[head] = model.flops_per_sample(8192) / closed_form_s(made)
        assert job.flash(model) == (head == 128)
        assert any("multiples of 8, not 132" in line for line in made.assumptions) == (head == 132)
    assert reached[132] / reached[128] == pytest.approx(219 / 370, rel=0.2)
    assert job.replace(implementation="torch").flash(model)


def test_a_vocabulary_that_is_no_multiple_of_64_costs_a_quarter():
    """50,257 tokens in place of 50,304, GPT-2 124M on A100 (Karpathy, nanoGPT, February 2023); Megatron pads it."""
    from emulator.cluster import cluster as clusters
    from emulator.jobs.costed import closed_form_s
    from emulator.jobs.costing import plan

    job = Job(gpus=1, micro_batch=12, batch=480, precision="bf16", attention="fa2")

    def times(implementation):
        own = job.replace(implementation=implementation)
        gpts = [dataclasses.replace(models.load("gpt2-124m"), vocabulary=size) for size in (50257, 50304)]
        odd_s, even_s = (closed_form_s(plan(gpt, own, clusters.load("a100-dgx"))) for gpt in gpts)
        return odd_s / even_s

    assert times("compiled") == pytest.approx(1.25, rel=0.02)
    assert times("megatron-core") == pytest.approx(1.0, rel=0.001)


def test_heads_that_are_no_multiple_of_8_are_copied_for_a_fused_kernel():
    """Queries, keys and values into padded ones and the context out of them; backward the context's gradient."""
    job = Job(gpus=1, micro_batch=2, attention="fa2")
    odd, even = (dataclasses.replace(GPT, head_size=size) for size in (108, 112))
    extra = [
        (len(getattr(transformer.attention(odd, job, MEGATRON), way)))
        - len(getattr(transformer.attention(even, job, MEGATRON), way))
        for way in ("forward", "backward")
    ]
    assert extra == [2, 1]
    moved = transformer.attention(odd, job, MEGATRON).forward[:, 4]
    width = 2 * 2048 * 96 * 108
    assert {2 * 2 * 3 * width, 2 * 2 * width} <= set(moved.tolist())


@pytest.mark.parametrize(
    ("precision", "read", "written"), [("fp8", 2, 2.0), ("mxfp8", 2, 2 * 33 / 32), ("nvfp4", 4, 2 * (8 + 1) / 16)]
)
def test_operands_are_cast_and_transposed(precision, read, written):
    """Bytes of an element: read once, in nvfp4 twice, as its maximum is needed first; written in both layouts, with a
    byte for each block of 32 or 16 elements."""
    llama = models.load("llama3-8b")
    quantized, plain = (transformer.mlp(llama, Job(gpus=1, precision=each), MEGATRON) for each in (precision, "bf16"))
    tokens, h, f = llama.sequence, llama.hidden, llama.ffn
    forward = tokens * h + 2 * f * h + tokens * f + h * f  # inputs and weights of both products
    backward = tokens * 2 * f + tokens * h  # gradients of their outputs
    for way, elements in (("forward", forward), ("backward", backward)):
        moved = getattr(quantized, way)[:, 4].sum() - getattr(plain, way)[:, 4].sum()
        assert moved == pytest.approx(elements * (read + written))


def test_losses_by_implementation():
    """Megatron's unfused cross entropy moves most, one kernel each way least."""

    def moved(name):
        code = dataclasses.replace(MEGATRON, cross_entropy=cross_entropies()[name], loss_bytes=180.0)
        part = transformer.head(GPT, Job(gpus=1), code)
        return part.forward[:, 4].sum() + part.backward[:, 4].sum()

    logits = 2048 * GPT.vocabulary
    assert moved("megatron") == pytest.approx(180 * logits)
    assert moved("megatron") > moved("eager") > moved("compiled") > moved("fused") == pytest.approx(8 * logits)


def test_checkpoints_stop_before_what_nothing_needs():
    """torch.utils.checkpoint does not repeat the MLP's second product, a third of a layer's."""
    torch = dataclasses.replace(MEGATRON, implementation=implementations()["torch"])
    part = transformer.mlp(GPT, Job(gpus=1), torch)
    left_out = part.forward[len(part.forward) - part.unneeded :]
    assert kernels.flops(left_out) == pytest.approx(kernels.flops(part.forward) / 2)


def test_fp8_casts_what_it_multiplies():
    job = Job(gpus=1, precision="fp8")
    plain, cast = (transformer.mlp(GPT, one, MEGATRON).forward for one in (Job(gpus=1, precision="bf16"), job))
    assert len(cast) == len(plain) + 4 and kernels.flops(cast) == kernels.flops(plain)
    assert transformer.head(GPT, job, MEGATRON).forward[0, 6] == 1  # the projection stays in bf16
