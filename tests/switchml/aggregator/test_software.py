"""The software aggregator's data side over real UDP sockets: who gets which bytes, and what is refused.

No packet is waited for with a clock. `Marker` is a job of one worker on the same data plane: packets are handled in the
order in which they arrive, so when the marker's result is back, everything that was sent before it has been dealt with,
and a socket without a packet by then will not get one.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import random
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from switchml.aggregator.software import MAX_JOBS, SoftwareDataplane
from switchml.control.dataplane import JobSpec
from switchml.errors import ConfigError
from switchml.protocol.packet import CONTRIBUTION, FLAG_MIXED, RESULT, V1_SLOTS, V1Packet, V2Packet, WaitPacket
from tests.support.launch import until
from tests.support.vectors_io import Scenario, load_all

DEADLINE_S = 30.0
SCENARIOS = load_all()
VERDICTS = ("accepted", "answered", "duplicates", "stale", "refused_window", "refused_tag", "refused_format")


@pytest.fixture
def start():
    """`start(**options)`: a serving data plane on a free port, stopped after the test."""
    with ThreadPoolExecutor(1) as pool:
        running = []

        def begin(**options) -> SoftwareDataplane:
            running.append(SoftwareDataplane(port=0, **options).start())
            return running[-1]

        yield begin
        for dataplane in running:
            pool.submit(dataplane.stop).result(DEADLINE_S)


@pytest.fixture
def dataplane(start) -> SoftwareDataplane:
    return start()


@pytest.fixture
def bind():
    """`bind(ip, port=0)`: a UDP socket, closed after the test."""
    opened = []

    def make(ip: str, port: int = 0) -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        opened.append(sock)
        sock.bind((ip, port))
        sock.settimeout(DEADLINE_S)
        return sock

    yield make
    for sock in opened:
        sock.close()


def address_of(group: int, rank: int) -> str:
    """An address for each worker of each job: 127.0.group.x has room for 256 ranks in two groups of its own."""
    return f"127.{group}.{rank // 250}.{1 + rank % 250}"


def drain(sock: socket.socket) -> list[tuple[bytes, tuple[str, int]]]:
    """Every datagram that is there, with its sender."""
    found = []
    sock.setblocking(False)
    try:
        while True:
            found.append(sock.recvfrom(2048))
    except BlockingIOError:
        return found
    finally:
        sock.settimeout(DEADLINE_S)


class Marker:
    """A job of one worker with one slot; `pass_through()` returns when all that was sent before has been handled."""

    def __init__(self, dataplane: SoftwareDataplane, bind, job_id: int = 9_999_999):
        self.sock, self.to, self.seq = bind("127.200.0.1"), dataplane.address, 0
        dataplane.start_job(JobSpec(job_id, 2, 1, 1, 256, (self.sock.getsockname(),), tag=1))

    def pass_through(self) -> None:
        packet = V2Packet(CONTRIBUTION, self.seq, 1, 0, 0, 0, np.zeros(64, np.int32))
        self.sock.sendto(packet.pack(), self.to)
        assert struct.unpack_from(">I", self.sock.recv(2048), 2) == (self.seq,)
        self.seq += 1


@pytest.fixture
def marker(dataplane, bind) -> Marker:
    return Marker(dataplane, bind)


class Workers:
    """The sockets of one v2 job, and its job."""

    def __init__(
        self,
        dataplane,
        bind,
        job_id: int,
        workers: int,
        *,
        slots: int = 16,
        payload_bytes: int = 256,
        tag: int | None = None,
        isn: int = 0,
    ):
        self.sockets = [bind(address_of(job_id, rank)) for rank in range(workers)]
        self.to, self.slots, self.isn, self.lanes = dataplane.address, slots, isn, payload_bytes // 4
        self.tag = 1000 + job_id if tag is None else tag
        self.spec = JobSpec(
            job_id, 2, workers, slots, payload_bytes, tuple(s.getsockname() for s in self.sockets), self.tag, isn
        )
        dataplane.start_job(self.spec)

    def packet(
        self, round_: int, slot: int, values, *, kind: int = CONTRIBUTION, r: bool = False, used: int = 0
    ) -> bytes:
        seq = (self.isn + round_ * self.slots + slot) % 2**32
        return V2Packet(kind, seq, self.tag, 0, used, 0, np.asarray(values, np.int32), r=r).pack()

    def send(self, rank: int, data: bytes) -> None:
        self.sockets[rank].sendto(data, self.to)


# The vectors


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_scenario(scenario: Scenario, start, bind):
    """Every scenario of tests/vectors: who shall get bytes gets them from the data port, and nobody else gets any."""
    # An empty datagram is a packet like any other only where none may be a knock (io/shm.py).
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
        receivers = {"multicast": range(scenario.workers), "unicast": [step.rank], "wait": [step.rank]}.get(
            step.action, []
        )
        for rank, sock in enumerate(sockets):
            assert drain(sock) == ([(step.reply, dataplane.address)] if rank in receivers else []), (
                f"{step.label}: rank {rank}"
            )
        mine = expected[step.rank]
        mine["received_packets"] += 1
        mine["received_bytes"] += len(step.data)
        if step.counter:
            mine[step.counter] += 1
        for rank in receivers:
            expected[rank]["sent_packets"] += 1
            expected[rank]["sent_bytes"] += len(step.reply)
    found = dataplane.counters(7).ranks
    for rank, counts in expected.items():
        names = counts if scenario.protocol == 2 else [name for name in counts if name not in VERDICTS]
        assert {name: found[rank][name] for name in names} == {name: counts[name] for name in names}, f"rank {rank}"
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


def test_nothing_but_the_right_tag_and_sequence_number_counts(dataplane, marker, bind):
    """Somebody who can write a member's address on a packet still has to guess 48 bits."""
    job = Workers(dataplane, bind, 1, 2, tag=0xABCD, isn=32 * 1234)
    rng = random.Random(1)
    numbers = rng.sample(range(2**32), 300)
    right = set(range(job.isn, job.isn + job.slots))
    for i, seq in enumerate(seq for seq in numbers if seq not in right):
        for tag in (job.tag, rng.randrange(0xABCD)):
            forged = V2Packet(CONTRIBUTION, seq, tag, 0, 0, 0, np.full(64, 666, np.int32), r=rng.random() < 0.5)
            job.send(0, forged.pack())
        job.send(
            0, struct.pack(">BBIH", 0x81, 0, job.isn, rng.randrange(0xABCD)) + bytes(2 + 256)
        )  # and with the right number
        if i % 50 == 0:
            marker.pass_through()
    marker.pass_through()
    counts = dataplane.counters(1).ranks[0]
    assert counts["accepted"] == counts["answered"] == 0
    assert counts["refused_tag"] + counts["refused_window"] + counts["stale"] == counts["received_packets"]
    assert drain(job.sockets[0]) == drain(job.sockets[1]) == []
    for rank in range(2):
        job.send(rank, job.packet(0, 5, np.full(64, 1 + rank)))
    marker.pass_through()
    assert [data for data, _ in drain(job.sockets[0])] == [job.packet(0, 5, np.full(64, 3), kind=RESULT)]


