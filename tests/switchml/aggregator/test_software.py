"""The software aggregator's data side over real UDP sockets: who gets which bytes, what is refused, and what the
control plane learns of it."""

from __future__ import annotations

import os

import numpy as np
import pytest

from switchml.control.dataplane import JobSpec
from switchml.errors import ConfigError
from switchml.protocol.packet import CONTRIBUTION, RESULT, V1_SLOTS
from tests.support.dataplane import DEADLINE_S, Marker, Workers, address_of, drain
from tests.support.launch import until
from tests.support.packets import V1Packet, V2Packet
from tests.support.vectors_io import Scenario, load_all

SCENARIOS = load_all()
VERDICTS = ("accepted", "answered", "duplicates", "stale", "refused_window", "refused_tag", "refused_format")


# The vectors


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_scenario(scenario: Scenario, start, bind):
    """Every scenario of tests/vectors: who shall get bytes gets them from the data port, and nobody else gets any."""
    # An empty datagram is a packet like any other only where none may be meant to wake the aggregator (net/shm.py).
    dataplane = start(shared_memory=False)
    marker = Marker(dataplane, bind)
    sockets = [bind(address_of(1, 0))]
    # v1 answers to the UDP port of the packet that completed the slot: all workers use the same one.
    port = sockets[0].getsockname()[1] if scenario.protocol == 1 else 0
    sockets += [bind(address_of(1, rank), port) for rank in range(1, scenario.workers)]
    addresses = tuple((s.getsockname()[0], 0 if scenario.protocol == 1 else s.getsockname()[1]) for s in sockets)
    slots = V1_SLOTS if scenario.protocol == 1 else scenario.slots
    dataplane.start_job(
        JobSpec(
            7,
            scenario.protocol,
            scenario.workers,
            slots,
            scenario.payload_bytes,
            addresses,
            scenario.tag,
            scenario.isn,
            scenario.wire,
        )
    )

    counted = (*VERDICTS, "received_packets", "received_bytes", "sent_packets", "sent_bytes")
    expected = {rank: dict.fromkeys(counted, 0) for rank in range(scenario.workers)}
    for step in scenario.steps:
        sockets[step.rank].sendto(step.data, dataplane.address)
        marker.pass_through()
        receivers = {"multicast": step.to, "unicast": [step.rank], "wait": [step.rank]}.get(step.action, [])
        for rank, sock in enumerate(sockets):
            assert drain(sock) == ([(step.reply_to(rank), dataplane.address)] if rank in receivers else []), (
                f"{step.label}: rank {rank}"
            )
        mine = expected[step.rank]
        mine["received_packets"] += 1
        mine["received_bytes"] += len(step.data)
        if step.counter:
            mine[step.counter] += 1
        for rank in receivers:
            expected[rank]["sent_packets"] += 1
            expected[rank]["sent_bytes"] += len(step.reply_to(rank))
    counters = dataplane.counters(7).ranks
    for rank, counts in expected.items():
        names = counts if scenario.protocol == 2 else [name for name in counts if name not in VERDICTS]
        assert {name: counters[rank][name] for name in names} == {name: counts[name] for name in names}, f"rank {rank}"
    assert dataplane.refused() == {"refused_address": 0}


# Who may speak


def test_packets_from_strangers_are_counted_and_change_nothing(dataplane, marker, bind):
    job = Workers(dataplane, bind, 1, 2)
    stranger = bind("127.0.0.1")
    neighbour = bind(job.sockets[1].getsockname()[0])  # rank 1's address, another port
    for sock in (stranger, neighbour):
        for round_ in range(4):
            sock.sendto(job.packet(round_, 0, np.full(64, 666)), dataplane.address)
        sock.sendto(b"", dataplane.address)
        sock.sendto(os.urandom(5000), dataplane.address)
    job.send(0, job.packet(0, 0, np.full(64, 1)))
    job.send(1, job.packet(0, 0, np.full(64, 2)))
    marker.pass_through()
    assert dataplane.refused() == {"refused_address": 12}
    assert drain(stranger) == drain(neighbour) == []
    for rank in range(2):
        assert [data for data, _ in drain(job.sockets[rank])] == [job.packet(0, 0, np.full(64, 3), kind=RESULT)]
        assert dataplane.counters(1).ranks[rank]["received_packets"] == 1


