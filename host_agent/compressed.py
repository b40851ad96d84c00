"""Compressed all-reduces: drives the exchanges of switchml/codecs over whatever can sum and gather.

`Compressor` keeps codec, memory and their states by tensor. A `Reducer` answers what an exchange asks for:
`AgentReducer` with a HostAgent alone; the one over torch.distributed is in comm_hooks.py. An exchange is several
collectives one after the other, and every rank must run the same ones in the same order, so a call here waits until it
is done.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from filelock import FileLock

from switchml import codecs
from switchml.codecs import Codec, Gather, Max, Memory, Payload, Request, SparseSum, Sum, Turn
from switchml.errors import RanksDisagree
from switchml.jit import cache_root

Array = np.ndarray
WARM_UP_ELEMENTS = 1 << 12


class Reducer(Protocol):
    """What can answer an exchange's requests (switchml/codecs/base.py). `bytes` counts what this rank sent so far."""

    rank: int
    world: int
    bytes: int

    def reduce(self, request: Request, turn: Turn) -> Any: ...

    def wire_bytes(self, request: Request) -> int:
        """What a request puts on the busier direction of this rank's link, headers of packets left out."""
        ...


class Compressor:
    """One rank's compressed all-reduces with one codec and one memory.

    `codec`, `memory`: texts as in docs/codecs.md ("topk:ratio=0.01"); `memory` None for the one that the codec's paper
    trains with. Raises ConfigError for texts that name nothing. All ranks must pass the same, which the first call
    checks: RanksDisagree names who differs.
    """

    def __init__(self, reducer: Reducer, codec: str | Codec, memory: str | Memory | None = None, *, seed: int = 0):
        self.reducer, self.seed = reducer, seed
        self.lr = 1.0
        """The step's learning rate, for memories that ask for it; the caller's to set where it changes."""
        self.codec = codecs.parse(codec) if isinstance(codec, str) else codec
        memory = self.codec.memory if memory is None else memory
        self.memory = codecs.parse_memory(memory) if isinstance(memory, str) else memory
        warm_up([self.codec], reducer)
        self._states: dict[tuple[str, int], tuple[Any, Any]] = {}
        self._steps: dict[tuple[str, int], int] = {}
        self._agreed = False

    @property
    def by_matrix(self) -> bool:
        return self.codec.by_matrix

    def allreduce(self, name: str, x: Array, shape: tuple[int, ...] | None = None) -> Array:
        """The mean over the ranks of `x`, float32[n], as the codec sees it; the same bits on every rank.

        `name` says whose state it is, together with n; `shape` is the tensor's own, where it has one.
        """
        if not self._agreed:
            agree(self.reducer, f"codec {self.codec}, memory {self.memory}, seed {self.seed}")
            self._agreed = True
        key = (name, x.size)
        if key not in self._states:
            self._states[key] = self.codec.new_state(), self.memory.new_state()
        codec_state, memory_state = self._states[key]
        step = self._steps[key] = self._steps.get(key, -1) + 1
        turn = Turn(
            name=name,
            step=step,
            seed=self.seed,
            rank=self.reducer.rank,
            world=self.reducer.world,
            lr=self.lr,
            shape=shape,
        )
        exchange = codecs.allreduce(self.codec, self.memory, codec_state, memory_state, x, turn)
        return drive(exchange, self.reducer, turn)


def drive(exchange, reducer: Reducer, turn: Turn):
    """Answer an exchange until it returns, and return that."""
    answer = None
    while True:
        try:
            request = exchange.send(answer)
        except StopIteration as stop:
            return stop.value
        answer = reducer.reduce(request, turn)


def agree(reducer: Reducer, what: str) -> None:
    """Raises RanksDisagree, on every rank, unless all ranks say the same text."""
    digest = int.from_bytes(hashlib.blake2b(what.encode(), digest_size=4).digest(), "little")
    places = np.zeros(reducer.world, np.int32)
    places.view(np.uint32)[reducer.rank] = digest
    told = reducer.reduce(Sum(places, "int32"), Turn("agree", rank=reducer.rank, world=reducer.world))
    others = [rank for rank in range(reducer.world) if told[rank] != told[reducer.rank]]
    if others:
        raise RanksDisagree(f"rank {reducer.rank} has {what}, but ranks {others} have something else: all must agree")


# Integers in int32 lanes


