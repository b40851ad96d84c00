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
from tests.support.reference_pool import ReferencePoolV1, ReferencePoolV2

LANES_USED = 3
ROUNDS = 6
FIELDS = ">BbIHbb"
TAG = 0xBEEF


class Network:
    """Ranks, packets on their way up and results on their way down. Subclasses know the packets of one protocol."""

    def __init__(self, pools, workers: int, slots: int, values_of, ordered: bool):
        self.pools, self.workers, self.slots, self.values_of = pools, workers, slots, values_of
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
                self.up.append((rank, self.again(self.waiting[rank, slot])))
        elif kind in ("arrive", "copy", "lose") and self.up:
            sender, data = self._take(self.up, a, keep=kind == "copy")
            if kind != "lose":
                self.reach(sender, data)
        elif kind == "mutate" and self.up:
            sender, data = self.up[a % len(self.up)]
            self.reach(b % self.workers, self.mutated(data, a, b))
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

    @staticmethod
    def mutated(data: bytes, a: int, b: int) -> bytes:
        """`data` with a header byte changed, or cut, or prolonged."""
        if a % 8 == 0:
            return data[: b % (len(data) + 1)]
        if a % 8 == 1:
            return data + bytes(b % 5)
        at = a % 11
        return data[:at] + bytes([data[at] ^ (1 << b % 8)]) + data[at + 1 :]

    def accept(self, rank: int, slot: int, lanes) -> None:
        """The result of the round that this rank waits for."""
        number = self.round[rank, slot]
        exact = [
            sum(lane) for lane in zip(*(self.values_of(r, slot, number) for r in range(self.workers)), strict=True)
        ]
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


class NetworkV1(Network):
    """Protocol 1; the round is in tsi, as the reference client's packet id is."""

    def contribution(self, rank, slot, number):
        header = struct.pack(">BBIHbb", 0x11, number, number, (number & 1) << 15 | slot, -rank, rank)
        return header + struct.pack(">64i", *self.values_of(rank, slot, number), *[0] * (64 - LANES_USED))

    def again(self, data):
        return data

    def hear(self, rank, data):
        _, _, tsi, index, _, _ = struct.unpack(">BBIHbb", data[:10])
        slot = index & 0x3FFF
        if (rank, slot) in self.waiting and tsi == self.round[rank, slot]:
            self.accept(rank, slot, struct.unpack(">64i", data[10:]))


