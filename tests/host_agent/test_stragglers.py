"""Sums in a job with a deadline, which end without ranks that are late: all ranks have the same results, and a late
gradient stays with its rank. Gradients are whole numbers, so that sums are exact; halting its agent stops a rank."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from host_agent.agent import HostAgent
from host_agent.calls import LateContributions
from host_agent.stragglers import PartialRounds
from switchml.errors import ConfigError, JoinError, LeftBehind

NUMEL, ONE_CHUNK = 3000, 200
LONG, SHORT = 600.0, 0.02
KEPT = 1.0
"""A deadline that a rank keeps which is not stopped, also on a busy machine."""


def gradient(value):
    return np.full(NUMEL, value, np.float32)


def together(*calls):
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(60) for future in [pool.submit(call) for call in calls]]


def memory():
    return LateContributions(np.full(NUMEL, np.nan, np.float32))


@contextlib.contextmanager
def stopped(agent):
    agent.pause()
    try:
        yield
    finally:
        agent.resume()


def test_ranks_in_time_are_all_in_each_round(join):
    zero, one = (PartialRounds(agent, NUMEL) for agent in join(2, deadline_s=LONG))
    for step in range(3):
        results = together(
            lambda: zero.contribute(gradient(2.0), 1), lambda step=step: one.contribute(gradient(step), 1)
        )
        for (each,) in results:
            assert (each.ranks, each.late) == (2, 0.0) and (each.mean == (2.0 + step) / 2).all()
    assert not zero.memory().any()


@pytest.mark.parametrize("wire", ["int32", "int16"])
def test_nobody_waits_for_a_stopped_rank(join, wire):
    agents = join(3, deadline_s=KEPT, wire=wire)
    values = [np.arange(NUMEL, dtype=np.float32) % 7 + agent.rank for agent in agents]
    late = [memory() for _ in agents]

    def reduce(rank, op="sum"):
        return agents[rank].allreduce(values[rank], op, late=late[rank])

    with stopped(agents[2]):
        first = together(lambda: reduce(0), lambda: reduce(1))
        again = together(lambda: reduce(0, "mean"), lambda: reduce(1, "mean"))
    assert [(each.ranks, each.late_chunks) for each in late[:2]] == [(2, 0)] * 2 and not late[0].values.any()
    missed = [reduce(2), reduce(2, "mean")]
    assert late[2].is_behind and late[2].ranks == 2 and np.array_equal(late[2].values, values[2])
    assert missed[0].tobytes() == first[0].tobytes() == first[1].tobytes()
    assert missed[1].tobytes() == again[0].tobytes() == again[1].tobytes()
    expected = values[0] + values[1]
    np.testing.assert_allclose(missed[1], expected / 2, rtol=1e-6 if wire == "int32" else 1e-2)
    np.testing.assert_allclose(missed[0], expected * 1.5, rtol=1e-6 if wire == "int32" else 1e-2)
    assert agents[2].stats()["late"] == 2 * late[2].chunks
    assert agents[0].stats()["expired"] + agents[1].stats()["expired"] > 0  # whichever's deadline passed first


def test_rounds_are_the_same_everywhere_and_lose_nothing(join):
    members, steps = [PartialRounds(agent, ONE_CHUNK) for agent in join(3, deadline_s=SHORT)], 20

    def train(rank):
        chooser, given, rounds = np.random.default_rng(rank), np.zeros(ONE_CHUNK), []
        while len(rounds) < steps:
            if rank == 2 and chooser.random() < 0.3:
                with stopped(members[rank]._agent):
                    chooser.bytes(1 << 23)  # a few deadlines, more or less
            value = chooser.integers(-9, 9, ONE_CHUNK).astype(np.float32)
            given += value
            rounds += members[rank].contribute(value, steps - len(rounds))
        members[rank]._agent.barrier()
        return given, members[rank].memory(), rounds

    outcomes = together(*(lambda rank=rank: train(rank) for rank in range(3)))
    for each in zip(*(rounds for _, _, rounds in outcomes), strict=True):
        assert len({(round_.mean.tobytes(), round_.ranks) for round_ in each}) == 1
    summed = sum(round_.mean * np.float64(round_.ranks) for round_ in outcomes[0][2])
    np.testing.assert_allclose(summed, sum(given - kept for given, kept, _ in outcomes), atol=1e-3)


def test_other_sums_wait_for_everybody(join):
    agents = join(2, deadline_s=SHORT)

    def call(agent):
        integers = agent.allreduce(np.arange(600))
        floats = agent.allreduce(np.arange(600, dtype=np.float32), "mean")
        halves = agent.allreduce(np.ones(3, np.float16))
        agent.barrier()
        return integers, floats, halves

    with ThreadPoolExecutor(2) as pool:
        with stopped(agents[1]):
            futures = [pool.submit(call, agent) for agent in agents]
            with pytest.raises(TimeoutError):
                futures[0].result(5 * SHORT)
        for integers, floats, halves in [future.result(60) for future in futures]:
            assert np.array_equal(integers, 2 * np.arange(600)) and np.array_equal(floats, np.arange(600))
            assert np.array_equal(halves, np.full(3, 2))


def test_a_rank_that_is_too_far_behind(join):
    agents = join(2, deadline_s=SHORT, slots=16, payload_bytes=256)
    values = gradient(1.0)
    with stopped(agents[1]):
        for _ in range(3):  # of 47 chunks each
            agents[0].allreduce(values, late=memory())
    with pytest.raises(LeftBehind, match="16 chunks behind"):
        agents[1].allreduce(values, late=memory())
    last = memory()
    np.testing.assert_array_equal(agents[0].allreduce(values, late=last), 2 * values)  # it goes on alone
    assert last.ranks == 1


@pytest.mark.parametrize("options, message", [
    ({"wire": "exact"}, "can't be combined with wire exact"),
    ({"sparse": "on"}, "can't be combined with sparse on"),
    ({"transport": "shm"}, "can't be combined with transport shm"),
    ({"hierarchy": "node"}, "can't be combined with hierarchy node"),
    ({"standby": "127.0.0.1:1"}, "can't be combined with several aggregators, or standbys"),
    ({"deadline_s": -1.0}, "deadline -1 s: expected above 0"),
])  # fmt: skip
def test_what_does_not_go_with_a_deadline(aggregator, options, message):
    with pytest.raises(ConfigError, match=message):
        HostAgent.join(aggregator.address, job="never", rank=0, world_size=1, **{"deadline_s": 0.1} | options)


def test_what_does_not_fit(join, aggregator, monkeypatch):
    (alone,), (other,) = join(1, deadline_s=LONG), join(1)
    with pytest.raises(ConfigError, match=r"float64\[3000\]: expected float32\[3000\]"):
        PartialRounds(alone, NUMEL).contribute(np.zeros(NUMEL), 1)
    with pytest.raises(ConfigError, match="deadline 0 s: expected at least 1, and above 0"):
        PartialRounds(other, NUMEL)
    with pytest.raises(ConfigError, match="this job has no deadline"):
        other.allreduce(gradient(1.0), late=memory())
    with pytest.raises(ConfigError, match=r"late: float32\[3000\] for 2 of float32"):
        alone.allreduce(np.zeros(2, np.float32), late=memory())
    with pytest.raises(ConfigError, match="op 'max' waits for every rank"):
        alone.allreduce(gradient(1.0), "max", late=memory())
    monkeypatch.setenv("SWITCHML_DEADLINE", "soon")
    with pytest.raises(ConfigError, match="SWITCHML_DEADLINE"):
        HostAgent.join(aggregator.address, job="never", rank=0, world_size=1)


@pytest.mark.slow
def test_ranks_with_different_deadlines(aggregator):
    def enter(rank):
        options = {"job": "different", "rank": rank, "world_size": 2, "timeout_s": 3.0}
        return HostAgent.join(aggregator.address, deadline_s=1.0 + rank, **options)

    with ThreadPoolExecutor(2) as pool:
        errors = [future.exception(60) for future in [pool.submit(enter, rank) for rank in range(2)]]
    assert any("deadline_s" in str(error) for error in errors) and all(isinstance(e, JoinError) for e in errors)
