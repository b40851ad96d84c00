"""Shared memory between ranks and an aggregator: rings, the flags of those who sleep, attaching. Both sides are played
in one process here, and in two in test_shm_processes.py."""

from __future__ import annotations

import os
import random
from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchml.errors import ConfigError
from switchml.net import shm, udp
from tests.support.examples import examples
from tests.support.segments import CAPACITY, packet, push_up, row

SENDER = 7


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
            assert part.shape[1] == segment.at[shm.ROW] == 1088 and part.ctypes.data % 64 == 0
            assert ends[-1] <= part.ctypes.data - start
            ends.append(part.ctypes.data - start + part.nbytes)
        assert ends[-1] + shm.REPLIES * 1088 == segment.memory.size


def test_what_is_added_shows_when_it_is_published(job):
    """However much is added, the reader sees all of it at once, up to the ring's end."""
    segment, _ = job()
    results = [(row(segment, i % 8), 1 + i % 1034) for i in range(CAPACITY + 1)]
    ring, head, end = shm.open_down(segment.at, 1)
    for entry in results:
        head = shm.add(segment.at, ring, head, end, *entry)
        assert not shm.down_waits(segment.at, 1)
    shm.publish(ring, head)
    assert take_down(segment, 1) == results[:CAPACITY]
    ring, head, end = shm.open_up(segment.at, 1)
    shm.publish(ring, shm.add(segment.at, ring, head, end, packet(segment, 1), 20))
    assert take_up(segment, 1) == [(packet(segment, 1), 20)]


def test_packets_are_appended_to_a_list(job):
    segment, _ = job()
    packets = udp.new_packets(5)
    count = 0
    for rank in range(2):
        for slot in range(4):
            push_up(segment, rank, packet(segment, rank, slot), 20)
        count = shm.receive_up(segment.at, rank, np.uint64(rank), packets, count, 3)
    assert count == 5 and packets.endpoint.tolist() == [0, 0, 0, 1, 1]
    assert [len(take_up(segment, rank)) for rank in range(2)] == [1, 2]


@given(st.integers(0, 2**64 - 1) | st.integers(2**64 - 2 * CAPACITY, 2**64 - 1), st.integers(0, 2**32))
@examples(120)
def test_rings_against_a_queue(passed, seed):
    """Random pushes, questions and takes, beside deques of the same capacity, wherever head and tail stand: their 64
    bits may overflow. A question is a sequence number of length 0; questions leave half of the ring to packets."""
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
                    assert push_up(segment, 0, *entry) == (len(up) < CAPACITY)
                    up.extend([entry] if len(up) < CAPACITY else [])
            elif kind == "ask":
                for _ in range(burst):
                    seq = chooser.getrandbits(32)
                    assert shm.query_up(segment.at, 0, seq) == (len(up) < CAPACITY // 2)
                    up.extend([(seq, 0)] if len(up) < CAPACITY // 2 else [])
            elif kind == "down":
                reserve = chooser.choice([0, 8, 512])
                for i in range(burst):
                    entry = (row(segment, i % 8), chooser.randint(1, 1034))
                    assert shm.push_down(segment.at, 0, *entry, reserve) == (len(down) < CAPACITY - reserve)
                    down.extend([entry] if len(down) < CAPACITY - reserve else [])
            elif kind == "take":
                assert take_up(segment, 0, burst) == [up.popleft() for _ in range(min(burst, len(up)))]
            else:
                assert take_down(segment, 0, burst) == [down.popleft() for _ in range(min(burst, len(down)))]
            assert (shm.up_waits(segment.at, 0), shm.down_waits(segment.at, 0)) == (bool(up), bool(down))
            assert not shm.up_waits(segment.at, 1) and not shm.down_waits(segment.at, 1)
        assert take_up(segment, 0) == list(up) and take_down(segment, 0) == list(down)
    finally:
        os.close(fd)


def test_a_rank_is_trusted_with_its_own_packets_only(job):
    """What it names elsewhere is passed over; its own packets before and after are taken."""
    segment, _ = job(3, 4)
    own, end = packet(segment, 1), packet(segment, 1) + 2 * 4 * int(segment.at[shm.ROW])
    wrong = [
        (own - 1, 10), (end - 9, 10), (end, 1), (packet(segment, 0), 10), (packet(segment, 2), 1034),
        (row(segment), 10), (segment.memory.ctypes.data, 10), (segment.memory.ctypes.data + segment.memory.size, 10),
        (own - 2**40, 10), (own, 65535),
    ]  # fmt: skip
    right = [(own, 1034), (end - 10, 10)]
    for entry in (right[0], *wrong, right[1]):
        push_up(segment, 1, *entry)
    assert take_up(segment, 1) == right
    for entry in wrong * 50:
        push_up(segment, 1, *entry)
    assert take_up(segment, 1, most=3) == [] and shm.up_waits(segment.at, 1)  # looking at them is work too
    assert take_up(segment, 1) == [] and not shm.up_waits(segment.at, 1)


def test_results_lie_among_the_rows(job):
    segment, _ = job()
    end = segment.memory.ctypes.data + segment.memory.size
    for entry in ((packet(segment, 0), 10), (row(segment), 1034), (end - 5, 10), (end - 10, 10), (0, 10)):
        shm.push_down(segment.at, 0, *entry, 0)
    assert take_down(segment, 0) == [(row(segment), 1034), (end - 10, 10)]


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
    push_up(other, 1, packet(other, 1, 3), 5)
    [(address, length)] = take_up(segment, 1)
    assert address == packet(segment, 1, 3) and bytes(shm.packets_of(segment, 1)[3, :length]) == b"hello"
    shm.push_down(segment.at, 0, row(segment, 2), 6, 0)
    assert take_down(other, 0) == [(row(other, 2), 6)]
    shm.announce_sleep(other.at, 0, 1)
    assert shm.must_wake(segment.at, 0)


def test_names_that_are_wrong(job, tmp_path):
    segment, name = job(2, 8)
    path, mark, *_ = name.rsplit(":", 4)
    same_size = tmp_path / "file"
    same_size.write_bytes(bytes(segment.memory.size))
    for wrong, message in (
        ("", "ranks and aggregator must be on one machine"),
        ("nonsense", "on one machine"),
        (f"{path}:{mark}:two:8:1024", "on one machine"),
        (f"{path}:mark:2:8:1024", "on one machine"),
        (f"/proc/self/fd/9999:{mark}:2:8:1024", "No such file"),
        (f"{tmp_path}:{mark}:2:8:1024", "Is a directory"),
        (f"{path}:{mark}:2:16:1024", f"{segment.memory.size} bytes, expected"),
        (f"{path}:{mark}:3:8:1024", "bytes, expected"),
        (f"{path}:{int(mark, 16) ^ 1:x}:2:8:1024", "not the job's"),
        (f"{same_size}:{mark}:2:8:1024", "not the job's"),
    ):
        with pytest.raises(ConfigError, match=message):
            shm.attach(wrong)
    assert shm.attach(name)
