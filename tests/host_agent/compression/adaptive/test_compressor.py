"""Auto over a real aggregator: the same bits and the same decisions on every rank, and nothing lost by a change."""

from __future__ import annotations

import numpy as np
import pytest

from host_agent.compression.adaptive import compressor, schedule
from host_agent.compression.adaptive.compressor import AutoCompressor
from host_agent.compression.adaptive.policy import CHOICES, Auto, BucketPolicy
from host_agent.compression.by_bucket import BucketCompressor
from host_agent.compression.compressed import AgentReducer, Compressor
from switchml.codecs.exchange import roll_back
from switchml.errors import ConfigError
from tests.support.launch import LocalAggregator, digest, good, join_all, leave_all, on_all

STEPS, RANKS = 40, 3
SIZES = {"bucket 0": 20_000, "bucket 1": 300}
OTHERS = {"bucket 0": 20_000, "bucket 2": 700}
"""What comes after them: a name has disappeared, and another one is new."""


@pytest.fixture(scope="module")
def trio():
    running = LocalAggregator()
    agents = join_all(running.address, RANKS, job="auto", wire="int16")
    yield agents
    leave_all(agents)
    running.stop()


def gradient(step: int, rank: int, name: str) -> np.ndarray:
    size = (SIZES | OTHERS)[name]
    return np.random.default_rng((step, rank, size)).standard_normal(size).astype(np.float32)


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
    monkeypatch.setattr(schedule, "MAX_STEPS", 1)
    results = good(on_all(trio, lambda agent: train(agent, AutoCompressor(AgentReducer(agent), Auto()))))
    for name in SIZES:
        every = [gradient(step, rank, name).astype(float) for step in range(STEPS) for rank in range(RANKS)]
        assert np.allclose(results[0][1][name], sum(every) / RANKS, atol=1e-2)


@pytest.mark.parametrize("pause", [1, 3])
def test_names_that_disappear_and_names_that_are_new(trio, monkeypatch, pause):
    monkeypatch.setattr(schedule, "MAX_STEPS", pause)

    def run(agent):
        auto, means = AutoCompressor(AgentReducer(agent), Auto()), []
        for step in range(STEPS):
            sizes = SIZES if step < 10 else OTHERS if step % 2 else {"bucket 0": 20_000}
            means += [auto.allreduce(name, gradient(step, agent.rank, name)) for name in sizes]
        return digest(means), auto.decisions, auto.choices

    results = good(on_all(trio, run))
    assert results[1:] == results[:1] * (RANKS - 1)
    assert len(results[0][2]) == len(OTHERS)


def test_steps_are_reported_when_a_name_has_disappeared_and_when_one_is_new(trio, monkeypatch):
    monkeypatch.setattr(schedule.Calendar, "is_reported", lambda calendar, step: True)

    def run(agent):
        told: list[list[tuple]] = []
        auto = AutoCompressor(AgentReducer(agent), Auto())
        auto._watch.sees_change = lambda choices, seconds, latency_s: told[-1].append(choices)
        for sizes in (SIZES, {"bucket 0": 20_000}, OTHERS):
            told.append([])
            for step in range(6):
                for name in sizes:
                    auto.allreduce(name, gradient(step, agent.rank, name))
        return [[[bucket for bucket, _ in choices] for choices in each] for each in told]

    both, alone, others = good(on_all(trio, run))[0]
    # The last step of each kind is heard of in the first of the next, and the first one is not known to be over.
    assert both == [[0, 1]] * 4
    assert alone == [[0, 1]] + [[0]] * 4
    assert others[:2] == [[0], [0]] and others[2:] == [[0, 2]] * 4


def test_every_rank_knows_the_same_costs_whatever_its_gradients_are_like(trio, monkeypatch):
    monkeypatch.setattr(schedule, "MAX_STEPS", 1)

    def run(agent):
        auto = AutoCompressor(AgentReducer(agent), Auto())
        x = np.zeros(200_000, np.float32)
        x[:: 1 + 9 * (agent.rank > 0)][:20_000] = 1.0  # one rank's are close together, in few packets
        for _ in range(len(CHOICES) + 2):
            auto.allreduce("bucket 0", x)
        return auto._buckets["bucket 0", x.size].policy.costs

    costs = good(on_all(trio, run))
    assert costs[1:] == costs[:1] * (RANKS - 1)
    assert all(each.wire_bytes > 0 for each in costs[0])


def test_memories_that_do_not_suit_every_choice(trio):
    with pytest.raises(ConfigError, match="memory dgc with codec auto: expected one of residual, none"):
        AutoCompressor(AgentReducer(trio[0]), Auto(), "dgc")


@pytest.mark.parametrize("make", [
    lambda reducer: AutoCompressor(reducer, Auto()),
    lambda reducer: Compressor(reducer, "topk:ratio=0.1"),
    lambda reducer: BucketCompressor(reducer, ["topk:ratio=0.1", "topk:ratio=0.2"]),
])  # fmt: skip
def test_of_a_step_with_an_infinity_no_tensor_leaves_a_trace(trio, make):
    """Where one rank has an infinity in the second tensor, the first has already been exchanged."""

    def run(agent):
        compressor, kept = make(AgentReducer(agent)), []
        for step in range(4):
            before, compressor.guards, means = residuals(compressor), [], []
            for name in ("bucket 0", "bucket 1", "bucket 2"):
                x = gradient(step, agent.rank, name)
                if step == 2 and name == "bucket 1" and agent.rank == 1:
                    x[11] = np.inf
                means.append(compressor.allreduce(name, x))
            assert [bool(np.isfinite(mean).all()) for mean in means] == [True, step != 2, True]
            roll_back(compressor.guards)
            kept.append(before == residuals(compressor))
        return kept[2], isinstance(compressor, AutoCompressor) or not any(kept[:2] + kept[3:])

    assert good(on_all(trio, run)) == [(True, True)] * RANKS


def residuals(compressor):
    """Of all tensors, as text and bytes."""
    if isinstance(compressor, BucketCompressor):
        return [residuals(each) for each in compressor._compressors.values()]
    if isinstance(compressor, AutoCompressor):
        states = {key: vars(bucket.feedback_state) for key, bucket in compressor._buckets.items()}
    else:
        states = {key: saved["memory"] for key, saved in compressor.state_dict()["tensors"].items()}
    return {
        (key, name): value.tobytes() if isinstance(value, np.ndarray) else repr(value)
        for key, state in states.items()
        for name, value in state.items()
    }


def test_a_step_that_is_not_finite_leaves_no_trace(trio):
    """Where one rank has an infinity, all ranks' means are spoiled in that step alone."""

    def run(agent):
        auto, finite = AutoCompressor(AgentReducer(agent), Auto()), []
        for step in range(8):
            x = gradient(step, agent.rank, "bucket 0")
            if step == 3 and agent.rank == 1:
                x[11] = np.inf
            finite.append(bool(np.isfinite(auto.allreduce("bucket 0", x)).all()))
        return finite

    assert good(on_all(trio, run)) == [[step != 3 for step in range(8)]] * RANKS