def test_addresses_belong_to_one_worker(dataplane):
    def v2(job_id, *addresses):
        return JobSpec(job_id, 2, len(addresses), 4, 256, addresses, tag=job_id)

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
    for taken in ("127.0.2.1", "127.0.1.2"):
        with pytest.raises(ConfigError, match="belongs to"):
            dataplane.set_address(3, 1, (taken, 0))
    with pytest.raises(ConfigError, match="job 1 is running already"):
        dataplane.start_job(v2(1, ("127.0.3.1", 1)))
    with pytest.raises(KeyError):
        dataplane.set_address(77, 0, ("127.0.3.1", 0))
    with pytest.raises(KeyError):
        dataplane.counters(77)
    dataplane.stop_job(77)  # unknown ones are ignored
    dataplane.stop_job(1)
    dataplane.start_job(v1(4, ("127.0.1.1", 0)))  # free again


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
    assert dataplane.refused() == {"refused_address": 1}  # rank 1 has not said where it is
    dataplane.set_address(1, 1, (address_of(1, 1), 0))
    sockets[1].sendto(packets[1], dataplane.address)
    marker.pass_through()
    result = V1Packet(3, 9, 17, 0, 1, 0, np.full(64, 21, np.int32)).pack()
    assert [drain(s) for s in sockets] == [[(result, dataplane.address)]] * 2


def test_v1_answers_go_to_the_port_of_the_completing_packet(dataplane, marker, bind):
    """Worker threads of the reference client are told apart by that port."""
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


