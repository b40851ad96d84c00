"""The compiled pool against the plain reference on random traffic, and what either protocol promises about its sums.

`Network` is a handful of ranks that keep to the worker's rule over a network that loses, copies and reorders packets
and results as a list of random choices says. An aggregator answers; every result that a rank accepts is compared with
the exact sum.
"""

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchml.errors import ConfigError
from switchml.protocol.pool import Pool, PoolV1
from tests.support.examples import examples
from tests.support.reference_pool import ReferencePoolV1

LANES_USED = 3
ROUNDS = 6
TAG = 0xBEEF


class Network:
    """Ranks of protocol 1, packets on their way up and results on their way down; the round is in tsi, as the reference
    client's packet id is."""

    def __init__(self, pools, workers: int, slots: int, ordered: bool):
        self.pools, self.workers, self.slots = pools, workers, slots
        self.ordered = ordered
        self.round = {(rank, slot): 0 for rank in range(workers) for slot in range(slots)}
        self.waiting: dict[tuple[int, int], bytes] = {}
        self.up: list[tuple[int, bytes]] = []
        self.down: list[tuple[int, bytes]] = []

    def act(self, kind: str, a: int, b: int) -> None:
        """One random choice: `a` and `b` pick a rank and slot, or a packet under way."""
        rank, slot = a % self.workers, b % self.slots
        if kind == "send":
            if (rank, slot) not in self.waiting and self.round[rank, slot] < ROUNDS:
                self.waiting[rank, slot] = self.contribution(rank, slot, self.round[rank, slot])
                self.up.append((rank, self.waiting[rank, slot]))
        elif kind == "resend":
            if (rank, slot) in self.waiting:
                self.up.append((rank, self.waiting[rank, slot]))
        elif kind in ("arrive", "lose") and self.up:
            sender, data = self._take(self.up, a, keep=False)
            if kind != "lose":
                self.reach(sender, data)
        elif kind in ("hear", "hear_copy", "miss") and self.down:
            receiver, data = self._take(self.down, a, keep=kind == "hear_copy")
            if kind != "miss":
                self.hear(receiver, data)

    def _take(self, packets: list, a: int, keep: bool) -> tuple[int, bytes]:
        at = a % len(packets)
        if self.ordered and packets is self.up:
            at = next(i for i, packet in enumerate(packets) if packet[0] == packets[at][0])
        return packets[at] if keep else packets.pop(at)

    def reach(self, rank: int, data: bytes) -> None:
        """The packet arrives at every pool; they must agree on everything that comes of it."""
        outcomes = [tuple(pool.receive(rank, data)) for pool in self.pools]
        assert all(outcome == outcomes[0] for outcome in outcomes), (rank, data[:20].hex(" "), outcomes)
        action, _, reply = outcomes[0]
        if action == "multicast":
            self.down += [(receiver, reply) for receiver in range(self.workers)]
        elif reply is not None:
            self.down.append((rank, reply))

    def contribution(self, rank, slot, number):
        header = struct.pack(">BBIHbb", 0x11, number, number, (number & 1) << 15 | slot, -rank, rank)
        return header + struct.pack(">64i", *small_values(rank, slot, number), *[0] * (64 - LANES_USED))

    def hear(self, rank, data):
        _, _, tsi, index, _, _ = struct.unpack(">BBIHbb", data[:10])
        slot = index & 0x3FFF
        if (rank, slot) in self.waiting and tsi == self.round[rank, slot]:
            self.accept(rank, slot, struct.unpack(">64i", data[10:]))

    def accept(self, rank: int, slot: int, lanes) -> None:
        """The result of the round that this rank waits for."""
        number = self.round[rank, slot]
        exact = [sum(lane) for lane in zip(*(small_values(r, slot, number) for r in range(self.workers)), strict=True)]
        assert list(lanes[:LANES_USED]) == exact and not any(lanes[LANES_USED:])
        del self.waiting[rank, slot]
        self.round[rank, slot] += 1

    def finish(self) -> None:
        """From here on nothing is lost: every round must come to its end."""
        for _ in range(3 * ROUNDS):
            for rank, slot in self.round:
                self.act("resend" if (rank, slot) in self.waiting else "send", rank, slot)
            while self.up:
                self.act("arrive", 0, 0)
            while self.down:
                self.act("hear", 0, 0)
        assert set(self.round.values()) == {ROUNDS}


