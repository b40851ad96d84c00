"""Ranks that compare clocks over a store: here threads, whose clock is the same."""

from __future__ import annotations

from datetime import timedelta

import pytest

pytest.importorskip("torch")

import torch.distributed as dist

from host_agent.profile import clocks
from host_agent.profile.clocks import ROUNDS, Pings
from tests.support.launch import good, on_all


@pytest.fixture
def store(monkeypatch):
    shared = dist.HashStore()
    monkeypatch.setattr(clocks, "_store", lambda: shared)
    return shared


def exchanged(ranks: list[Pings], times: int) -> None:
    good(on_all(ranks, lambda one: [one.exchange() for _ in range(times)]))


def test_each_message_has_two_ends(store):
    ranks = together(3)
    exchanged(ranks, 2)
    ends = {(message, is_sent): at_ns for rank in ranks for message, at_ns, is_sent in rank.rows}
    assert sum(len(rank.rows) for rank in ranks) == len(ends) == 2 * 2 * 2 * ROUNDS * 2
    for message in range(2 * 2 * 2 * ROUNDS):
        assert ends[message, True] < ends[message, False], "it left before it came"
    assert ranks[0].columns()["sent"].count(True) == len(ranks[0].rows) // 2
    # Only how many questions there were is left.
    assert store.num_keys() <= 3


def test_nobody_waits_forever(store, monkeypatch):
    monkeypatch.setattr(clocks, "PATIENCE", timedelta(milliseconds=50))
    for rank in range(2):
        alone = together(2)[rank]
        alone.exchange()
        before = list(alone.rows)
        assert len(before) <= 1
        alone.exchange()
        assert alone.rows == before, "once nobody came, it does not try again"


def test_without_a_group_nothing_is_compared():
    one = Pings(0, 2)
    one.exchange()
    assert one.columns() == {"message": [], "at_ns": [], "sent": []}


def together(ranks: int) -> list[Pings]:
    """Of one window, as in processes of their own."""
    made = [Pings(rank, ranks) for rank in range(ranks)]
    for one in made:
        one._window = made[0]._window
    return made
