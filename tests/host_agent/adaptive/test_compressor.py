"""Auto over a real aggregator: the same bits and the same decisions on every rank, and nothing lost by a change."""

from __future__ import annotations

import numpy as np
import pytest
from launch import LocalAggregator, digest, good, join_all, leave_all, on_all

from host_agent.adaptive import compressor, schedule
from host_agent.adaptive.compressor import AutoCompressor
from host_agent.adaptive.policy import CHOICES, Auto, BucketPolicy
from host_agent.compressed import AgentReducer
from switchml.errors import ConfigError

STEPS, RANKS = 40, 3
SIZES = {"bucket 0": 20_000, "bucket 1": 300}


@pytest.fixture(scope="module")
def trio():
    running = LocalAggregator()
    agents = join_all(running.address, RANKS, job="auto", wire="int16")
    yield agents
    leave_all(agents)
    running.stop()


def gradient(step: int, rank: int, name: str) -> np.ndarray:
    rng = np.random.default_rng((step, rank, SIZES[name]))
    return rng.standard_normal(SIZES[name]).astype(np.float32)


def train(agent, auto: AutoCompressor) -> tuple[list[str], dict[str, np.ndarray]]:
    """Digests of each step's means, and their sums by bucket."""
    digests, sums = [], {name: np.zeros(size) for name, size in SIZES.items()}
    for step in range(STEPS):
        means = {name: auto.allreduce(name, gradient(step, agent.rank, name)) for name in SIZES}
        digests.append(digest(list(means.values())))
        for name, mean in means.items():
            sums[name] += mean
    return digests, sums


def test_every_rank_has_the_same_means_and_decisions(trio):
    def run(agent):
        auto = AutoCompressor(AgentReducer(agent), Auto(error=0.9))
        return *train(agent, auto), auto.decisions, auto.choices

    results = good(on_all(trio, run))
    for other in results[1:]:
        assert other[0] == results[0][0]
        assert other[2] == results[0][2]
        assert other[3] == results[0][3]
    assert len(results[0][3]) == len(SIZES) and set(results[0][3]) <= set(CHOICES)
    for decision in results[0][2]:
        assert 0 < decision["step"] <= STEPS and decision["from"] != decision["to"]
        assert decision["error"] <= 0.9 and decision["goodput_bps"] > 0 and decision["latency_s"] > 0


def test_what_a_step_leaves_out_comes_with_a_later_one_whatever_its_codec(trio, monkeypatch):
    class EachInTurn(BucketPolicy):
        """0.3 % of the elements, 10 %, THC, … and everything in the end."""

        def decide(self, step, network, training_s=0.0):
            self.current = 0 if step >= STEPS - 2 else (len(CHOICES) - 1, 3, 2, 1)[step % 4]
            return self.current

    monkeypatch.setattr(compressor, "BucketPolicy", EachInTurn)
    monkeypatch.setattr(schedule, "MOST_STEPS", 1)
    results = good(on_all(trio, lambda agent: train(agent, AutoCompressor(AgentReducer(agent), Auto()))))
    for name in SIZES:
        every = [gradient(step, rank, name).astype(float) for step in range(STEPS) for rank in range(RANKS)]
        assert np.allclose(results[0][1][name], sum(every) / RANKS, atol=1e-2)


def test_memories_that_do_not_suit_every_choice(trio):
    with pytest.raises(ConfigError, match="memory dgc with codec auto: expected one of residual, none"):
        AutoCompressor(AgentReducer(trio[0]), Auto(), "dgc")