def small_values(rank, slot, number):
    """Values whose sum always fits, so that an exact comparison is fair."""
    chooser = random.Random(f"{rank}/{slot}/{number}")
    return [chooser.randint(-(2**28), 2**28) for _ in range(LANES_USED)]


def many(elements, limit: int):
    """Lists of 0 to `limit` elements, long ones as likely as short ones (st.lists alone stays near five)."""
    return st.integers(0, limit).flatmap(lambda size: st.lists(elements, min_size=size, max_size=size))


def choices(*kinds: str):
    """A schedule: what happens in which order. `arrive` and `hear` come up most, or nothing would get far."""
    number = st.integers(0, 255)
    return many(st.tuples(st.sampled_from(kinds), number, number), 250)


FIFO = ("send", "send", "resend", "arrive", "arrive", "lose", "hear", "hear", "hear_copy", "miss")
job_shapes = st.tuples(st.integers(1, 4), st.sampled_from([1, 2, 4]))


def v1_pools(workers):
    return ReferencePoolV1(workers), PoolV1(workers=workers, payload_bytes=256)


@given(job_shapes, choices(*FIFO))
@examples(60)
def test_v1_sums_are_exact_while_each_worker_is_heard_in_order(shape, schedule):
    workers, slots = shape
    network = Network(v1_pools(workers), workers, slots, ordered=True)
    for choice in schedule:
        network.act(*choice)
    network.finish()


def test_v1_sums_go_wrong_when_the_network_reorders():
    """The hazard that protocol 2 cures. If this test fails, docs/protocol.md section 1 is wrong about it."""
    network = Network(v1_pools(2), 2, 1, ordered=False)
    network.act("send", 0, 0)
    network.act("resend", 0, 0)
    stale = network.up.pop()
    for _ in range(2):  # rounds 0 and 1, without loss
        network.act("send", 0, 0)
        network.act("send", 1, 0)
        while network.up:
            network.act("arrive", 0, 0)
        while network.down:
            network.act("hear", 0, 0)
    network.reach(*stale)
    with pytest.raises(AssertionError):
        network.finish()


@given(
    many(
        st.tuples(st.integers(0, 31), st.integers(0, 7), st.sampled_from([64, 256]), st.integers(-(2**31), 2**31 - 1)),
        120,
    ),
    st.sampled_from([1, 2, 32]),
)
@examples(60)
def test_v1_agrees_on_workers_that_keep_to_no_rule(packets, workers):
    """Any slot, any set, both sizes in one slot, bit 14 of the pool index clear or set."""
    pools = v1_pools(workers)
    for number, (rank, where, lanes, value) in enumerate(packets):
        size = 1 if lanes == 64 else 3
        index = (where & 1) << 15 | (where & 4) << 12 | (8191 if where & 2 else 0)
        data = struct.pack(">BBIHbb", 0x10 | size, number & 0xFF, number, index, value % 256 - 128, -(value % 100))
        data += struct.pack(f">{lanes}i", *[value] * lanes)
        expected, got = (tuple(pool.receive(rank % workers, data)) for pool in pools)
        assert got == expected


@pytest.mark.parametrize("bad", [
    {"workers": 0}, {"workers": 257}, {"slots": 0}, {"slots": 3}, {"payload_bytes": 128}, {"payload_bytes": 512},
    {"wire": 3}, {"isn": 4}, {"isn": 1},
])  # fmt: skip
def test_pool_refuses_nonsense(bad):
    with pytest.raises(ConfigError):
        Pool(**{"workers": 2, "slots": 4, "payload_bytes": 256, "wire": 0, "job_tag": 1, "isn": 0, **bad})


@pytest.mark.parametrize("workers", [0, 33])
def test_v1_pool_refuses_nonsense(workers):
    with pytest.raises(ConfigError):
        PoolV1(workers=workers)