def lanes_of(values: Array) -> Array:
    """int8[n] or int16[n] as int32 lanes that hold four or two of them each: sums of lanes are the lanes of the sums.

    A lane is v0 + v1 * 2^b + …, in ordinary signed arithmetic, so that a field that goes below zero borrows from the
    next one, and `values_of` pays back. Sound while every sum, but for the least number, fits the fields.
    """
    per = 4 // values.itemsize
    padded = np.zeros(-(-values.size // per) * per, values.dtype)
    padded[: values.size] = values
    fields = padded.reshape(-1, per).astype(np.int32)
    lanes = fields[:, -1].copy()
    for column in range(per - 2, -1, -1):
        lanes = (lanes << (8 * values.itemsize)) + fields[:, column]
    return lanes


def values_of(lanes: Array, dtype: np.dtype, n: int) -> Array:
    """What `lanes_of` packed, after any number of additions: `dtype`[n]."""
    per, bits = 4 // dtype.itemsize, 8 * dtype.itemsize
    fields = np.empty((lanes.size, per), dtype)
    rest = lanes.astype(np.int64)
    for column in range(per):
        fields[:, column] = low = rest.astype(dtype)  # keeps the low bits: two's complement
        rest = (rest - low) >> bits
    return fields.reshape(-1)[:n]


# Gathering by adding


def gather_by_sum(
    payload: Payload, add: Callable[[Array], Array], rank: int, world: int, most_bytes: float = math.inf
) -> list[Payload] | None:
    """All ranks' payloads, in the order of the ranks, with nothing but integer sums.

    1. Add a vector in which every rank has put its size at its own place. 2. Unless that makes more than `most_bytes`
    (then None, on every rank): add one in which every rank has put its bytes at its own place, all places as large as
    the largest. `add`: int32[m] to int32[m] summed over the ranks.
    """
    raw = np.frombuffer(payload.to_bytes(), np.uint8)
    sizes = np.zeros(world, np.int32)
    sizes[rank] = raw.size
    sizes = add(sizes)
    words = -(-int(sizes.max()) // 4)
    if 4 * words * world > most_bytes:
        return None
    places = np.zeros((world, words), np.int32)
    places[rank].view(np.uint8)[: raw.size] = raw
    places = add(places.reshape(-1)).reshape(world, words)
    return [Payload.from_bytes(places[each].view(np.uint8)[: sizes[each]]) for each in range(world)]


def sum_of_payloads(payloads: list[Payload]) -> Array:
    """float32[n]: what payloads of one sparsifying codec decode to, added in the order of the ranks."""
    codec = codecs.by_number(payloads[0].number)
    assert codec is not None
    decoder, n = codec(), payloads[0].count
    total = np.zeros(n, np.float32)
    for payload in payloads:
        total += decoder.decompress(payload, n)
    return total


class AgentReducer:
    """A Reducer over a HostAgent (or what has its `allreduce`, `rank` and `world_size`); needs no torch."""

    def __init__(self, agent):
        self._agent = agent
        self.rank, self.world, self.bytes = agent.rank, agent.world_size, 0

    def reduce(self, request: Request, turn: Turn) -> Any:
        if isinstance(request, Sum):
            return self._sum(request)
        if isinstance(request, Max):
            return codecs.max_of_sum(self._sum(codecs.max_as_sum(request, turn)), turn)
        if isinstance(request, Gather):
            return gather_by_sum(request.payload, self._add, self.rank, self.world)
        assert isinstance(request, SparseSum)
        payloads = gather_by_sum(request.payload, self._add, self.rank, self.world, most_bytes=4 * request.count)
        if payloads is not None:
            return sum_of_payloads(payloads)
        dense = np.zeros(request.count, np.float32)
        dense[request.indices] = request.values
        return self._add(dense)

    def wire_bytes(self, request: Request) -> int:
        if isinstance(request, Sum):
            return request.values.size * (2 if self._is_halved(request) else request.values.itemsize)
        if isinstance(request, Max):
            return 4 * self.world * request.values.size
        gathered = self.world * (4 + -(-request.payload.nbytes // 4) * 4)
        return gathered if isinstance(request, Gather) else min(gathered, 4 * (self.world + request.count))

    def _is_halved(self, request: Sum) -> bool:
        return request.wire in ("float16", "bfloat16") and self._agent.wire == "int16"

    def _sum(self, request: Sum) -> Array:
        values = request.values
        if values.dtype in (np.int8, np.int16):
            return values_of(self._add(lanes_of(values)), values.dtype, values.size)
        return self._add(values, "int16" if self._is_halved(request) else "int32")

    def _add(self, values: Array, wire: str = "int32") -> Array:
        self.bytes += values.size * (2 if wire == "int16" else values.itemsize)
        return self._agent.allreduce(values, wire=wire)


# Without a network


@dataclass
class Echo:
    """A Reducer that answers at once as if every rank had sent what this one does, with the work that this takes."""

    inner: Reducer
    requests: int = 0
    wire_bytes: int = 0

    def __post_init__(self) -> None:
        self.rank, self.world = self.inner.rank, self.inner.world

    def reduce(self, request: Request, turn: Turn) -> Any:
        self.requests += 1
        self.wire_bytes += self.inner.wire_bytes(request)
        if isinstance(request, Sum):
            return request.values * request.values.dtype.type(self.world)
        if isinstance(request, Max):
            return request.values
        if isinstance(request, Gather):
            return [request.payload] * self.world
        assert isinstance(request, SparseSum)
        return sum_of_payloads([request.payload] * self.world)


def warm_up(chosen: Iterable[Codec], reducer: Reducer) -> None:
    """Have all that these codecs run compiled: by one process of the machine, loaded from disk by the others (seconds a
    codec the first time on a machine). So the first step measures, and lasts, what all others do."""
    x = np.linspace(-1, 1, WARM_UP_ELEMENTS, dtype=np.float32)
    turn = Turn("warm-up", rank=reducer.rank, world=reducer.world, shape=(x.size // 64, 64))
    folder = cache_root()
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "codecs.lock"):
        for codec in chosen:
            drive(codec.exchange(codec.new_state(), x, turn), Echo(reducer), turn)
