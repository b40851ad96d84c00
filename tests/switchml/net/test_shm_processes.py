"""Shared memory between two processes: rings, the flags of those who sleep, and nothing that stays behind.

The other process is this file, run as a program: `echo` is a rank that counts through the rings, `sleeper` one that
sleeps whenever it has nothing to do, `creator` makes a segment.
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
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from switchml.errors import ConfigError
from switchml.net import shm, udp
from tests.support import shared_files
from tests.support.segments import CAPACITY, packet, push_up, row

ROOT = Path(__file__).resolve().parents[3]
LAST = 99
"""Length of the last packet."""
MAX_S = 100.0
"""How long a process waits for the other one; more means that something was lost."""


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
    deadline = time.monotonic() + MAX_S
    while not condition():
        assert time.monotonic() < deadline, "nothing came"
        asleep()


@pytest.mark.slow
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
            assert push_up(segment, 0, place, 1 + sent % 1000)
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
                push_up(self.segment, 0, packet(self.segment, 0), length)
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
                if not select.select([self.socket], [], [], MAX_S)[0]:
                    raise AssertionError("slept on, with something in the ring" if self.waits() else "nothing came")
                self.socket.recv(1)
            shm.announce_sleep(self.at, self.me, 0)
        return count

    def dally(self) -> None:
        """Sometimes a while, so that the other side is in any state of going to sleep."""
        for _ in range(self.chooser.choice([0, 0, 10, 100, 300])):
            pass


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_segment_outlives_its_creator_for_those_who_have_it_and_nobody_else():
    with other_process("creator") as process:
        name = process.stdout.readline().strip()
        segment = shm.attach(name)
        push_up(segment, 0, packet(segment, 0), 10)
        process.stdin.write("\n")
        process.stdin.flush()
        process.wait(60)
    with pytest.raises(ConfigError, match="No such file or directory.*; ranks and aggregator must be on one machine"):
        shm.attach(name)
    packets = udp.new_packets(CAPACITY)
    assert shm.receive_up(segment.at, 0, np.uint64(0), packets, 0, CAPACITY) == 1  # touching it is no crash
    assert (packets.address[0], packets.length[0]) == (packet(segment, 0), 10)


@pytest.mark.slow
def test_nothing_is_left_behind():
    def traces() -> tuple[int, int]:
        gc.collect()
        return len(os.listdir("/proc/self/fd")), Path("/proc/self/maps").read_text().count("switchml-job")

    before, files = traces(), shared_files.names()
    for _ in range(3):
        segment, fd, name = shm.create(4, 64)
        attached = shm.attach(name)
        assert traces() == (before[0] + 3, before[1] + 2)  # each mapping keeps a descriptor of its own
        os.close(fd)
        with pytest.raises(ConfigError):
            shm.attach(name)
        with pytest.raises(ConfigError):
            shm.attach(f"/proc/self/exe{name[name.index(':') :]}")
        del segment, attached
        assert traces() == before
    shared_files.await_none_left(files, "segments")


if __name__ == "__main__":
    if sys.argv[1] == "echo":
        echo(sys.argv[2], int(sys.argv[3]))
    elif sys.argv[1] == "sleeper":
        sleeper(sys.argv[2], int(sys.argv[3]))
    else:
        creator()
