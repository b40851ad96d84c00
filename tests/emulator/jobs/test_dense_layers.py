"""Layers without experts in a model that has some: where they are, and what they neither hold nor exchange."""

import dataclasses

import pytest

from emulator.cluster import cluster as clusters
from emulator.jobs.costing import plan
from emulator.jobs.workload import models
from emulator.jobs.workload.job import Job
from switchml.errors import ConfigError

DGX = clusters.load("h100-dgx")
MAVERICK, DEEPSEEK = models.load("llama4-maverick"), models.load("deepseek-v3")


def job(**changes):
    return Job(**{"gpus": 64, "precision": "bf16", "implementation": "megatron-core", "zero": 1, "ep": 32, **changes})


def test_which_layers_are_dense():
    """Llama 4 Maverick: every second layer has experts, from the second on. DeepSeek-V3: all but the first three."""
    assert [MAVERICK.is_dense(layer) for layer in range(4)] == [True, False, True, False]
    assert sum(map(MAVERICK.is_dense, range(48))) == MAVERICK.dense_layers == 24
    assert [DEEPSEEK.is_dense(layer) for layer in (0, 2, 3, 60)] == [True, True, False, False]


def test_dense_layers_exchange_nothing():
    made = plan(MAVERICK, job(pp=2), DGX)
    for stage in made.stages:
        exchanged = [step.exchange_bytes > 0 for step in stage.steps if step.name == "mlp"]
        assert exchanged == [False, True] * 12
        assert [step.waits for step in stage.steps if step.name == "mlp"] == [False] * 24  # flex, beyond a node


def test_a_dense_layer_is_the_mlp_of_a_dense_model():
    """The same kernels as in a model of such layers alone, whatever becomes of the experts of the others."""
    alone = dataclasses.replace(MAVERICK.dense, tied_embedding=MAVERICK.tied_embedding)
    own = next(step for step in plan(MAVERICK, job(), DGX).stages[0].steps if step.name == "mlp")
    other = next(step for step in plan(alone, job(ep=1), DGX).stages[0].steps if step.name == "mlp")
    assert (own.forward_s, own.backward_s, own.parameters) == (other.forward_s, other.backward_s, other.parameters)
    assert own.expert_parameters == 0


@pytest.mark.parametrize("model", [MAVERICK, DEEPSEEK])
def test_stages_hold_all_parameters(model):
    """Over ep 32 a rank has a 32nd of the experts, and all else of its stage."""
    split = job(gpus=128, pp=2)
    stages = [(split.stage_parameters(model, stage), split.stage_expert_parameters(model, stage)) for stage in (0, 1)]
    whole = sum(parameters + 31 * experts for parameters, experts in stages)
    assert whole == pytest.approx(model.parameters, rel=1e-6)
    if model is DEEPSEEK:
        assert stages[0][1] / 28 == pytest.approx(stages[1][1] / 30)


@pytest.mark.parametrize(("wrong", "message"), [
    ({"expert_every": 3}, r"expert_every 3, 48 layers have 32 dense ones, but dense_layers is 24"),
    ({"experts": 1, "expert_every": 0}, "need experts"),
])  # fmt: skip
def test_contradictions_are_refused(wrong, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(MAVERICK, **wrong)
