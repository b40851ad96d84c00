"""Memory: the formulas' published values, and what sharding and recomputation do to them."""

import dataclasses

import pytest

from emulator.jobs.workload import memory, models
from emulator.jobs.workload.job import Job
from emulator.jobs.workload.sharding import Sharding
from switchml.errors import ConfigError

GPT = models.load("gpt3-175b")


def job(**changes):
    settings = dict(gpus=64, tp=8, pp=8, batch=64, micro_batch=1, schedule="1f1b") | changes
    return Job(**settings)


def test_activations_as_shares_of_the_baseline():
    """Korthikanti et al., figure 7, for 175B and t = 8."""
    base = memory.layer_activations(GPT, job())
    shares = [
        memory.layer_activations(GPT, job(**changes)) / base
        for changes in (
            dict(sequence_parallel=True),
            dict(recompute="selective"),
            dict(sequence_parallel=True, recompute="selective"),
            dict(recompute="full"),
        )
    ]
    assert shares == pytest.approx([0.6204, 0.5653, 0.1849, 0.0871], rel=0.005)


def test_zero_shards_states_over_replicas():
    """Rajbhandari et al., figure 1: 7.5 B parameters on 64 ranks take 120, 31.4, 16.6 and 1.9 GB."""
    gpt = models.Transformer("x", "x", "x", 36, 4096, 32, 51200, 2048)
    totals = []
    for zero in range(4):
        found = memory.memory(gpt, Job(gpus=64, batch=64, zero=zero))
        totals.append((found.weights + found.gradients + found.optimizer) / gpt.parameters * 7.5)
    assert totals == pytest.approx([120, 31.4, 16.6, 1.9], rel=0.02)


@pytest.mark.parametrize(("zero", "optimizer", "total"), [
    (0, "adam", 2 + 4), (1, "adam", 2 + 4 / 8), (3, "adam", 6 / 8), (0, "sgd", 2 + 2),
])  # fmt: skip
def test_models_in_half_precision_have_no_fp32_states(zero, optimizer, total):
    """Weights and each moment take two bytes a parameter, as torch.optim makes them."""
    gpt = models.Transformer("x", "x", "x", 36, 4096, 32, 51200, 2048)
    found = memory.memory(gpt, Job(gpus=8, batch=8, zero=zero, optimizer=optimizer, master_weights=False))
    assert found.weights + found.optimizer == pytest.approx(total * gpt.parameters, rel=1e-5)


@pytest.mark.parametrize(("name", "vocabulary", "batch", "sequence", "peak"), [
    ("gpt2-124m", 50304, 8, 1024, 5765560320), ("gpt2-774m", 50304, 8, 1024, 19378475008),
    ("bert-large", 30528, 16, 512, 10068892672), ("gpt2-124m", 50304, 4, 8192, 20548057088),
])  # fmt: skip
def test_peaks_of_models_in_half_precision(name, vocabulary, batch, sequence, peak):
    """torch.cuda.max_memory_allocated of a step of torch 2.11 on one H200, AdamW(fused=True)."""
    model = dataclasses.replace(models.load(name), vocabulary=vocabulary)
    settings = dict(gpus=1, batch=batch, micro_batch=batch, sequence=sequence, precision="bf16", attention="fa2")
    found = memory.memory(
        model, Job(implementation="torch", master_weights=False, optimizer_kernels="fused", **settings)
    )
    assert found.allocated == pytest.approx(peak, rel=0.02)


def test_kernels_of_the_optimizer_have_temporaries():
    """foreach makes a copy of all weights' denominators, in the precision of the states; fused none."""
    gpt = models.load("gpt2-124m")
    fused, foreach = (
        memory.memory(gpt, Job(gpus=1, implementation="torch", optimizer_kernels=kernels, master_weights=False))
        for kernels in ("fused", "foreach")
    )
    assert fused.temporary == 0 and foreach.allocated >= fused.allocated
    with pytest.raises(ConfigError, match="unknown optimizer-kernels 'foreahc'"):
        Job(gpus=1, optimizer_kernels="foreahc")


def test_pipelines_keep_fewer_micro_batches_towards_the_end():
    assert [memory.in_flight(job(), stage) for stage in (0, 3, 7)] == [8, 5, 1]
    assert memory.in_flight(job(schedule="gpipe"), 7) == 64
    interleaved = job(schedule="interleaved", virtual_stages=3)
    assert memory.in_flight(interleaved, 0) == pytest.approx(8 * (1 + 7 / 24))


def test_flash_attention_keeps_no_scores():
    unfused, flash = (memory.layer_activations(GPT, job(attention=kind)) for kind in ("unfused", "flash"))
    assert flash == pytest.approx(unfused - 5 * 96 * 2048**2 / 8 + 4 * 96 * 2048 / 8), "but their sums, in fp32"


