"""Ranks and an aggregator over a network that loses, doubles, delays and reorders packets, in virtual time.

`Network` is a queue of events; nobody sleeps. With it the tensors that tests send, and what exact arithmetic makes of
them (`check`).
"""

import heapq
import math
import random
import struct
from dataclasses import dataclass

import numpy as np

from switchml.counters import COMPLETED
from switchml.protocol import worker_state as rules
from switchml.protocol.collectives import Collective
from switchml.protocol.packet import for_rank
from switchml.protocol.pool import Pool
from switchml.protocol.retransmission import MICROSECOND, MILLISECOND, SECOND
from switchml.protocol.sparse import Sparse
from switchml.protocol.worker import Worker
from tests.support import reference_fixedpoint as numbers

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

    `histories`: remember exponents per (dtype, size), as the agent does. `large`: bytes of data in large packets.
    """

    def __init__(
        self, calls: list[list[Call]], *, slots: int, windows: list[int], isn: int = 0, weather: Weather = CLEAR,
        seed: int = 0, at_once: list[bool] | None = None, histories: bool = True, start_spread: int = 0,
        collectives: bool = False, large: int = 0,
    ):  # fmt: skip
        n = len(calls)
        self.chooser, self.weather, self.calls, self.isn, self.slots = random.Random(seed), weather, calls, isn, slots
        wire = max(0 if call.dtype == "raw" else numbers.wire(call.dtype) for column in calls for call in column)
        self.sizes = sizes = {"payload_bytes": PAYLOAD, "large_bytes": large}
        self.pool = Pool(workers=n, slots=slots, **sizes, wire=wire, job_tag=TAG, isn=isn, halves=True)
        self.ranks = [
            Worker(
                rank=r, workers=n, slots=slots, job_tag=TAG, isn=isn, window=windows[r], two_queues=collectives, **sizes
            )
            for r in range(n)
        ]
        self.blocks = slots * max(large // PAYLOAD, 1)
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
                history = self.histories[rank].setdefault(key, np.full(self.blocks, -128, np.int8))
            call.number = worker.start(
                call.source.ctypes.data, call.target.ctypes.data, call.source.size if call.numel < 0 else call.numel,
                call.dtype, call.divisor, history, call.blocks, call.collective,
            )  # fmt: skip
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
            ">BbIHbb", self.chooser.choice([0xC1, 0xC9, 0xC1, 0x81, 0xD1]), self.chooser.randint(-128, 127), seq, TAG,
            self.chooser.randint(-128, 127), self.chooser.randint(0, 3),
        )  # fmt: skip
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
