"""Processes of ranks and aggregators for the tests here."""

from __future__ import annotations

import pytest

from tests.support.launch import Aggregator, Rank
from tests.support.started import started
from tests.support.under_attack import Bystander


@pytest.fixture(scope="module")
def ranks():
    """`ranks(n)`: n idle rank processes. They serve all tests here; one that was killed, or still owes an answer to a
    test that failed, is replaced.
    """
    alive: list[Rank] = []

    def take(count: int) -> list[Rank]:
        for rank in [rank for rank in alive if rank.process.poll() is not None or rank.unanswered]:
            rank.kill()
            alive.remove(rank)
        alive.extend(Rank() for _ in range(count - len(alive)))
        return alive[:count]

    yield take
    for rank in alive:
        rank.kill()


@pytest.fixture(scope="module")
def aggregator():
    """For the tests that leave their aggregator alive."""
    running = Aggregator()
    yield running
    assert running.stop() == 0


@pytest.fixture
def start():
    """`start(*options, **ports)`: an aggregator process, killed after the test."""
    yield from started(Aggregator, Aggregator.kill)


@pytest.fixture
def bystander():
    """`bystander(aggregator)`: a Bystander; if the test ends well it must have been undisturbed."""
    yield from started(Bystander, Bystander.finish)