def test_quantized_products_keep_what_they_multiplied():
    """Transformer Engine: the quantized input; torchao: the input. Attention's output is kept for itself besides."""
    llama, tokens = models.load("llama3-8b"), 8192
    kept = {}
    for implementation in ("megatron-core", "compiled"):
        jobs = [Job(precision=one, implementation=implementation, sequence=tokens) for one in ("bf16", "fp8", "mxfp8")]
        kept[implementation] = [memory.layer_activations(llama, one) for one in jobs]
    whole, narrow, blocks = kept["megatron-core"]
    inputs = tokens * (2 * 4096 + 14336)
    assert whole - narrow == pytest.approx(2 * inputs - (inputs + tokens * 4096))
    assert blocks - narrow == pytest.approx((inputs + tokens * 4096) / 32)
    assert len(set(kept["compiled"])) == 1


def test_outputs_of_experts_are_kept_where_they_are_weighted():
    qwen, tokens = models.load("qwen3-30b-a3b"), 4096
    job = Job(gpus=8, ep=8, precision="bf16", sequence=tokens, implementation="megatron-core")
    jobs = (job.replace(implementation=one, attention="flash") for one in ("megatron", "megatron-core"))
    before, inside = (memory.layer_activations(qwen, one) for one in jobs)
    assert before - inside >= 2 * 8 * tokens * qwen.hidden


def test_layer_tables():
    net = models.load("vgg16")
    one, two = (memory.memory(net, Job(gpus=2, micro_batch=b)) for b in (64, 128))  # fewer: the optimizer needs most
    assert two.activations == pytest.approx(2 * one.activations)
    assert one.weights + one.gradients + one.optimizer == pytest.approx(16 * 138_357_544)
    assert memory.memory(net, Job(gpus=2, micro_batch=128, recompute="full")).activations < two.activations


def test_dropout_masks_only_where_there_is_dropout():
    """A byte for each element of three masks: of the scores, and behind attention and MLP."""
    masks = 2048 * 12288 * 2 + 96 * 2048**2 / 8
    jobs = [job(implementation=name, attention="unfused") for name in ("composer", "megatron")]
    torch, megatron = (memory.layer_activations(GPT, one) for one in jobs)
    # Without dropout, the shares are one tensor with what dropout leaves of them: two bytes a score less.
    assert megatron - torch == pytest.approx(masks + 2 * 96 * 2048**2 / 8)


def test_operators_keep_attention_and_every_other_product():
    """torchtitan's selective_ac_option "op": wq, wv, w1 and w2 of Llama's products, the context, and the input."""
    llama = models.load("llama3-8b")
    found = memory.layer_activations(
        llama, Job(gpus=1, recompute="operators", precision="bf16", implementation="torch")
    )
    tokens, statistics = 8192, 4 * 32
    assert found == pytest.approx(tokens * (2 * (4096 + 1024 + 14336 + 4096 + 4096 + 4096) + statistics))


def of(loss, **changes):
    """Bytes of activations of one layer with much vocabulary."""
    gpt = models.Transformer("x", "x", "x", 1, 64, 2, 65536, 64, cross_entropy=loss, attention="flash")
    settings = dict(gpus=1, micro_batch=32, precision="bf16", implementation="composer") | changes
    return memory.memory(gpt, Job(**settings))


def test_losses_differ_in_their_copies_of_the_logits():
    """Bytes a logit at the highest point. Eager: fp32 shares, their gradient and that of the logits. Megatron: forward,
    logits in half and in full precision, and the softmax. In half precision: logits and gradient, or one over the
    other."""
    logits = 32 * 64 * 65536
    for loss, each in (("eager", 12), ("megatron", 10), ("compiled", 4), ("fused", 2)):
        assert of(loss).activations / logits == pytest.approx(each, rel=0.02), loss
    assert of("eager").fragmentation / logits > 2 > of("fused").fragmentation / logits
    assert of("eager", precision="fp32").activations / logits == pytest.approx(12, rel=0.02)


def test_units_of_fsdp():
    """Of a model of 12 h² a layer: two units in flight in forward; keeping them all is the whole model."""
    gpt = models.Transformer("x", "x", "x", 24, 1024, 8, 1024, 64, attention="flash", implementation="composer")
    plain = Job(gpus=64, zero=3, precision="bf16")

    def temporary(**settings):
        return memory.memory(gpt, plain.replace(fsdp=Sharding(**settings))).temporary

    unit = 2 * 12 * 1024**2
    # In backward: two gathered, and a gradient of the unit before on its way in two bytes a weight; and the root.
    assert 3 * unit < temporary() < 3.3 * unit
    assert temporary(prefetch=2) == pytest.approx(temporary() + unit, rel=0.03)
    assert temporary(unit_layers=2) > 1.9 * temporary()
    assert temporary(reshard_after_forward=False) > 23 * unit
    assert temporary(gather_bytes=1.0) < temporary()
    whole, halves = (memory.memory(gpt, plain.replace(fsdp=Sharding(group=group))).weights for group in (0, 8))
    assert halves == 8 * whole