# Jobs side by side


def test_many_jobs_at_once(dataplane, marker, bind):
    """Traffic of 40 jobs, shuffled packet by packet: each worker gets the sums of its own job and no other packet."""
    rng = random.Random(2)
    jobs = []
    for number in range(1, 41):
        shape = {"slots": 8, "payload_bytes": rng.choice((256, 1024)), "isn": 16 * rng.randrange(2**28)}
        jobs.append(Workers(dataplane, bind, number, rng.randint(1, 4), **shape))
    for round_ in range(6):
        packets, sums = [], {}
        for job in jobs:
            for slot in range(job.slots):
                values = np.array(
                    [[rng.randrange(-1000, 1000) for _ in range(job.lanes)] for _ in job.sockets], np.int32
                )
                sums[job.spec.job_id, slot] = job.packet(round_, slot, values.sum(0), kind=RESULT)
                packets += [(job, rank, job.packet(round_, slot, values[rank])) for rank in range(len(job.sockets))]
        rng.shuffle(packets)
        for number, (job, rank, data) in enumerate(packets, 1):
            job.send(rank, data)
            if number % 50 == 0 or number == len(packets):  # no more than a small socket buffer holds
                marker.pass_through()
        for job in jobs:
            for sock in job.sockets:
                assert sorted(data for data, _ in drain(sock)) == sorted(
                    sums[job.spec.job_id, slot] for slot in range(job.slots)
                )
    for job in jobs:
        counted = dataplane.counters(job.spec.job_id)
        assert sum(rank["completed"] for rank in counted.ranks) == 6 * job.slots
        assert counted.slots_in_use == 0
    assert dataplane.refused() == {"refused_address": 0}


def test_jobs_come_and_go_while_traffic_flows(dataplane, bind):
    """One job's packets never stop; it is stopped and started under them, and the job beside it never notices."""
    steady, victim = Workers(dataplane, bind, 1, 2), Workers(dataplane, bind, 2, 2)
    stop = threading.Event()

    def flood() -> None:
        packets = [victim.packet(round_, slot, np.full(64, 7)) for round_ in range(8) for slot in range(16)]
        while not stop.is_set():
            for data in packets:
                victim.send(0, data)
                victim.send(1, data)
            for sock in victim.sockets:
                drain(sock)

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        for round_ in range(150):
            if round_ % 5 == 0:
                dataplane.stop_job(2)
            elif round_ % 5 == 2:
                dataplane.start_job(victim.spec)
            assert all((values == 2 * round_).all() for values in exchange(steady, round_))
    finally:
        stop.set()
        thread.join()
    dataplane.stop_job(2)
    exchange(steady, 150)  # behind the last of the flood
    for sock in victim.sockets:
        drain(sock)
    before = dataplane.refused()["refused_address"]
    assert before > 0
    victim.send(0, victim.packet(0, 0, np.zeros(64)))
    until(lambda: dataplane.refused()["refused_address"] == before + 1, DEADLINE_S)
    assert drain(victim.sockets[0]) == []
    with pytest.raises(KeyError):
        dataplane.counters(2)


