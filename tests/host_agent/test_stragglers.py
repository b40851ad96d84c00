"""Rounds that don't wait for stragglers: every rank has the same ones, and no gradient is lost or counted twice.
Gradients are whole numbers, so that sums are exact; no test depends on how long anything takes."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from host_agent.stragglers import PartialRounds
from switchml.errors import ConfigError

NUMEL = 300
NEVER = threading.TIMEOUT_MAX


@pytest.fixture
def rounds_of(join):
    """`rounds_of(deadlines)`: one rank's rounds for each deadline."""
    opened = []

    def begin(*deadlines):
        agents = join(len(deadlines))
        opened.extend(PartialRounds(agent, NUMEL, deadline) for agent, deadline in zip(agents, deadlines, strict=True))
        return opened

    yield begin
    for each in opened:
        each.close()
        each.close()


def gradient(value):
    return np.full(NUMEL, value, np.float32)


def together(*calls):
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(60) for future in [pool.submit(call) for call in calls]]


def seen(rounds):
    return [(float(each.mean[0]), each.ranks) for each in rounds]


def test_ranks_on_time_are_all_in_each_round(rounds_of):
    zero, one = rounds_of(NEVER, NEVER)
    for step in range(3):
        results = together(lambda: zero.contribute(gradient(2.0)), lambda step=step: one.contribute(gradient(step)))
        assert [seen(each) for each in results] == [[((2.0 + step) / 2, (0, 1))]] * 2


def test_a_late_gradient_goes_into_a_later_round(rounds_of):
    zero, late = rounds_of(NEVER, 0.0)
    assert seen(zero.contribute(gradient(8.0))) == [(8.0, (0,))]  # empty rounds before it do not count
    assert seen(late.contribute(gradient(3.0))) == [(8.0, (0,))]
    rounds = zero.contribute(gradient(1.0))
    while sum(mean * len(ranks) for mean, ranks in seen(rounds)) < 4.0:  # its next round may have begun without it
        rounds += zero.contribute(gradient(0.0))
    assert not late.memory().any()


def test_rounds_are_the_same_everywhere_and_lose_nothing(rounds_of):
    members, steps = rounds_of(NEVER, 0.0, 1e-3), 30

    def train(rank):
        chooser, given, rounds = np.random.default_rng(rank), 0, []
        while len(rounds) < steps:
            value = int(chooser.integers(1, 9))
            given += value
            rounds += seen(members[rank].contribute(gradient(value)))
        return given, rounds

    outcomes = together(*(lambda rank=rank: train(rank) for rank in range(3)))
    length = min(len(rounds) for _, rounds in outcomes)
    first = outcomes[0][1]
    assert length >= steps and all(rounds[:length] == first[:length] for _, rounds in outcomes)
    for _ in range(3):  # what is in the other ranks' memories goes into the next rounds
        first += seen(members[0].contribute(gradient(0)))
    assert round(sum(mean * len(ranks) for mean, ranks in first), 3) == sum(given for given, _ in outcomes)


def test_what_does_not_fit(rounds_of):
    (alone,) = rounds_of(NEVER)
    with pytest.raises(ConfigError, match=r"float64\[300\]: expected float32\[300\]"):
        alone.contribute(np.zeros(NUMEL))
    with pytest.raises(ConfigError, match="deadline_s -1"):
        PartialRounds(alone._agent, NUMEL, -1)
    alone.close()
    with pytest.raises(Exception, match="left"):
        alone.contribute(gradient(1.0))
