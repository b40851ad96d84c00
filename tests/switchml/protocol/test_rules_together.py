"""Ranks and an aggregator over a network that loses, doubles, delays and reorders packets, in virtual time.

The promise of protocol 2: whatever the network does, every rank ends with the same bits, those of exact arithmetic as
the specification rounds it. `Network` is a queue of events; nobody sleeps.
"""

import heapq
import math
import random
import struct
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchml.counters import COMPLETED
from switchml.protocol import worker_state as rules
from switchml.protocol.collectives import Collective
from switchml.protocol.halves import KINDS, narrow, widen
from switchml.protocol.packet import for_rank
from switchml.protocol.pool import Pool
from switchml.protocol.retransmission import MICROSECOND, MILLISECOND, SECOND
from switchml.protocol.sparse import Sparse
from switchml.protocol.worker import Worker
from tests.support import reference_fixedpoint as numbers
from tests.support.examples import examples

TAG = 0xC0DE
PAYLOAD = 256
LANES = PAYLOAD // 4
NEVER = np.iinfo(np.int64).max
PATH = 25 * MICROSECOND
"""How long a packet takes when nothing happens to it."""


@dataclass(frozen=True)
class Weather:
    """Probabilities of what may happen to a packet; a late one is late by up to `most_late`, many windows."""

    loss: float = 0.0
    double: float = 0.0
    late: float = 0.0
    most_late: int = 60 * MILLISECOND
    junk: float = 0.0


CLEAR = Weather()


@dataclass
class Call:
    """One all-reduce of one rank, or another collective of `numel` elements of `source`."""

    dtype: str
    divisor: int
    source: np.ndarray
    target: np.ndarray
    number: int = -1
    blocks: Sparse | None = None
    collective: Collective | None = None
    numel: int = -1


