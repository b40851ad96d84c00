"""Authenticated packets: who forges addresses, tags and sequence numbers, or repeats what was sent before, changes no
sum. The attackers write with the ranks' own sockets and the aggregator's, and know everything but the key."""

import contextlib
import logging

import numpy as np
import pytest

from host_agent.agent import HostAgent
from switchml.control import allocation
from switchml.errors import JoinError, RanksDisagree
from switchml.protocol.authentication import TAG_BYTES
from switchml.protocol.chunks import packet_at
from switchml.runtime.memory import u8_at
from tests.support.forged import NUMEL, check_sums, forged_contributions, forged_results, sums_under
from tests.support.launch import LocalAggregator, contribution, good, join_all, leave_all, on_all, total
from tests.support.p4_served import Served
from tests.support.started import lasting

aggregator = lasting(LocalAggregator, tunnel=True)


@pytest.mark.parametrize("transport", ["udp", "zmq", "shm"])
def test_sums(aggregator, transport):
    agents = join_all(aggregator.address, 3, job=f"sums {transport}", transport=transport, authenticate=True)
    check_all_dtypes(agents)
    leave_all(agents)


def test_sums_where_packets_are_lost_and_ranks_differ_in_transport(monkeypatch):
    """Retransmissions, wait packets, sparse streams, all payloads; and one rank in shared memory."""
    monkeypatch.setenv("SWITCHML_LOSS_RATE", "0.05")
    monkeypatch.setenv("SWITCHML_REORDER_RATE", "0.05")
    running = LocalAggregator()
    for payload_bytes, sparse in ((1024, None), (256, "on:block=32")):
        options = {"payload_bytes": payload_bytes, "sparse": sparse, "authenticate": True}
        agents = join_all(running.address, 3, job=f"lossy {payload_bytes}", transport="udp", **options)
        check_all_dtypes(agents)
        assert sum(agent.stats()["retransmitted"] for agent in agents) > 0
        assert not any(agent.stats()["refused_auth"] for agent in agents)
        leave_all(agents)
    monkeypatch.delenv("SWITCHML_LOSS_RATE")
    monkeypatch.delenv("SWITCHML_REORDER_RATE")

    def join(rank: int) -> HostAgent:
        transport = ("shm", "udp", "udp")[rank]
        return HostAgent.join(
            running.address, job="mixed", rank=rank, world_size=3, transport=transport, authenticate=True
        )

    agents = good(on_all(range(3), join))
    check_all_dtypes(agents)
    leave_all(agents)
    running.stop()


@pytest.mark.parametrize("isn", [0, 2**32 - 1024])
def test_sums_where_sequence_numbers_wrap(aggregator, monkeypatch, isn):
    monkeypatch.setattr(allocation, "draw_isn", lambda slots, randbelow: isn)
    agents = join_all(aggregator.address, 3, job=f"isn {isn}", transport="udp", slots=512, authenticate=True)
    check_all_dtypes(agents)
    leave_all(agents)


def check_all_dtypes(agents: list[HostAgent], numel: int = 40_000) -> None:
    for seed, dtype in enumerate(("float32", "int64", "float64", "float16")):
        results = on_all(agents, lambda agent, s=seed, d=dtype: agent.allreduce(contribution(s, agent.rank, numel, d)))
        for result in good(results):
            np.testing.assert_array_equal(result, total(seed, len(agents), numel, dtype))


def test_forged_packets(aggregator, attempts):
    """Contributions from a rank's very socket, results from the aggregator's: with no tag, another one, or one cut."""
    plane = aggregator.dataplane
    generator = np.random.default_rng(1)
    open_to_all = join_all(aggregator.address, 2, job="open", transport="udp")
    with contextlib.suppress(RanksDisagree):  # where a lie meets a round of another kind
        sums = sums_under(open_to_all, lambda: send_all(open_to_all[1], plane.address, forged_contributions), 0)
        assert not np.array_equal(sums[0], total(0, 2, NUMEL, "int32"))  # without authentication the attack works
    leave_all(open_to_all)

    agents = join_all(aggregator.address, 2, job="closed", transport="udp", authenticate=True)
    sent = 0
    for seed in range(attempts.scaled(20)):
        tail = (b"", generator.bytes(TAG_BYTES), generator.bytes(3))[seed % 3]

        def attack(tail: bytes = tail) -> None:
            nonlocal sent
            sent += send_all(agents[1], plane.address, forged_contributions, tail)
            for packet in forged_results(agents[0]):
                plane._socket.sendto(packet + tail, agents[0]._transport.data_address)
                sent += 1

        check_sums(agents, attack, seed)
    counted = plane.counters(agents[0]._session.info.job_id).ranks[1]
    assert counted["refused_auth"] > 0 and agents[0].stats()["refused_auth"] > 0
    leave_all(agents)
    attempts.record("forged packets in an authenticated job", sent)


