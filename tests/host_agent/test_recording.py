"""Notes of packets and calls against the agent's own counters, on every way of packets that a plain machine has."""

from __future__ import annotations

import numpy as np
import pytest

from host_agent import recording
from host_agent.packet_log import RECEIVED, REPEATED, RESENT, SENT, PacketLog, new_packet_log
from switchml.protocol.packet import LARGE_BYTES
from tests.support.launch import contribution, join_all, leave_all, on_all, total
from tests.support.started import started

SIZE = 40_000


@pytest.fixture
def record():
    """`record(…)` is `recording.start(…)`; what a test leaves running is stopped."""
    yield from started(recording.start, recording.stop)


def allreduce(agents, size: int = SIZE, dtype: str = "float32") -> None:
    def one(agent):
        return agent.allreduce(contribution(1, agent.rank, size, dtype), timeout_s=60)

    for result in on_all(agents, one):
        np.testing.assert_array_equal(result, total(1, len(agents), size, dtype))


def grown(log: recording.AgentLog, name: str) -> int:
    return log.after[name] - log.before[name]


def agrees_with_counters(log: recording.AgentLog) -> None:
    counts = np.bincount(log.packets["what"], minlength=4)
    assert log.lost == 0
    assert counts[SENT] + counts[RESENT] == grown(log, "sent")
    assert counts[RESENT] == grown(log, "retransmitted")
    assert counts[RECEIVED] + counts[REPEATED] == grown(log, "received")


@pytest.mark.parametrize(
    ("transport", "loss", "reorder"),
    [("udp", "0", "0"), ("udp", "0.05", "0"), ("udp", "0.05", "0.3"), ("shm", "0", "0")],
)
def test_packets_are_what_the_counters_say(aggregator, record, monkeypatch, transport, loss, reorder):
    monkeypatch.setenv("SWITCHML_LOSS_RATE", loss)
    monkeypatch.setenv("SWITCHML_REORDER_RATE", reorder)
    agents = join_all(aggregator.address, 2, job=f"recorded {transport} {loss} {reorder}", transport=transport)
    try:
        allreduce(agents)
        running = record()
        for _ in range(3):
            allreduce(agents)
        recording.stop(running)
        allreduce(agents)
    finally:
        leave_all(agents)
    log = sorted(running.logs, key=lambda each: each.rank)
    assert [each.rank for each in log] == [0, 1]
    sent = []
    for each in log:
        agrees_with_counters(each)
        packets = each.packets
        first = packets[packets["what"] == SENT]
        assert set(first["tensor"]) == {1, 2, 3}
        chunks = [set(first["chunk"][first["tensor"] == tensor]) for tensor in (1, 2, 3)]
        data_bytes = LARGE_BYTES if transport == "shm" else 1024
        assert chunks == [set(range(-(-SIZE * 4 // data_bytes) + 1))] * 3  # the last one is the seal
        new = packets[packets["what"] == RECEIVED]
        order = ["tensor", "chunk", "seq", "version"]
        np.testing.assert_array_equal(np.sort(first[order]), np.sort(new[order]), "every round got its result, once")
        sent.append(np.sort(first[order]))
        if loss != "0":
            assert (packets["what"] == RESENT).any()
            repeated = packets[packets["what"] == REPEATED]
            earlier = repeated["tensor"] == -1  # a result of the call before the recording, delayed until now
            assert set(repeated["chunk"][~earlier]) <= set(first["chunk"])
            assert set(repeated["chunk"][earlier]) <= {-1}
    np.testing.assert_array_equal(*sent, "a transaction has the same name on all ranks")


def test_calls(aggregator, record):
    agents = join_all(aggregator.address, 2, job="recorded calls")
    try:
        running = record()
        with recording.launching():
            agents[0].allreduce(np.ones(5, np.float16), async_op=True)
        agents[1].allreduce(np.ones(5, np.float16), async_op=True).wait(60)
        allreduce(agents)
    finally:
        leave_all(agents)
    recording.stop(running)
    for log in running.logs:
        calls = log.calls_array()
        assert calls["tensor"].tolist() == [0, 1]
        assert calls["bytes"].tolist() == [10, 4 * SIZE]
        assert (calls["launch"] >= 0).tolist() == [log.rank == 0, False]
        assert not calls["failed"].any()
        assert (calls["submitted"] <= calls["started"]).all() and (calls["started"] <= calls["done"]).all()
        agrees_with_counters(log)


def test_agents_that_join_later_are_recorded_too(aggregator, record):
    running = record()
    agents = join_all(aggregator.address, 2, job="late")
    try:
        allreduce(agents)
    finally:
        leave_all(agents)
    assert [log.ranks for log in running.logs] == [(0, 1), (0, 1)]
    for log in running.logs:
        agrees_with_counters(log)


def test_a_full_tape_counts_what_it_lost(aggregator, record):
    agents = join_all(aggregator.address, 2, job="full")
    try:
        running = record(most_packets=10)
        allreduce(agents)
        recording.stop(running)
    finally:
        leave_all(agents)
    for log in running.logs:
        assert len(log.packets) == 10
        assert log.lost == grown(log, "sent") + grown(log, "received") - 10 > 0


def test_logs_are_in_the_order_of_joining(record, monkeypatch):
    """So that the parts of a job have the same number on every rank."""
    monkeypatch.setattr(recording, "_agents", type(recording._agents)())
    agents = [Idle(f"job {number}") for number in range(20)]
    for agent in agents:
        recording.register(agent)
    assert [log.job for log in record().logs] == [agent.job for agent in agents]


class Idle:
    """An agent without calls."""

    job_tag, rank, transport, wire, log, global_ranks = 0, 0, "udp", "int32", None, (0, 1)

    def __init__(self, job: str) -> None:
        self.job = job

    def stats(self) -> dict[str, float]:
        return {}

    def new_packet_log(self, packets: int) -> PacketLog:
        return new_packet_log(0, 1)

    def record(self, log: recording.AgentLog | None) -> None:
        self.log = log
