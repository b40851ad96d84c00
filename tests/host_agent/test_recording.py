"""Notes of packets and calls against the agent's own counters, on every way of packets that a plain machine has."""

from __future__ import annotations

import numpy as np
import pytest

from host_agent import recording
from host_agent.tape import RECEIVED, REPEATED, RESENT, SENT
from tests.support.launch import LocalAggregator, contribution, join_all, leave_all, on_all, total

SIZE = 40_000


@pytest.fixture(scope="module")
def aggregator():
    running = LocalAggregator()
    yield running
    running.stop()


@pytest.fixture
def record():
    """`record(…)` is `recording.start(…)`; what a test leaves running is stopped."""
    started = []

    def begin(**options) -> recording.Recording:
        started.append(recording.start(**options))
        return started[-1]

    yield begin
    for each in started:
        recording.stop(each)


def allreduce(agents, size: int = SIZE, dtype: str = "float32") -> None:
    def one(agent):
        return agent.allreduce(contribution(1, agent.rank, size, dtype), timeout_s=60)

    for result in on_all(agents, one):
        np.testing.assert_array_equal(result, total(1, len(agents), size, dtype))


def grown(notes: recording.Notes, name: str) -> int:
    return notes.after[name] - notes.before[name]


def agrees_with_counters(notes: recording.Notes) -> None:
    counts = np.bincount(notes.packets["what"], minlength=4)
    assert notes.lost == 0
    assert counts[SENT] + counts[RESENT] == grown(notes, "sent")
    assert counts[RESENT] == grown(notes, "retransmitted")
    assert counts[RECEIVED] + counts[REPEATED] == grown(notes, "received")


@pytest.mark.parametrize(("transport", "loss"), [("udp", "0"), ("udp", "0.05"), ("shm", "0")])
def test_packets_are_what_the_counters_say(aggregator, record, monkeypatch, transport, loss):
    monkeypatch.setenv("SWITCHML_LOSS_RATE", loss)
    agents = join_all(aggregator.address, 2, job=f"notes {transport} {loss}", transport=transport)
    try:
        allreduce(agents)
        running = record()
        for _ in range(3):
            allreduce(agents)
        recording.stop(running)
        allreduce(agents)
    finally:
        leave_all(agents)
    notes = sorted(running.notes, key=lambda each: each.rank)
    assert [each.rank for each in notes] == [0, 1]
    sent = []
    for each in notes:
        agrees_with_counters(each)
        packets = each.packets
        first = packets[packets["what"] == SENT]
        assert set(first["tensor"]) == {1, 2, 3}
        chunks = [set(first["chunk"][first["tensor"] == tensor]) for tensor in (1, 2, 3)]
        assert chunks == [set(range(-(-SIZE * 4 // 1024)))] * 3
        new = packets[packets["what"] == RECEIVED]
        order = ["tensor", "chunk", "seq", "version"]
        np.testing.assert_array_equal(np.sort(first[order]), np.sort(new[order]), "every round got its result, once")
        sent.append(np.sort(first[order]))
        if loss != "0":
            assert (packets["what"] == RESENT).any()
            assert set(packets["chunk"][packets["what"] == REPEATED]) <= set(first["chunk"])
    np.testing.assert_array_equal(*sent, "a transaction has the same name on all ranks")


def test_calls(aggregator, record):
    agents = join_all(aggregator.address, 2, job="notes of calls")
    try:
        running = record()
        with recording.launching():
            agents[0].allreduce(np.ones(5, np.float16), async_op=True)
        allreduce(agents, 0)  # nothing to sum: no call
        agents[1].allreduce(np.ones(5, np.float16), async_op=True).wait(60)
        allreduce(agents)
    finally:
        leave_all(agents)
    recording.stop(running)
    for notes in running.notes:
        calls = notes.calls_array()
        assert calls["tensor"].tolist() == [0, 1]
        assert calls["bytes"].tolist() == [10, 4 * SIZE]
        assert (calls["launch"] >= 0).tolist() == [notes.rank == 0, False]
        assert not calls["failed"].any()
        assert (calls["submitted"] <= calls["started"]).all() and (calls["started"] <= calls["done"]).all()
        agrees_with_counters(notes)


def test_agents_that_join_later_take_notes_too(aggregator, record):
    running = record()
    agents = join_all(aggregator.address, 2, job="late")
    try:
        allreduce(agents)
    finally:
        leave_all(agents)
    assert [notes.ranks for notes in running.notes] == [(0, 1), (0, 1)]
    for notes in running.notes:
        agrees_with_counters(notes)


def test_a_full_tape_counts_what_it_lost(aggregator, record):
    agents = join_all(aggregator.address, 2, job="full")
    try:
        running = record(most_packets=10)
        allreduce(agents)
        recording.stop(running)
    finally:
        leave_all(agents)
    for notes in running.notes:
        assert len(notes.packets) == 10
        assert notes.lost == grown(notes, "sent") + grown(notes, "received") - 10 > 0