def send_all(agent: HostAgent, to: tuple[str, int], make, tail: bytes = b"") -> int:
    packets = make(agent)
    for packet in packets:
        agent._transport.socket.sendto(packet + tail, to)
    return len(packets)


def test_replayed_packets(aggregator, attempts):
    """What ranks and aggregator have sent before, in this job and in an earlier one of the same name."""
    plane = aggregator.dataplane
    contributions: list[bytes] = []
    results: list[bytes] = []
    sent = 0
    for _ in range(2):
        agents = join_all(aggregator.address, 2, job="replayed", transport="udp", authenticate=True)
        job = plane._jobs[agents[0]._session.info.job_id]
        for seed in range(attempts.scaled(10)):

            def attack(agents=agents) -> None:
                nonlocal sent
                for packet in contributions:
                    agents[1]._transport.socket.sendto(packet, plane.address)
                for packet in results:
                    plane._socket.sendto(packet, agents[0]._transport.data_address)
                sent += len(contributions) + len(results)

            check_sums(agents, attack, seed)
            contributions[:] = (contributions + seen_packets(agents[1]))[-400:]
            results[:] = (results + seen_results(job.pool))[-400:]
        leave_all(agents)
    attempts.record("replayed packets in an authenticated job", sent)


def seen_packets(agent: HostAgent) -> list[bytes]:
    """The last packets of an agent's first slots, with their tags."""
    worker = agent.core.worker
    lengths = worker.state.slots["length"][:40].tolist()
    return [
        u8_at(packet_at(worker.state, slot), length + TAG_BYTES).tobytes()
        for slot, length in enumerate(lengths)
        if length
    ]


def seen_results(pool) -> list[bytes]:
    """The last results of a pool's first rows, with their tags."""
    size = pool.rows.shape[1]
    return [u8_at(pool.first_result + row * size, size).tobytes() for row in range(40)]


def test_a_tag_of_another_rank_is_refused(aggregator):
    """Ranks have the same key, but what one signed is not taken from another."""
    agents = join_all(aggregator.address, 2, job="swapped", transport="udp", authenticate=True)

    def attack() -> None:
        for packet in seen_packets(agents[0]):
            agents[1]._transport.socket.sendto(packet, aggregator.dataplane.address)

    check_sums(agents, attack, 1)
    counted = aggregator.dataplane.counters(agents[0]._session.info.job_id).ranks[1]
    assert counted["refused_auth"] > 0
    leave_all(agents)


def test_ranks_must_agree(aggregator):
    def join(rank: int) -> HostAgent:
        return HostAgent.join(
            aggregator.address, job="agreed", rank=rank, world_size=2, timeout_s=5, authenticate=rank == 0
        )

    outcomes = on_all(range(2), join)
    assert all(isinstance(outcome, JoinError) for outcome in outcomes)
    assert any("requests authenticate" in str(outcome) for outcome in outcomes)


def test_a_p4_switch_refuses_it():
    says = "a P4 switch can't compute the tags of packets: join without authenticate"
    with Served() as served, pytest.raises(JoinError, match=says):
        HostAgent.join(served.address, job="switch", rank=0, world_size=1, authenticate=True)


@pytest.mark.parametrize("text", ["yes", "2"])
def test_the_environment_says_so(aggregator, monkeypatch, text):
    monkeypatch.setenv("SWITCHML_AUTHENTICATE", "1")
    with HostAgent.join(aggregator.address, job="environment", rank=0, world_size=1, transport="udp") as agent:
        assert agent._session.info.key
    monkeypatch.setenv("SWITCHML_AUTHENTICATE", text)
    with pytest.raises(Exception, match=f"SWITCHML_AUTHENTICATE={text}: expected 0 or 1"):
        HostAgent.join(aggregator.address, job="environment", rank=0, world_size=1)


def test_a_key_in_the_clear_is_reported(aggregator, monkeypatch, caplog):
    """Not on loopback, where every other test here is."""
    caplog.set_level(logging.WARNING, "host_agent")
    monkeypatch.setattr("host_agent.joining.is_beyond_loopback", lambda host: True)
    address = aggregator.address
    options = {"transport": "shm", "bind_ip": "127.0.0.1", "authenticate": True}
    HostAgent.join(address, job="clear", rank=0, world_size=1, **options).leave()
    assert "without TLS (SWITCHML_TLS_CA) the key that authenticates its packets is sent to" in caplog.text