class Network:
    """`calls[r]` is rank r's list of all-reduces. A rank queues them all at once, or each when the one before is done.

    `histories`: remember exponents per (dtype, size), as the agent does.
    """

    def __init__(
        self,
        calls: list[list[Call]],
        *,
        slots: int,
        windows: list[int],
        isn: int = 0,
        weather: Weather = CLEAR,
        seed: int = 0,
        at_once: list[bool] | None = None,
        histories: bool = True,
        start_spread: int = 0,
        collectives: bool = False,
    ):
        n = len(calls)
        self.chooser, self.weather, self.calls, self.isn, self.slots = random.Random(seed), weather, calls, isn, slots
        wire = max(0 if call.dtype == "raw" else numbers.wire(call.dtype) for column in calls for call in column)
        self.pool = Pool(workers=n, slots=slots, payload_bytes=PAYLOAD, wire=wire, tag=TAG, isn=isn)
        self.ranks = [
            Worker(
                rank=r,
                workers=n,
                slots=slots,
                tag=TAG,
                isn=isn,
                window=windows[r],
                payload_bytes=PAYLOAD,
                two_queues=collectives,
            )
            for r in range(n)
        ]
        self.at_once = at_once or [True] * n
        self.remembers = histories
        self.histories = [{} for _ in range(n)]
        self.started = [0] * n
        self.base = [np.zeros(1)] * n
        self.now = 0
        self.events: list[tuple[int, int, str, int, bytes]] = []
        self.order = 0
        self.woken_at = [-1] * n
        self.first_sending: list[dict[int, bytes]] = [{} for _ in range(n)]
        for r in range(n):
            self.at(self.chooser.randint(0, start_spread), "wake", r)

    def at(self, time: int, kind: str, rank: int, data: bytes = b"") -> None:
        self.order += 1
        heapq.heappush(self.events, (time, self.order, kind, rank, data))

    def travel(self, kind: str, rank: int, data: bytes) -> None:
        """A packet of rank `rank` (up) or for it (down) meets its fate."""
        for _ in range(1 + (self.chooser.random() < self.weather.double)):
            if self.chooser.random() < self.weather.loss:
                continue
            delay = PATH + self.chooser.randint(0, PATH // 5)
            if self.chooser.random() < self.weather.late:
                delay += self.chooser.randint(0, self.weather.most_late)
            self.at(self.now + delay, kind, rank, data)

    def run(self, limit: int) -> "Network":
        """Until every rank has all its results; fails if that takes more than `limit` of virtual time."""
        while not all(map(self.is_done, range(len(self.ranks)))):
            self.step()
            assert self.now <= limit, f"not done after {self.now / SECOND:g} s"
        self.check_end()
        return self

    def step(self) -> None:
        """The next event."""
        assert self.events, "nothing under way, and no timer is set"
        self.now, _, kind, rank, data = heapq.heappop(self.events)
        if kind == "up":
            self.reach_aggregator(rank, data)
        elif kind == "down":
            self.reach_rank(rank, [data])
        elif self.now == self.woken_at[rank] or self.woken_at[rank] < 0:
            self.reach_rank(rank, [])

    def is_done(self, rank: int) -> bool:
        return self.ranks[rank].counters["completed"] == len(self.calls[rank]) or bool(self.ranks[rank].failure["code"])

    def reach_aggregator(self, rank: int, data: bytes) -> None:
        outcome = self.pool.receive(rank, data)
        assert not outcome.counter.startswith("refused"), outcome
        if outcome.action == "multicast":
            for receiver in range(len(self.ranks)):
                self.travel("down", receiver, for_rank(outcome.packet, receiver))
        elif outcome.packet is not None:
            self.travel("down", rank, outcome.packet)

    def reach_rank(self, rank: int, datagrams: list[bytes]) -> None:
        worker, window = self.ranks[rank], self.ranks[rank].window
        if worker.failure["code"]:
            return
        while self.chooser.random() < self.weather.junk:
            datagrams.insert(self.chooser.randint(0, len(datagrams)), self.junk(rank))
        self.start_calls(rank)
        packets = worker.receive(datagrams, self.now)
        if self.start_calls(rank):
            packets += worker.receive([], self.now)
        base, following = worker.queues["base"].copy(), worker.queues["next"]
        assert (self.base[rank] <= base).all() and (base <= following).all()
        assert (following <= worker.queues["total"]).all()
        assert window["in_flight"] == worker.queues["in_flight"].sum() == worker.state.slots["busy"].sum()
        assert (worker.queues["in_flight"] <= window["limit"] + np.count_nonzero(worker.state.slots["redo"])).all()
        self.base[rank] = base
        for data in packets:
            seq = struct.unpack(">I", data[2:6])[0]
            first = self.first_sending[rank].setdefault(seq, data)
            assert data is first or data == bytes([first[0] | 8]) + first[1:], "resent differently"
            self.travel("up", rank, data)
        if worker.deadline != NEVER:
            self.woken_at[rank] = max(worker.deadline, self.now)
            self.at(self.woken_at[rank], "wake", rank)
        else:
            self.woken_at[rank] = self.now  # asleep for good, unless something comes

    def start_calls(self, rank: int) -> bool:
        """Queue what this rank may queue now; whether that was anything."""
        worker, before = self.ranks[rank], self.started[rank]
        while self.started[rank] < len(self.calls[rank]):
            if not self.at_once[rank] and worker.outstanding:
                break
            call = self.calls[rank][self.started[rank]]
            history = None
            if self.remembers and call.blocks is None and call.dtype not in (*numbers.BITS, "raw"):
                key = (call.dtype, call.source.size)
                history = self.histories[rank].setdefault(key, np.full(self.slots, -128, np.int8))
            call.number = worker.start(
                call.source.ctypes.data,
                call.target.ctypes.data,
                call.source.size if call.numel < 0 else call.numel,
                call.dtype,
                call.divisor,
                history,
                call.blocks,
                call.collective,
            )
            self.started[rank] += 1
        return self.started[rank] > before

    def junk(self, rank: int) -> bytes:
        """Bytes from nowhere, and answers with the right tag to rounds that this rank does not wait for."""
        if self.chooser.random() < 0.3:
            return self.chooser.randbytes(self.chooser.choice([0, 3, 10, 42, 266]))
        state = self.ranks[rank].state
        slot = self.chooser.randrange(self.slots)
        # Not one round ahead: a result in the same batch may make that the round that the rank waits for.
        off = self.chooser.choice([-5, -2, -1, 2, 3, 1000]) * self.slots
        seq = (self.isn + int(state.slots["round"][slot]) * self.slots + slot + off) % 2**32
        header = struct.pack(
            ">BbIHbb",
            self.chooser.choice([0xC1, 0xC9, 0xC1, 0x81, 0xD1]),
            self.chooser.randint(-128, 127),
            seq,
            TAG,
            self.chooser.randint(-128, 127),
            self.chooser.randint(0, 3),
        )
        return header + self.chooser.randbytes(PAYLOAD)

    def check_end(self) -> None:
        """Each chunk was finished once, each round sent once and resent as often as counted; all ranks are idle."""
        for worker, calls in zip(self.ranks, self.calls, strict=True):
            if worker.failure["code"]:
                continue
            queues, counters, tasks = worker.queues, worker.counters, worker.state.tasks
            assert all(
                tasks[c.number]["state"] == rules.DONE and tasks[c.number]["done"] == tasks[c.number]["chunks"]
                for c in calls
            )
            total = sum(int(tasks[c.number]["chunks"]) for c in calls)
            assert queues["base"].sum() == queues["next"].sum() == queues["total"].sum() == total
            rounds = int(worker.state.slots["round"].sum())
            grouped = [tasks[c.number] for c in calls if tasks[c.number]["group"]]
            lists = sum(-(-int(task["chunks"]) // (int(task["group"]) + 1)) for task in grouped)  # empty: no round
            assert total - lists <= rounds - counters["repeats"] - counters["streamed"] <= total
            assert rounds == counters["sent"] - counters["retransmitted"]
            assert rounds == self.pool.counters[:, COMPLETED].sum()
            assert worker.outstanding == 0 and not worker.state.slots["busy"].any()


# -- tensors --


def values(dtype: str, numel: int, chooser: random.Random, oddities: bool) -> np.ndarray:
    """Magnitudes differ from rank to rank and along the tensor, so that guesses of exponents are often wrong."""
    generator = np.random.default_rng(chooser.getrandbits(32))
    if dtype.startswith("int"):
        reach = chooser.choice([100, int(np.iinfo(dtype).max) // 8])
        return generator.integers(-reach, reach, numel, dtype)
    scales = 2.0 ** generator.integers(*chooser.choice([(0, 1), (-9, 9), (-120, 120)]), -(-numel // 32))
    x = (generator.standard_normal(numel) * np.repeat(scales, 32)[:numel]).astype(numbers.element(dtype))
    if oddities:
        x[chooser.randrange(numel)] = chooser.choice([math.inf, -math.inf, math.nan])
    if chooser.random() < 0.2:
        x[: chooser.randrange(numel)] = 0
    return x


def scenario(workers: int, seed: int) -> list[list[Call]]:
    """The same random list of all-reduces for each rank, with values of its own."""
    chooser = random.Random(seed)
    ranks: list[list[Call]] = [[] for _ in range(workers)]
    wire = chooser.choice([0, 0, 1, 2])
    dtypes = [dtype for dtype in numbers.DENSE if numbers.wire(dtype) in (0, wire)]
    shapes = [
        (chooser.choice(dtypes), chooser.choice([1, chooser.randint(1, 64), chooser.randint(1, 900)]))
        for _ in range(chooser.randint(1, 3))
    ]
    for dtype, numel in (chooser.choice(shapes) for _ in range(chooser.randint(1, 5))):
        divisor = chooser.choice([1, workers])
        for calls in ranks:
            source = values(dtype, numel, chooser, chooser.random() < 0.15)
            calls.append(Call(dtype, divisor, source, np.full_like(source, 99)))
    return ranks


def again(ranks: list[list[Call]]) -> list[list[Call]]:
    return [[Call(c.dtype, c.divisor, c.source, np.full_like(c.source, 55)) for c in calls] for calls in ranks]


def results(ranks: list[list[Call]]) -> list[list[bytes]]:
    return [[call.target.tobytes() for call in calls] for calls in ranks]


def single(dtype: str, numel: int, workers: int, chooser: random.Random) -> list[list[Call]]:
    """One all-reduce of finite values for each rank."""
    columns = [values(dtype, numel, chooser, False) for _ in range(workers)]
    return [[Call(dtype, 1, x, np.zeros_like(x))] for x in columns]


def check(ranks: list[list[Call]]) -> None:
    """All ranks have the same bits, chunk by chunk those of exact arithmetic, rounded as one of the allowed exponents
    says (with wide lanes there is one)."""
    for column in zip(*ranks, strict=True):
        dtype, divisor = column[0].dtype, column[0].divisor
        per = numbers.per_chunk(dtype, PAYLOAD)
        assert len({call.target.tobytes() for call in column}) == 1
        for first in range(0, column[0].source.size, per):
            blocks = [call.source[first : first + per].tolist() for call in column]
            got = column[0].target[first : first + per].tobytes()
            sums = (
                numbers.all_reduce(dtype, blocks, divisor, spare)[0]
                for spare in range(numbers.spread(dtype, len(ranks)) + 1)
            )
            assert any(got == np.array(values, numbers.element(dtype)).tobytes() for values in sums)


def wide(ranks: list[list[Call]]) -> list[list[bytes]]:
    """Results that depend on the values alone."""
    return [[call.target.tobytes() for call in calls if call.dtype not in numbers.NARROW] for calls in ranks]


@pytest.mark.parametrize("half", KINDS)
@pytest.mark.parametrize("wire", ["", "/int16", "/int8"])
@given(st.integers(1, 4), st.integers(0, 2**32), st.sampled_from([0.0, 0.1]))
@examples(30)
def test_half_precision_has_the_sums_of_its_float32_copies_rounded(half, wire, workers, seed, loss):
    """Packet for packet, whatever the values; in place, too."""
    chooser, kind = random.Random(seed), KINDS[half]
    numel, divisor, in_place = chooser.choice([1, 700, 1300]), chooser.choice([1, workers]), chooser.random() < 0.5
    halves, copies = [], []
    for _ in range(workers):
        x, copy = np.empty(numel, np.uint16), values("float32", numel, chooser, chooser.random() < 0.3)
        narrow(kind, copy.ctypes.data, x.ctypes.data, numel)
        widen(kind, x.ctypes.data, copy.ctypes.data, numel)
        halves.append([Call(f"{half}{wire}", divisor, x, x if in_place else np.zeros_like(x))])
        copies.append([Call(f"float32{wire}", divisor, copy, np.zeros_like(copy))])
    sent = []
    for ranks in (halves, copies):
        network = Network(ranks, slots=4, windows=[4] * workers, weather=Weather(loss=loss), seed=seed)
        sent.append(network.run(limit=60 * SECOND).first_sending)
    assert sent[0] == sent[1]
    for (call,), (copy,) in zip(halves, copies, strict=True):
        expected = np.empty(numel, np.uint16)
        narrow(kind, copy.target.ctypes.data, expected.ctypes.data, numel)
        assert call.target.tobytes() == expected.tobytes()


# -- what holds whatever the network does --


@given(
    st.integers(1, 5),
    st.sampled_from([1, 2, 4, 16]),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.02, 0.1, 0.3]),
    st.sampled_from([0.0, 0.02, 0.2]),
    st.sampled_from([0.0, 0.02, 0.3]),
    st.sampled_from([0.0, 0.1]),
)
@examples(150)
def test_every_rank_gets_the_exact_bits(workers, slots, seed, loss, double, late, junk):
    """Random tensors, windows, starts; the sequence numbers wrap in half of the runs."""
    chooser = random.Random(seed)
    ranks = scenario(workers, seed)
    isn = chooser.choice([0, 2**32 - 2 * slots, 2**31 - 2 * slots, chooser.randrange(2**32) // (2 * slots) * 2 * slots])
    windows = [chooser.randint(1, slots) for _ in range(workers)]
    Network(
        ranks,
        slots=slots,
        windows=windows,
        isn=isn,
        weather=Weather(loss, double, late, junk=junk),
        seed=seed,
        at_once=[chooser.random() < 0.5 for _ in range(workers)],
        histories=chooser.random() < 0.7,
        start_spread=chooser.choice([0, 10 * MILLISECOND, SECOND]),
    ).run(limit=120 * SECOND)
    check(ranks)
    calm = again(ranks)
    Network(calm, slots=slots, windows=[slots] * workers).run(limit=SECOND)
    assert wide(calm) == wide(ranks)


def test_a_rank_that_comes_seconds_late_is_waited_for():
    """The others ask five times a second, for eight rounds at most, and know who is missing."""
    ranks = single("float32", 2000, 3, random.Random(3))
    network = Network(ranks, slots=32, windows=[32] * 3)
    network.events = [(0 if r < 2 else 4 * SECOND, r, "wake", r, b"") for r in range(3)]
    heapq.heapify(network.events)
    network.run(limit=5 * SECOND)
    check(ranks)
    for r in (0, 1):
        assert network.ranks[r].missing_ranks() == (2,)
        assert network.ranks[r].counters["waits"] > 8 and network.ranks[r].counters["retransmitted"] < 8 * 60
    assert network.now < 4 * SECOND + 100 * MILLISECOND


def test_losses_cost_little_time():
    """One packet in a hundred lost: recovery at the path's pace, not at a timer's of 10 ms a loss."""
    ranks = single("float32", 40_000, 2, random.Random(4))
    clear = Network(again(ranks), slots=64, windows=[64] * 2).run(limit=SECOND)
    lossy = Network(ranks, slots=64, windows=[64] * 2, weather=Weather(loss=0.01), seed=2).run(limit=SECOND)
    lost = sum(int(worker.counters["retransmitted"]) for worker in lossy.ranks)
    assert lost > 10
    assert lossy.now - clear.now < 30 * MILLISECOND


# -- predictions --


def repeated(dtype: str, numel: int, times: int, slots: int, at_once: bool) -> Network:
    """The same tensors all-reduced several times by three ranks."""
    chooser = random.Random(f"{dtype} {numel}")
    columns = [values(dtype, numel, chooser, False) for _ in range(3)]
    ranks = [[Call(dtype, 1, x, np.zeros_like(x)) for _ in range(times)] for x in columns]
    network = Network(ranks, slots=slots, windows=[slots] * 3, at_once=[at_once] * 3).run(limit=SECOND)
    check(ranks)
    return network


@pytest.mark.slow(keep=6)
@pytest.mark.parametrize("dtype", [dtype for dtype in numbers.DENSE if dtype not in numbers.DIGITS])
@pytest.mark.parametrize("numel", [1, 50, 1000])
@pytest.mark.parametrize("at_once", [False, True])
def test_the_second_all_reduce_of_a_shape_needs_no_repeats(dtype, numel, at_once):
    first, both = (repeated(dtype, numel, times, 16, at_once) for times in (1, 2))
    if not at_once:
        for one, two in zip(first.ranks, both.ranks, strict=True):
            assert two.counters["repeats"] == one.counters["repeats"]
            assert two.counters["sent"] == one.counters["sent"] + one.queues[0]["total"]
    assert all(worker.counters["repeats"] <= 16 for worker in both.ranks)


def test_only_the_first_window_is_guessed():
    """Chunks from the second window on know their exponent from the round before, without any history."""
    chooser = random.Random(1)
    ranks = [
        [Call("float32", 1, x, np.zeros_like(x))]
        for x in (values("float32", 100 * LANES, chooser, False) * np.float32(10.0**r) for r in range(3))
    ]
    network = Network(ranks, slots=8, windows=[8] * 3, histories=False).run(limit=SECOND)
    check(ranks)
    assert all(0 < worker.counters["repeats"] <= 8 for worker in network.ranks)


def test_a_tensor_of_up_to_s_chunks_with_history_costs_one_packet_a_chunk():
    network = repeated("float32", 16 * LANES, 4, 16, at_once=False)
    assert all(worker.counters["sent"] == 4 * 16 + worker.counters["repeats"] for worker in network.ranks)
    # Results go round once for each all-reduce, and once more for the first one's guesses.
    assert network.now <= (4 + 1) * 2 * (PATH + PATH // 5)


@pytest.mark.parametrize("dtype", numbers.DIGITS)
def test_integers_have_a_round_for_each_digit_that_their_sums_need(dtype):
    """Three ranks' sums fit an int32 lane while all values are within 2^29; a single one beyond costs its chunk all
    digits. The first chunk of each slot is guessed to fit."""
    digits, chunks = numbers.DIGITS[dtype][0], 40
    for beyond, repeats in ((0, 0), (2**29 - 1, 0), (-(2**29), 0), (2**29, 1 + digits - 1), (-(2**29) - 1, digits)):
        ranks = [
            [Call(dtype, 3, x, np.zeros_like(x))] for x in np.arange(3 * chunks * LANES, dtype=dtype).reshape(3, -1)
        ]
        ranks[1][0].source[3 * LANES + 7] = beyond  # of the fourth chunk
        network = Network(ranks, slots=16, windows=[16] * 3).run(limit=SECOND)
        check(ranks)
        assert all(worker.counters["repeats"] == repeats for worker in network.ranks)
        ranks = [[Call(dtype, 1, x, np.zeros_like(x))] for x in np.full((3, chunks * LANES), beyond, dtype)]
        network = Network(ranks, slots=16, windows=[16] * 3).run(limit=SECOND)
        check(ranks)
        expected = (digits - 1) * chunks + 16 if repeats else 0
        assert all(worker.counters["repeats"] == expected for worker in network.ranks)


def test_values_that_change_their_magnitude_cost_a_repeat_and_no_bit():
    """The guess is what it was last time: too large, too small, or not finite at all."""
    ranks = [[], [], []]
    for scale in (1.0, 2.0**20, 2.0**-20, 0.0, math.nan, 1.0, 1.0):
        for r, calls in enumerate(ranks):
            x = (np.linspace(1, 1.9, 100) * scale * (r + 1)).astype(np.float32)
            calls.append(Call("float32", 3, x, np.zeros_like(x)))
    network = Network(ranks, slots=4, windows=[4] * 3, at_once=[False] * 3).run(limit=SECOND)
    check(ranks)
    # Two chunks; four wrong guesses, classify and exact for NaN, one wrong guess after it, a right one at last.
    assert all(worker.counters["repeats"] == 2 * (4 + 2 + 1 + 0) for worker in network.ranks)


# -- ranks that disagree --


# A job has one kind of narrow lanes, so its ranks can't mix two.
PAIRS = [(a, b) for a in numbers.DENSE for b in numbers.DENSE if a < b and not (numbers.wire(a) and numbers.wire(b))]


@pytest.mark.parametrize("spread", ["zeros", "ones", "threes", "wide", "nan"])
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize("chunks", [1, 5])
def test_different_dtypes_are_an_error_on_every_rank(pair, spread, chunks):
    """Whatever the values are: no sum of a float's and an integer's lanes looks like a result, and nobody hangs."""
    ranks = []
    for dtype in (pair[0], pair[1], pair[0]):
        numel = chunks * numbers.per_chunk(dtype, PAYLOAD)
        fill = {"zeros": [0], "ones": [1], "threes": [3], "wide": [2**30, 1, 0], "nan": [math.nan, 1]}[spread]
        if dtype.startswith("int"):
            fill = [x for x in fill if x == x]
        x = np.resize(fill, numel).astype(numbers.element(dtype))
        ranks.append([Call(dtype, 1, x, np.zeros_like(x))])
    network = Network(ranks, slots=4, windows=[4] * 3, seed=1, start_spread=MILLISECOND).run(limit=10 * SECOND)
    assert [int(worker.failure["code"]) for worker in network.ranks] == [rules.ERROR_MIXED] * 3
    assert len({int(worker.failure["chunk"]) for worker in network.ranks}) == 1


@pytest.mark.parametrize("loss", [0.0, 0.2])
def test_a_different_dtype_after_equal_ones_is_an_error_on_every_rank(loss):
    """The exponents of the differing chunks were agreed ahead, with neither rank knowing better."""
    ranks = [[], []]
    for dtypes in (("float32", "float32"), ("float32", "float64")):
        for calls, dtype in zip(ranks, dtypes, strict=True):
            x = np.full(4 * numbers.per_chunk(dtype, PAYLOAD), 3, dtype)
            calls.append(Call(dtype, 1, x, np.zeros_like(x)))
    network = Network(ranks, slots=4, windows=[4, 4], weather=Weather(loss=loss), seed=3).run(limit=10 * SECOND)
    assert [int(worker.failure["code"]) for worker in network.ranks] == [rules.ERROR_MIXED] * 2
    assert all(worker.failure["chunk"] >= 4 for worker in network.ranks)
    assert all(set(calls[0].target.tolist()) <= {0, 6} for calls in ranks)
