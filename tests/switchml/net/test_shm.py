"""Shared memory between ranks and an aggregator: rings, the flags of those who sleep, attaching; nothing stays behind.

Both sides are played here. Where two processes matter, the other one is this file, run as a program: `echo` is a rank
that counts through the rings, `sleeper` one that sleeps whenever it has nothing to do, `creator` makes a segment.
"""

from __future__ import annotations

import gc
import os
import random
import select
import socket
import subprocess
import sys
import time
from collections import deque
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchml.errors import ConfigError
from switchml.net import shm, udp

ROOT = Path(__file__).resolve().parents[3]
CAPACITY = 1024
"""Places of a ring of a job with 4 slots."""
SENDER = 7
LAST = 99
"""Length of the last packet."""
MOST_S = 20.0
"""How long a process waits for the other one; more means that something was lost."""


@pytest.fixture
def job():
    """`job(ranks, slots)`: a segment of its own."""
    fds = []

    def make(ranks: int = 2, slots: int = 4) -> tuple[shm.Segment, str]:
        segment, fd, name = shm.create(ranks, slots)
        fds.append(fd)
        return segment, name

    yield make
    for fd in fds:
        os.close(fd)


def packet(segment: shm.Segment, rank: int, slot: int = 0) -> int:
    return shm.packets_of(segment, rank)[slot].ctypes.data


def row(segment: shm.Segment, slot: int = 0) -> int:
    return shm.pool_rows(segment)[slot].ctypes.data


def take_up(
    segment: shm.Segment, rank: int, most: int = 4 * CAPACITY, places: int = 4 * CAPACITY
) -> list[tuple[int, int]]:
    """What the aggregator finds in a rank's ring: (address, length)."""
    packets = udp.new_packets(places)
    count = shm.receive_up(segment.at, rank, np.uint64(SENDER), packets, 0, most)
    assert set(packets.endpoint[:count].tolist()) <= {SENDER}
    return list(zip(packets.address[:count].tolist(), packets.length[:count].tolist(), strict=True))


def take_down(segment: shm.Segment, rank: int, places: int = 4 * CAPACITY) -> list[tuple[int, int]]:
    packets = udp.new_packets(places)
    count = shm.receive_down(segment.at, rank, packets)
    return list(zip(packets.address[:count].tolist(), packets.length[:count].tolist(), strict=True))


def turn_to(segment: shm.Segment, rank: int, number: int) -> None:
    """As if `number` entries had passed through both rings of a rank already."""
    start = shm._HEADER + rank * int(segment.at[shm.STRIDE])
    for at in (shm._UP_HEAD, shm._UP_TAIL, shm._DOWN_HEAD, shm._DOWN_TAIL):
        segment.memory[start + at : start + at + 8].view(np.uint64)[0] = number


# Rings


def test_layout(job):
    """Rings, packets and rows lie one behind the other, apart from each other, and nothing beyond the end."""
    for ranks, slots in ((1, 1), (3, 64), (256, 512)):
        segment, _ = job(ranks, slots)
        start = segment.memory.ctypes.data
        assert segment.at[shm.BASE] == start and segment.at[shm.SIZE] == segment.memory.size
        assert segment.at[shm.CAPACITY] >= 4 * slots
        ends = [shm._HEADER + ranks * int(segment.at[shm.STRIDE])]
        for part in (*(shm.packets_of(segment, rank) for rank in range(ranks)), shm.pool_rows(segment)):
            assert part.shape[1] == shm.ROW_BYTES and part.ctypes.data % 64 == 0
            assert ends[-1] <= part.ctypes.data - start
            ends.append(part.ctypes.data - start + part.nbytes)
        assert ends[-1] + shm.REPLIES * shm.ROW_BYTES == segment.memory.size


