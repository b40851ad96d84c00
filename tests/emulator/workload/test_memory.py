"""Memory: the formulas' published values, and what sharding and recomputation do to them."""

import pytest

from emulator.workload import memory, models
from emulator.workload.job import Job

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


def test_pipelines_keep_fewer_micro_batches_towards_the_end():
    assert [memory.in_flight(job(), stage) for stage in (0, 3, 7)] == [8, 5, 1]
    assert memory.in_flight(job(schedule="gpipe"), 7) == 64
    interleaved = job(schedule="interleaved", virtual_stages=3)
    assert memory.in_flight(interleaved, 0) == pytest.approx(8 * (1 + 7 / 24))


def test_flash_attention_keeps_no_scores():
    unfused, flash = (memory.layer_activations(GPT, job(attention=kind)) for kind in ("unfused", "flash"))
    assert flash == pytest.approx(unfused - 5 * 96 * 2048**2 / 8)


def test_layer_tables():
    net = models.load("vgg16")
    one, two = (memory.memory(net, Job(gpus=2, micro_batch=b)) for b in (32, 64))
    assert two.activations == pytest.approx(2 * one.activations)
    assert one.weights + one.gradients + one.optimizer == pytest.approx(16 * 138_357_544)
    assert memory.memory(net, Job(gpus=2, micro_batch=64, recompute="full")).activations < two.activations
