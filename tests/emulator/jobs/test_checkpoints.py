"""Checkpoints at every n-th layer only: time and memory of each layer are those of jobs that treat all alike."""

import pytest

from emulator.cluster import cluster as clusters
from emulator.jobs import iteration
from emulator.jobs.costing import plan
from emulator.jobs.emulate import replayed_s
from emulator.jobs.workload import models
from emulator.jobs.workload.checks import check
from emulator.jobs.workload.job import Job
from emulator.jobs.workload.memory import memory, micro_batch_activations
from switchml.errors import ConfigError

DGX = clusters.load("a100-dgx")
GPT = models.Transformer("gpt", "a small GPT", "made up", 12, 1024, 16, 51200, 512)
SPLITS = {
    "alone": Job(gpus=1, batch=4, micro_batch=4),
    "zero 3": Job(gpus=4, batch=16, micro_batch=4, zero=3, attention="unfused"),
    "stages": Job(gpus=2, pp=2, batch=16, micro_batch=4),
    "pieces": Job(gpus=2, pp=2, batch=16, micro_batch=4, schedule="interleaved", virtual_stages=3),
}


def checkpointed(layers, every):
    """Of so many layers in a row: the last of every `every`."""
    return [number for number in range(layers) if number % every == every - 1]


@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.parametrize("every", [2, 3, 5])
def test_layers_are_run_again_where_they_are_checkpointed(name, every):
    job = SPLITS[name].replace(recompute="full", recompute_every=every)
    made, full, plain = (plan(GPT, one, DGX) for one in (job, job.replace(recompute_every=1), SPLITS[name]))
    for stage, all_again, never in zip(made.stages, full.stages, plain.stages, strict=True):
        steps = [step for step in stage.steps if step.name in ("attention", "mlp")]
        again = [number for number in range(len(steps) // 2) if steps[2 * number].recomputes_all]
        assert again == checkpointed(len(steps) // 2, every)
        for number, (own, other, none) in enumerate(zip(stage.steps, all_again.steps, never.steps, strict=True)):
            assert own in (other, none), number
    graph, costs = iteration.build(made, "none")
    check(graph)
    done = graph.op_types.flops[graph.ops.op_type].sum()
    layer = job.global_batch * (24 * 512 * 1024**2 + 4 * 512**2 * 1024)
    count = sum(len(checkpointed(job.layers(GPT, stage), every)) for stage in range(job.pp))
    assert done == pytest.approx(job.global_batch * GPT.flops_per_sample(512) + count * layer)
    assert replayed_s(plain) < replayed_s(made) < replayed_s(full)


@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.parametrize("every", [2, 3, 4])
def test_memory_is_between_that_of_none_and_of_full(name, every):
    plain = SPLITS[name]
    full, some = plain.replace(recompute="full"), plain.replace(recompute="full", recompute_every=every)
    layers = plain.layers(GPT, 0)
    part = len(checkpointed(layers, every)) / layers
    kept = [micro_batch_activations(GPT, job, 0) for job in (full, some, plain)]
    assert kept[1] == pytest.approx(part * kept[0] + (1 - part) * kept[2])
    totals = [memory(GPT, job).total for job in (full, some, plain)]
    assert totals == sorted(totals) and totals[0] < totals[1]


@pytest.mark.parametrize("name", SPLITS)
def test_checkpoints_that_never_come_change_nothing(name):
    plain = SPLITS[name]
    never = plain.replace(recompute="full", recompute_every=13)
    assert memory(GPT, never) == memory(GPT, plain)
    assert replayed_s(plan(GPT, never, DGX)) == replayed_s(plan(GPT, plain, DGX))


def test_which_layers_are_checkpointed_is_a_question_of_full_recomputation():
    with pytest.raises(ConfigError, match="recompute-every 2.*take recompute full, not selective"):
        Job(recompute="selective", recompute_every=2)
    with pytest.raises(ConfigError, match="recompute-every chooses among equal layers"):
        Job(recompute="full", recompute_every=2).fit(models.load("vgg16"))