@pytest.mark.parametrize("passed", [0, 5, 2**63 - 3, 2**64 - CAPACITY // 2, 2**64 - 1])
def test_a_ring_keeps_order_and_refuses_what_does_not_fit(job, passed):
    """Wherever head and tail stand; their 64 bits may overflow."""
    segment, _ = job()
    turn_to(segment, 1, passed)
    for _ in range(3):
        sent = [(packet(segment, 1, i % 4), 1 + i % 1034) for i in range(CAPACITY)]
        assert [shm.push_up(segment.at, 1, *entry) for entry in sent] == [1] * CAPACITY
        assert shm.push_up(segment.at, 1, packet(segment, 1), 10) == 0
        assert take_up(segment, 0) == []
        assert take_up(segment, 1, most=10) == sent[:10]
        assert take_up(segment, 1, places=7) == sent[10:17]
        assert shm.push_up(segment.at, 1, packet(segment, 1), 11) == 1
        assert shm.up_waits(segment.at, 1) and not shm.up_waits(segment.at, 0)
        assert take_up(segment, 1) == [*sent[17:], (packet(segment, 1), 11)]
        assert take_up(segment, 1) == [] and not shm.up_waits(segment.at, 1)

        sent = [(row(segment, i % 8), 1 + i % 1034) for i in range(CAPACITY)]
        assert [shm.push_down(segment.at, 1, *entry, 0) for entry in sent] == [1] * CAPACITY
        assert shm.push_down(segment.at, 1, row(segment), 10, 0) == 0
        assert shm.down_waits(segment.at, 1) and not shm.down_waits(segment.at, 0)
        assert take_down(segment, 1, places=100) == sent[:100]
        assert take_down(segment, 1) == sent[100:] and not shm.down_waits(segment.at, 1)


def test_packets_are_appended_to_a_list(job):
    segment, _ = job()
    packets = udp.new_packets(5)
    count = 0
    for rank in range(2):
        for slot in range(4):
            shm.push_up(segment.at, rank, packet(segment, rank, slot), 20)
        count = shm.receive_up(segment.at, rank, np.uint64(rank), packets, count, 3)
    assert count == 5 and packets.endpoint.tolist() == [0, 0, 0, 1, 1]
    assert [len(take_up(segment, rank)) for rank in range(2)] == [1, 2]


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32))
@settings(max_examples=60)
def test_rings_against_a_queue(passed, seed):
    """Random pushes, questions and takes, beside deques of the same capacity."""
    chooser = random.Random(seed)
    segment, fd, _ = shm.create(2, 4)
    try:
        turn_to(segment, 0, passed)
        up: deque = deque()
        down: deque = deque()
        for _ in range(chooser.randint(1, 40)):
            kind = chooser.choice(["push", "ask", "take", "down", "read"])
            burst = chooser.choice([1, 10, 300, 600])
            if kind == "push":
                for i in range(burst):
                    entry = (packet(segment, 0, i % 4), chooser.randint(1, 1034))
                    assert shm.push_up(segment.at, 0, *entry) == (len(up) < CAPACITY)
                    up.extend([entry] if len(up) < CAPACITY else [])
            elif kind == "ask":
                for _ in range(burst):
                    seq = chooser.getrandbits(32)
                    assert shm.query_up(segment.at, 0, seq) == (len(up) < CAPACITY // 2)
                    up.extend([(seq, 0)] if len(up) < CAPACITY // 2 else [])
            elif kind == "down":
                room = chooser.choice([0, 8, 512])
                for i in range(burst):
                    entry = (row(segment, i % 8), chooser.randint(1, 1034))
                    assert shm.push_down(segment.at, 0, *entry, room) == (len(down) < CAPACITY - room)
                    down.extend([entry] if len(down) < CAPACITY - room else [])
            elif kind == "take":
                assert take_up(segment, 0, burst) == [up.popleft() for _ in range(min(burst, len(up)))]
            else:
                assert take_down(segment, 0, burst) == [down.popleft() for _ in range(min(burst, len(down)))]
        assert take_up(segment, 0) == list(up) and take_down(segment, 0) == list(down)
    finally:
        os.close(fd)


def test_a_rank_is_trusted_with_its_own_packets_only(job):
    """What it names elsewhere is passed over; its own packets before and after are taken."""
    segment, _ = job(3, 4)
    own, end = packet(segment, 1), packet(segment, 1) + 2 * 4 * shm.ROW_BYTES
    wrong = [
        (own - 1, 10),
        (end - 9, 10),
        (end, 1),
        (packet(segment, 0), 10),
        (packet(segment, 2), 1034),
        (row(segment), 10),
        (segment.memory.ctypes.data, 10),
        (segment.memory.ctypes.data + segment.memory.size, 10),
        (own - 2**40, 10),
        (own, 65535),
    ]
    right = [(own, 1034), (end - 10, 10)]
    for entry in (right[0], *wrong, right[1]):
        shm.push_up(segment.at, 1, *entry)
    assert take_up(segment, 1) == right
    for entry in wrong * 50:
        shm.push_up(segment.at, 1, *entry)
    assert take_up(segment, 1, most=3) == [] and shm.up_waits(segment.at, 1)  # looking at them is work too
    assert take_up(segment, 1) == [] and not shm.up_waits(segment.at, 1)


def test_results_lie_among_the_rows(job):
    segment, _ = job()
    end = segment.memory.ctypes.data + segment.memory.size
    for entry in ((packet(segment, 0), 10), (row(segment), 1034), (end - 5, 10), (end - 10, 10), (0, 10)):
        shm.push_down(segment.at, 0, *entry, 0)
    assert take_down(segment, 0) == [(row(segment), 1034), (end - 10, 10)]


def test_questions(job):
    """Length 0: the address is the sequence number, any of them. They leave half of the ring to packets."""
    segment, _ = job()
    for seq in (0, 1, 2**31, 2**32 - 1):
        assert shm.query_up(segment.at, 0, seq) == 1
    shm.push_up(segment.at, 0, packet(segment, 0), 10)
    shm.query_up(segment.at, 0, 5)
    assert take_up(segment, 0) == [(0, 0), (1, 0), (2**31, 0), (2**32 - 1, 0), (packet(segment, 0), 10), (5, 0)]
    assert [shm.query_up(segment.at, 0, seq) for seq in range(CAPACITY)] == [1] * (CAPACITY // 2) + [0] * (
        CAPACITY // 2
    )
    assert [shm.push_up(segment.at, 0, packet(segment, 0), 10) for _ in range(CAPACITY // 2)] == [1] * (CAPACITY // 2)


def test_who_sleeps_is_woken_once(job):
    segment, _ = job()
    everybody = (-1, 0, 1)
    for sleeper in everybody:
        assert not any(shm.must_wake(segment.at, one) for one in everybody)
        shm.announce_sleep(segment.at, sleeper, 1)
        assert [one for one in everybody if shm.must_wake(segment.at, one)] == [sleeper]
        assert not shm.must_wake(segment.at, sleeper)
        shm.announce_sleep(segment.at, sleeper, 1)
        shm.announce_sleep(segment.at, sleeper, 0)
        assert not shm.must_wake(segment.at, sleeper)


# Attaching


def test_both_sides_see_the_same_memory(job):
    segment, name = job(2, 8)
    other = shm.attach(name)
    assert other.at[shm.BASE] != segment.at[shm.BASE] and (other.at[1:] == segment.at[1:]).all()
    shm.packets_of(other, 1)[3, :5] = list(b"hello")
    shm.push_up(other.at, 1, packet(other, 1, 3), 5)
    [(address, length)] = take_up(segment, 1)
    assert address == packet(segment, 1, 3) and bytes(shm.packets_of(segment, 1)[3, :length]) == b"hello"
    shm.push_down(segment.at, 0, row(segment, 2), 6, 0)
    assert take_down(other, 0) == [(row(other, 2), 6)]
    shm.announce_sleep(other.at, 0, 1)
    assert shm.must_wake(segment.at, 0)


def test_names_that_are_wrong(job, tmp_path):
    segment, name = job(2, 8)
    path, mark, ranks, slots = name.rsplit(":", 3)
    same_size = tmp_path / "file"
    same_size.write_bytes(bytes(segment.memory.size))
    for wrong, message in (
        ("", "ranks and aggregator must be on one machine"),
        ("nonsense", "on one machine"),
        (f"{path}:{mark}:two:8", "on one machine"),
        (f"{path}:mark:2:8", "on one machine"),
        (f"/proc/self/fd/9999:{mark}:2:8", "No such file"),
        (f"{tmp_path}:{mark}:2:8", "Is a directory"),
        (f"{path}:{mark}:2:16", f"{segment.memory.size} bytes, expected"),
        (f"{path}:{mark}:3:8", "bytes, expected"),
        (f"{path}:{int(mark, 16) ^ 1:x}:2:8", "not the job's"),
        (f"{same_size}:{mark}:2:8", "not the job's"),
    ):
        with pytest.raises(ConfigError, match=message):
            shm.attach(wrong)
    assert shm.attach(name)


def test_no_segment_shares_nothing():
    assert shm.no_segment().at[shm.BASE] == 0


# Processes


@contextmanager
def other_process(role: str, *arguments: str):
    """This file as a program; it must end well by itself."""
    path = os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH", "")) if part)
    process = subprocess.Popen(
        [sys.executable, __file__, role, *arguments],
        env=os.environ | {"PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def wait_for(condition, asleep=lambda: time.sleep(0)) -> None:
    deadline = time.monotonic() + MOST_S
    while not condition():
        assert time.monotonic() < deadline, "nothing came"
        asleep()


def test_two_processes_pass_100_000_entries_both_ways(job):
    """Every packet is there complete when it is named, in order, once; so is every answer."""
    count, slots = 100_000, 512
    segment, name = job(1, slots)
    words = memoryview(segment.memory).cast("Q")
    places = [row(segment, k) for k in range(2 * slots)]
    start = segment.memory.ctypes.data
    packets = udp.new_packets(slots)
    done = 0
    with other_process("echo", name, str(count)) as process:
        assert process.stdout.readline() == "ready\n"
        while done < count:
            batch = 0

            def some_came() -> bool:
                nonlocal batch
                batch = shm.receive_up(segment.at, 0, np.uint64(0), packets, 0, slots)
                return batch > 0

            wait_for(some_came)
            for address, length in zip(packets.address[:batch].tolist(), packets.length[:batch].tolist(), strict=True):
                assert length == 1 + done % 1000
                assert words[(address - start) // 8] == done * 3
                place = places[done % (2 * slots)]
                words[(place - start) // 8] = done * 5
                assert shm.push_down(segment.at, 0, place, 1 + done % 999, 0)
                done += 1


def echo(name: str, count: int) -> None:
    """The rank of the test above: packet i holds 3 i and is i % 1000 + 1 long; its answer holds 5 i."""
    segment = shm.attach(name)
    slots = int(segment.at[shm.SLOTS])
    words = memoryview(segment.memory).cast("Q")
    start = segment.memory.ctypes.data
    places = [packet(segment, 0, slot) for slot in range(slots)]
    packets = udp.new_packets(2 * slots)
    sent = done = 0
    print("ready", flush=True)
    while done < count:
        while sent < min(done + slots, count):
            place = places[sent % slots]
            words[(place - start) // 8] = sent * 3
            assert shm.push_up(segment.at, 0, place, 1 + sent % 1000)
            sent += 1
        batch = 0

        def some_came() -> bool:
            nonlocal batch
            batch = shm.receive_down(segment.at, 0, packets)
            return batch > 0

        wait_for(some_came)
        for address, length in zip(packets.address[:batch].tolist(), packets.length[:batch].tolist(), strict=True):
            assert length == 1 + done % 999
            assert words[(address - start) // 8] == done * 5
            done += 1


class Sleeper:
    """One side that sleeps on its socket unless its ring has something, as agent and aggregator do."""

    def __init__(self, segment: shm.Segment, me: int, seed: int):
        self.at, self.segment, self.me = segment.at, segment, me
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.setblocking(False)
        self.peer = ("127.0.0.1", 0)
        self.packets = udp.new_packets(CAPACITY)
        self.chooser = random.Random(seed)
        self.sleeps = 0

    def push(self, burst: int, length: int = 10) -> None:
        for _ in range(burst):
            if self.me < 0:
                shm.push_down(self.at, 0, row(self.segment), length, 0)
            else:
                shm.push_up(self.at, 0, packet(self.segment, 0), length)
        if shm.must_wake(self.at, 0 if self.me < 0 else -1):
            self.socket.sendto(b"", self.peer)

    def take(self) -> int:
        if self.me < 0:
            return shm.receive_up(self.at, 0, np.uint64(0), self.packets, 0, CAPACITY)
        return shm.receive_down(self.at, 0, self.packets)

    def waits(self) -> bool:
        return shm.up_waits(self.at, 0) if self.me < 0 else shm.down_waits(self.at, 0)

    def await_some(self) -> int:
        """How many entries came; sleeps until some do."""
        while not (count := self.take()):
            shm.announce_sleep(self.at, self.me, 1)
            if not self.waits():
                self.sleeps += 1
                if not select.select([self.socket], [], [], MOST_S)[0]:
                    raise AssertionError("slept on, with something in the ring" if self.waits() else "nothing came")
                self.socket.recv(1)
            shm.announce_sleep(self.at, self.me, 0)
        return count

    def dally(self) -> None:
        """Sometimes a while, so that the other side is in any state of going to sleep."""
        for _ in range(self.chooser.choice([0, 0, 10, 100, 300])):
            pass


def test_no_wake_is_lost(job):
    """Two processes give each other one burst after the other, and sleep without a limit in between."""
    segment, name = job(1, 4)
    me = Sleeper(segment, -1, seed=1)
    with me.socket, other_process("sleeper", name, str(me.socket.getsockname()[1])) as process:
        me.peer = ("127.0.0.1", int(process.stdout.readline()))
        bursts, until = 0, time.monotonic() + 60.0  # the other process may have to compile first
        while bursts <= 1000 or me.sleeps <= 30:
            assert time.monotonic() < until
            burst = me.chooser.choice([1, 1, 3])
            me.push(burst)
            me.dally()
            come = 0
            while come < burst:
                come += me.await_some()
            assert come == burst
            bursts += 1
        me.push(1, LAST)


def sleeper(name: str, port: int) -> None:
    """The other side: gives back as many as come, until the last one."""
    me = Sleeper(shm.attach(name), 0, seed=2)
    me.peer = ("127.0.0.1", port)
    print(me.socket.getsockname()[1], flush=True)
    while (count := me.await_some()) and me.packets.length[count - 1] != LAST:
        me.dally()
        me.push(count)


def creator() -> None:
    _, _, name = shm.create(1, 4)
    print(name, flush=True)
    sys.stdin.readline()


def test_a_segment_outlives_its_creator_for_those_who_have_it_and_nobody_else():
    with other_process("creator") as process:
        name = process.stdout.readline().strip()
        segment = shm.attach(name)
        shm.push_up(segment.at, 0, packet(segment, 0), 10)
        process.stdin.write("\n")
        process.stdin.flush()
        process.wait(60)
    with pytest.raises(ConfigError, match="No such file or directory.*; ranks and aggregator must be on one machine"):
        shm.attach(name)
    assert take_up(segment, 0) == [(packet(segment, 0), 10)]  # touching it is no crash


def test_nothing_is_left_behind():
    def traces() -> tuple:
        gc.collect()
        return (
            sorted(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else [],
            len(os.listdir("/proc/self/fd")),
            Path("/proc/self/maps").read_text().count("switchml-job"),
        )

    before = traces()
    for _ in range(3):
        segment, fd, name = shm.create(4, 64)
        attached = shm.attach(name)
        assert traces()[1:] == (before[1] + 3, before[2] + 2)  # each mapping keeps a descriptor of its own
        os.close(fd)
        with pytest.raises(ConfigError):
            shm.attach(name)
        with pytest.raises(ConfigError):
            shm.attach(f"/proc/self/exe{name[name.index(':') :]}")
        del segment, attached
        assert traces() == before


if __name__ == "__main__":
    if sys.argv[1] == "echo":
        echo(sys.argv[2], int(sys.argv[3]))
    elif sys.argv[1] == "sleeper":
        sleeper(sys.argv[2], int(sys.argv[3]))
    else:
        creator()