def test_a_member_of_one_job_cannot_speak_in_another(dataplane, marker, bind):
    ours, theirs = Workers(dataplane, bind, 1, 2), Workers(dataplane, bind, 2, 2)
    ours.send(0, ours.packet(0, 0, np.full(64, 1)))
    theirs.send(1, ours.packet(0, 0, np.full(64, 666)))  # right tag and number, from the other job's rank 1
    ours.send(1, ours.packet(0, 0, np.full(64, 2)))
    marker.pass_through()
    assert dataplane.counters(2).ranks[1]["refused_tag"] == 1
    assert drain(theirs.sockets[0]) == drain(theirs.sockets[1]) == []
    assert [data for data, _ in drain(ours.sockets[0])] == [ours.packet(0, 0, np.full(64, 3), kind=RESULT)]


def test_addresses_belong_to_one_worker(dataplane):
    def v2(job_id, *addresses):
        return JobSpec(job_id, 2, len(addresses), 4, 256, addresses, job_tag=job_id)

    def v1(job_id, *addresses):
        return JobSpec(job_id, 1, len(addresses), V1_SLOTS, 256, addresses)

    dataplane.start_job(v2(1, ("127.0.1.1", 5000), ("127.0.1.2", 5000)))
    with pytest.raises(ConfigError, match=r"127\.0\.1\.2:5000 of rank 0 belongs to rank 1 of job 1"):
        dataplane.start_job(v2(2, ("127.0.1.2", 5000)))
    dataplane.start_job(v2(2, ("127.0.1.2", 5001)))  # another port is another agent
    with pytest.raises(ConfigError, match="belongs to rank 0 of job 1"):
        dataplane.start_job(v1(3, ("127.0.1.1", 0)))  # v1 has no ports: the address would be claimed twice
    with pytest.raises(ConfigError, match=r"given for rank 0 and for rank 2"):
        dataplane.start_job(v2(3, ("127.0.1.9", 1), ("127.0.1.9", 2), ("127.0.1.9", 1)))
    dataplane.start_job(v1(3, ("127.0.2.1", 0), None))
    with pytest.raises(ConfigError, match="belongs to rank 0 of job 3"):
        dataplane.start_job(v2(4, ("127.0.2.1", 7777)))
    for ip in ("127.0.2.1", "127.0.1.2"):
        with pytest.raises(ConfigError, match="belongs to"):
            dataplane.set_address(3, 1, (ip, 0))
    with pytest.raises(ConfigError, match="job 1 is running already"):
        dataplane.start_job(v2(1, ("127.0.3.1", 1)))
    with pytest.raises(KeyError):
        dataplane.set_address(77, 0, ("127.0.3.1", 0))
    with pytest.raises(KeyError):
        dataplane.counters(77)
    dataplane.stop_job(77)  # unknown ones are ignored
    dataplane.stop_job(1)
    dataplane.start_job(v1(4, ("127.0.1.1", 0)))  # free now


# v1


def test_v1_addresses_become_known_one_by_one(dataplane, marker, bind):
    sockets = [bind(address_of(1, 0))]
    port = sockets[0].getsockname()[1]
    sockets.append(bind(address_of(1, 1), port))
    dataplane.start_job(JobSpec(1, 1, 2, V1_SLOTS, 256, ((address_of(1, 0), 0), None)))
    packets = [V1Packet(3, 9, 17, 0, rank, 0, np.full(64, 10 + rank, np.int32)).pack() for rank in range(2)]
    sockets[0].sendto(packets[0], dataplane.address)
    sockets[1].sendto(packets[1], dataplane.address)
    marker.pass_through()
    assert dataplane.refused() == {"refused_address": 1}  # rank 1 has not registered its address
    dataplane.set_address(1, 1, (address_of(1, 1), 0))
    sockets[1].sendto(packets[1], dataplane.address)
    marker.pass_through()
    result = V1Packet(3, 9, 17, 0, 1, 0, np.full(64, 21, np.int32)).pack()
    assert [drain(s) for s in sockets] == [[(result, dataplane.address)]] * 2