class NetworkV2(Network):
    """Protocol 2, with int32 lanes unless `wire` says otherwise."""

    def __init__(self, *args, isn: int, wire: int = 0, **kargs):
        super().__init__(*args, **kargs)
        self.isn, self.wire = isn, wire
        self.lanes = f">{256 >> (2 - wire)}{'ihb'[wire]}"

    def contribution(self, rank, slot, number):
        chooser = random.Random(f"{rank} {slot} {number}")
        codes = (-128, -3, 0, 127)
        seq = (self.isn + number * self.slots + slot) % 2**32
        header = struct.pack(
            FIELDS,
            (8 + self.wire) << 4 | 1,
            chooser.choice(codes),
            seq,
            TAG,
            chooser.choice(codes),
            chooser.choice((4, 4, 8)),
        )
        values = self.values_of(rank, slot, number)
        return header + struct.pack(
            self.lanes, *values, *[0] * (struct.calcsize(self.lanes) // (4, 2, 1)[self.wire] - LANES_USED)
        )

    def again(self, data):
        return bytes([data[0] | 8]) + data[1:]

    def hear(self, rank, data):
        first, _, seq, job_tag, _, _ = struct.unpack(FIELDS, data[:10])
        if first >> 4 != 12 + self.wire or job_tag != TAG:
            return
        slot = seq % self.slots
        if (rank, slot) in self.waiting and seq == (self.isn + self.round[rank, slot] * self.slots + slot) % 2**32:
            self.accept(rank, slot, struct.unpack(self.lanes, data[10:]))


def small_values(rank, slot, number):
    """Values whose sum always fits, so that an exact comparison is fair."""
    chooser = random.Random(f"{rank}/{slot}/{number}")
    return [chooser.randint(-(2**28), 2**28) for _ in range(LANES_USED)]


def extreme_values(bits: int):
    """Values that overflow as often as not."""
    top = 2 ** (bits - 1)

    def values(rank, slot, number):
        chooser = random.Random(f"{bits} {rank} {slot} {number}")
        return [chooser.choice((-top, -top + 1, -1, 0, 1, top // 2, top - 1)) for _ in range(LANES_USED)]

    return values


def many(elements, limit: int):
    """Lists of 0 to `limit` elements, long ones as likely as short ones (st.lists alone stays near five)."""
    return st.integers(0, limit).flatmap(lambda size: st.lists(elements, min_size=size, max_size=size))


def choices(*kinds: str):
    """A schedule: what happens in which order. `arrive` and `hear` come up most, or nothing would get far."""
    number = st.integers(0, 255)
    return many(st.tuples(st.sampled_from(kinds), number, number), 250)


LOSSY = ("send", "send", "resend", "arrive", "arrive", "copy", "lose", "hear", "hear", "hear_copy", "miss")
FIFO = tuple(kind for kind in LOSSY if kind != "copy")
job_shapes = st.tuples(st.integers(1, 4), st.sampled_from([1, 2, 4]))
starts = st.sampled_from([0, 4096, 2**31 - 8, 2**31, 2**32 - 8, 2**32 - 16])


def v2_pools(workers, slots, wire, isn):
    return (
        ReferencePoolV2(workers, slots, 256, wire, TAG, isn),
        Pool(workers=workers, slots=slots, payload_bytes=256, wire=wire, job_tag=TAG, isn=isn),
    )


def v1_pools(workers):
    return ReferencePoolV1(workers), PoolV1(workers=workers, payload_bytes=256)


@given(job_shapes, choices(*FIFO))
@examples(60)
def test_v1_sums_are_exact_while_each_worker_is_heard_in_order(shape, schedule):
    workers, slots = shape
    network = NetworkV1(v1_pools(workers), workers, slots, small_values, ordered=True)
    for choice in schedule:
        network.act(*choice)
    network.finish()


def test_v1_sums_go_wrong_when_the_network_reorders():
    """The hazard that protocol 2 cures. If this test fails, docs/protocol.md section 1 is wrong about it."""
    network = NetworkV1(v1_pools(2), 2, 1, small_values, ordered=False)
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


class Unchecked:
    """Ranks that believe every result: packets may be spoiled and sums overflow, only the pools' agreement counts."""

    def accept(self, rank, slot, lanes):
        del self.waiting[rank, slot]
        self.round[rank, slot] += 1


class UncheckedV1(Unchecked, NetworkV1):
    pass


class UncheckedV2(Unchecked, NetworkV2):
    pass


@given(job_shapes, starts, st.sampled_from([0, 1, 2]), choices(*LOSSY, "mutate", "mutate"))
@examples(150)
def test_v2_compiled_and_reference_agree(shape, isn, wire, schedule):
    workers, slots = shape
    network = UncheckedV2(
        v2_pools(workers, slots, wire, isn),
        workers,
        slots,
        extreme_values(32 >> wire),
        ordered=False,
        isn=isn,
        wire=wire,
    )
    for choice in schedule:
        network.act(*choice)


@given(job_shapes, choices(*LOSSY, "mutate", "mutate"))
@examples(100)
def test_v1_compiled_and_reference_agree(shape, schedule):
    workers, slots = shape
    network = UncheckedV1(v1_pools(workers), workers, slots, extreme_values(32), ordered=False)
    for choice in schedule:
        network.act(*choice)


@given(
    many(
        st.tuples(
            st.integers(0, 2),
            st.integers(-10, 20),
            st.booleans(),
            st.sampled_from([TAG, TAG, TAG, 1]),
            st.integers(-128, 127),
            st.integers(-(2**31), 2**31 - 1),
        ),
        100,
    ),
    starts,
)
@examples(100)
def test_v2_agrees_on_ranks_that_keep_to_no_rule(packets, isn):
    """Any sequence number near the start, in any order: no rank waits for anything."""
    pools = v2_pools(3, 2, 0, isn)
    for rank, ahead_of, r, job_tag, code, value in packets:
        data = struct.pack(
            FIELDS, 0x81 | r << 3, code, (isn + ahead_of) % 2**32, job_tag, -code - 1, code & 1
        ) + struct.pack(">64i", *[value] * 64)
        expected, got = (tuple(pool.receive(rank, data)) for pool in pools)
        assert got == expected


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