def exchange(job: Workers, number: int) -> list[np.ndarray]:
    """One round of all workers, `number` in every lane; asked for again, since a flooded socket may lose a packet."""
    packets = [job.packet(number // job.slots, number % job.slots, np.full(64, number), r=r) for r in (False, True)]
    results: dict[int, np.ndarray] = {}
    deadline = time.monotonic() + DEADLINE_S
    for data in itertools.chain(packets[:1], itertools.repeat(packets[1])):
        for rank in range(len(job.sockets)):
            job.send(rank, data)
        for rank, sock in enumerate(job.sockets):
            sock.settimeout(0.2)
            with contextlib.suppress(TimeoutError):
                while rank not in results:
                    answer = sock.recv(2048)
                    if answer[0] >> 4 == RESULT and answer[2:6] == data[2:6]:
                        results[rank] = V2Packet.unpack(answer).values
        if len(results) == len(job.sockets):
            return [results[rank] for rank in range(len(job.sockets))]
        assert time.monotonic() < deadline, f"round {number} did not come back"


def test_room_for_so_many_jobs_and_no_more(dataplane):
    for number in range(MAX_JOBS):
        dataplane.start_job(JobSpec(number, 2, 1, 1, 256, ((address_of(1, number), 5000),)))
    with pytest.raises(ConfigError, match="no room for another job: at most 256 jobs"):
        dataplane.start_job(JobSpec(1000, 2, 1, 1, 256, (("127.9.9.9", 1),)))
    dataplane.stop_job(17)
    dataplane.start_job(JobSpec(1000, 2, 1, 1, 256, (("127.9.9.9", 1),)))


def test_a_restarted_job_has_clean_slots(dataplane, marker, bind):
    job = Workers(dataplane, bind, 1, 2)
    job.send(0, job.packet(0, 0, np.full(64, 5)))
    marker.pass_through()
    assert dataplane.counters(1).slots_in_use == 1
    dataplane.stop_job(1)
    dataplane.start_job(job.spec)
    assert dataplane.counters(1).slots_in_use == 0
    for rank in range(2):
        job.send(rank, job.packet(0, 0, np.full(64, 1)))
    marker.pass_through()
    assert [data for data, _ in drain(job.sockets[0])] == [job.packet(0, 0, np.full(64, 2), kind=RESULT)]


# What the control plane is told


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
    found = dataplane.counters(1)
    assert (found.slots_in_use, found.missing) == (2, ())  # waited for, but not for long
    assert [rank["accepted"] for rank in found.ranks] == [3, 1, 2]
    assert [rank["sent_packets"] for rank in found.ranks] == [1, 1, 1]
    found = until(lambda: (now := dataplane.counters(1)).missing and now, DEADLINE_S)
    assert (found.slots_in_use, found.missing) == (2, (1, 2))
    send(2, 3)
    marker.pass_through()
    until(lambda: dataplane.counters(1).missing == (1,), DEADLINE_S)
    send(1, 3)
    send(1, 4)
    marker.pass_through()
    found = dataplane.counters(1)
    assert (found.slots_in_use, found.missing) == (0, ())


def test_a_wait_packet_names_the_missing(dataplane, marker, bind):
    job = Workers(dataplane, bind, 1, 3)
    job.send(1, job.packet(0, 0, np.zeros(64)))
    job.send(1, job.packet(0, 0, np.zeros(64), r=True))
    marker.pass_through()
    assert [WaitPacket.unpack(data) for data, _ in drain(job.sockets[1])] == [WaitPacket(0, job.tag, (0, 2))]
    assert dataplane.counters(1).ranks[1]["waits"] == 1


def test_a_knock_is_no_packet(dataplane, marker, bind):
    """A worker that shares memory with the aggregator wakes it with an empty datagram (io/shm.py)."""
    job = Workers(dataplane, bind, 1, 2)
    job.send(0, b"")
    marker.pass_through()
    assert dataplane.counters(1).ranks[0]["received_packets"] == 0
    assert dataplane.refused() == {"refused_address": 0}
    assert drain(job.sockets[0]) == drain(job.sockets[1]) == []


def test_flags_reach_the_workers(dataplane, marker, bind):
    job = Workers(dataplane, bind, 1, 2)
    job.send(0, job.packet(0, 0, np.zeros(64), used=3))
    job.send(1, job.packet(0, 0, np.zeros(64), used=4))
    marker.pass_through()
    assert [V2Packet.unpack(data).used for data, _ in drain(job.sockets[0])] == [FLAG_MIXED]


# A bad network


def unread_bytes(port: int) -> int:
    """What the socket of this port holds unread (rx_queue in /proc/net/udp, a hexadecimal number as the port is)."""
    for line in Path("/proc/net/udp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(f":{port:04X}"):
            return int(fields[4].partition(":")[2], 16)
    raise LookupError(port)


def lossy_run(start, bind, **options) -> tuple[list[int], dict[str, int]]:
    """1000 contributions of a lone worker: the slots of its results in the order they came, and its counters."""
    dataplane = start(**options)
    job = Workers(dataplane, bind, 1, 1, slots=1024)
    arrived, seen = [], None
    for slot in range(1000):
        job.send(0, job.packet(0, slot, np.zeros(64)))
        if slot % 40 == 39:  # no more than a small socket buffer holds
            until(lambda: unread_bytes(dataplane.address[1]) == 0, DEADLINE_S)
            arrived += drain(job.sockets[0])
    # What is held back leaves after 2 ms by itself, and when the counters rest all is over.
    while seen != (seen := dataplane.counters(1).ranks[0]):
        time.sleep(0.1)
    arrived += drain(job.sockets[0])
    dataplane.stop_job(1)
    return [V2Packet.unpack(data).seq for data, _ in arrived], seen


def test_loss_is_as_frequent_as_asked_for_and_repeatable(start, bind):
    slots, counts = lossy_run(start, bind, loss_rate=0.3, seed=5)
    assert 630 < counts["accepted"] < 770  # 700 expected; the bounds are five standard deviations away
    assert counts["sent_packets"] == counts["accepted"]
    assert 0.5 * 1000 * 0.7**2 < len(slots) < 1.2 * 1000 * 0.7**2
    assert slots == sorted(slots)
    assert lossy_run(start, bind, loss_rate=0.3, seed=5) == (slots, counts)
    assert lossy_run(start, bind, loss_rate=0.3, seed=6) != (slots, counts)


def test_reordered_packets_are_late_and_not_lost(start, bind):
    slots, counts = lossy_run(start, bind, reorder_rate=0.2)
    assert counts["accepted"] == 1000
    assert sorted(slots) == list(range(1000)) and slots != sorted(slots)


def test_doubled_packets_are_recognized(start, bind):
    slots, counts = lossy_run(start, bind, duplicate_rate=0.4)
    assert counts["accepted"] == 1000
    assert 320 < counts["answered"] < 480
    assert set(slots) == set(range(1000)) and len(slots) > 1500


@pytest.mark.parametrize("options", [{"loss_rate": 1.0}, {"reorder_rate": -0.1}, {"duplicate_rate": 7}])
def test_rates_are_probabilities(options):
    with pytest.raises(ConfigError, match="expected a probability"):
        SoftwareDataplane(port=0, **options)


# Life


def test_a_taken_port_is_refused_in_words(dataplane):
    with pytest.raises(
        ConfigError, match=f"data port 127.0.0.1:{dataplane.address[1]}: Address already in use; choose another"
    ):
        SoftwareDataplane(port=dataplane.address[1])


def test_start_and_stop_leave_nothing_behind():
    SoftwareDataplane(port=0).start().stop()  # whatever stays for good is there now
    before = len(os.listdir("/proc/self/fd")), {thread.name for thread in threading.enumerate()}
    for _ in range(5):
        dataplane = SoftwareDataplane(port=0).start()
        dataplane.start_job(JobSpec(1, 2, 1, 16, 256, (("127.0.0.1", 4),)))
        dataplane.stop()
        dataplane.stop()
        dataplane.stop_job(1)  # a control plane that stops later still may say so
    SoftwareDataplane(port=0).stop()  # never started
    assert (len(os.listdir("/proc/self/fd")), {thread.name for thread in threading.enumerate()}) == before


def test_no_request_is_lost_when_the_data_plane_stops():
    gc.collect()  # of earlier tests
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        dataplane = SoftwareDataplane(port=0).start()
        with ThreadPoolExecutor(2) as pool:
            asked = [
                pool.submit(dataplane.start_job, JobSpec(n, 2, 1, 1, 256, (("127.0.0.1", 1 + n),))) for n in range(20)
            ]
            pool.submit(dataplane.stop).result(DEADLINE_S)
            for future in asked:
                error = future.exception(DEADLINE_S)  # answered in any case, and refused from some point on
                assert error is None or isinstance(error, ConfigError) and "is stopping" in str(error)
        dataplane.stop_job(0)
    del dataplane, asked, future, error  # a mapping holds a descriptor, and an exception's traceback a mapping
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize("options", [{}, {"loss_rate": 0.1, "reorder_rate": 0.5}], ids=["clean", "lossy"])
def test_an_idle_aggregator_sleeps(start, bind, options):
    dataplane = start(**options)
    job = Workers(dataplane, bind, 1, 1)
    for slot in range(16):
        job.send(0, job.packet(0, slot, np.zeros(64)))
    time.sleep(0.2)  # whatever was held back is on its way
    thread = next(t for t in threading.enumerate() if t.name == "switchml-aggregator")
    clock = time.pthread_getcpuclockid(thread.ident)
    before = time.clock_gettime(clock)
    time.sleep(1)
    assert time.clock_gettime(clock) - before < 0.1
    dataplane.counters(1)  # still awake for those who ask