def test_v1_answers_go_to_the_port_of_the_completing_packet(dataplane, marker, bind):
    """Worker threads of the reference client are distinguished by that port."""
    first = [bind(address_of(1, 0))]
    first.append(bind(address_of(1, 1), first[0].getsockname()[1]))
    second = [bind(address_of(1, 0))]
    second.append(bind(address_of(1, 1), second[0].getsockname()[1]))
    dataplane.start_job(JobSpec(1, 1, 2, V1_SLOTS, 256, ((address_of(1, 0), 0), (address_of(1, 1), 0))))
    for threads, slot in ((first, 0), (second, 1)):
        for rank in range(2):
            threads[rank].sendto(V1Packet(0, 0, slot, 0, 0, 0, np.full(64, slot, np.int32)).pack(), dataplane.address)
    # Rank 0 asks once more for slot 0 from the other thread's port, and is answered there.
    second[0].sendto(V1Packet(0, 0, 0, 0, 0, 0, np.zeros(64, np.int32)).pack(), dataplane.address)
    marker.pass_through()
    slots = [[V1Packet.unpack(data).slot for data, _ in drain(s)] for s in (*first, *second)]
    assert slots == [[0], [0], [1, 0], [1]] or slots == [[0], [0], [0, 1], [1]]


# What the control plane learns


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("protocol", [1, 2])
def test_counters_name_the_ranks_that_open_rounds_wait_for(dataplane, marker, bind, protocol):
    sockets = [bind(address_of(1, 0))]
    port = sockets[0].getsockname()[1]
    sockets += [bind(address_of(1, rank), port) for rank in (1, 2)]
    addresses = tuple((address_of(1, rank), port if protocol == 2 else 0) for rank in range(3))
    dataplane.start_job(JobSpec(1, protocol, 3, 16 if protocol == 2 else V1_SLOTS, 256, addresses))

    def send(rank: int, slot: int) -> None:
        values = np.zeros(64, np.int32)
        packet = (
            V2Packet(CONTRIBUTION, slot, 0, 0, 0, 0, values) if protocol == 2 else V1Packet(0, 0, slot, 0, 0, 0, values)
        )
        sockets[rank].sendto(packet.pack(), dataplane.address)

    send(0, 3)
    send(0, 4)
    send(2, 4)
    for rank in range(3):
        send(rank, 5)
    marker.pass_through()
    counters = dataplane.counters(1)
    assert (counters.slots_in_use, counters.missing) == (2, ())  # waited for, but not for long
    assert [rank["accepted"] for rank in counters.ranks] == [3, 1, 2]
    assert [rank["sent_packets"] for rank in counters.ranks] == [1, 1, 1]
    counters = until(lambda: (now := dataplane.counters(1)).missing and now, DEADLINE_S)
    assert (counters.slots_in_use, counters.missing) == (2, (1, 2))
    send(2, 3)
    marker.pass_through()
    until(lambda: dataplane.counters(1).missing == (1,), DEADLINE_S)
    send(1, 3)
    send(1, 4)
    marker.pass_through()
    counters = dataplane.counters(1)
    assert (counters.slots_in_use, counters.missing) == (0, ())


def test_an_empty_datagram_that_wakes_is_no_packet(dataplane, marker, bind):
    """A worker that shares memory with the aggregator wakes it with an empty datagram (switchml/net/shm.py)."""
    job = Workers(dataplane, bind, 1, 2)
    job.send(0, b"")
    marker.pass_through()
    assert dataplane.counters(1).ranks[0]["received_packets"] == 0
    assert dataplane.refused() == {"refused_address": 0}
    assert drain(job.sockets[0]) == drain(job.sockets[1]) == []
