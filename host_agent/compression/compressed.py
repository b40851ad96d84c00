"""Compressed all-reduces: runs the exchanges of switchml/codecs over any transport that can sum and gather.

`Compressor` holds the codec, the error feedback and their states per tensor. A `Reducer` answers the requests of an
exchange: `AgentReducer` with a HostAgent alone; the one over torch.distributed is in comm_hooks.py. An exchange
consists of several consecutive collectives, and every rank must run the same ones in the same order, so a call here is
synchronous.
"""

import contextlib
import copy
import hashlib
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from filelock import FileLock

from switchml import codecs
from switchml.codecs import HALVES, Codec, ErrorFeedback, Gather, Max, Payload, Request, SparseSum, StepContext, Sum
from switchml.codecs.exchange import AsyncMax, StepGuard
from switchml.errors import ConfigError, RanksDisagree
from switchml.protocol.sizes import LINE_OVERHEAD_BYTES, PAYLOAD_BYTES
from switchml.protocol.sparse import Sparse, streams_of
from switchml.runtime.cache import cache_root

Array = np.ndarray
T = TypeVar("T")
WARM_UP_ELEMENTS = 1 << 12


class Answerer(Protocol):
    """Protocol of objects that answer an exchange's requests (switchml/codecs/base.py)."""

    rank: int
    world: int

    def reduce(self, request: Request, context: StepContext) -> Any: ...


class Reducer(Answerer, Protocol):
    """An Answerer that communicates with the other ranks. `bytes` counts the bytes that this rank has sent."""

    bytes: int

    def wire_bytes(self, request: Request) -> int:
        """Bytes of a request on the busier direction of this rank's link, without packet headers."""
        ...

    def later(self, request: Max, context: StepContext) -> Callable[[], Array]:
        """Start a request and return a callable that waits for its answer. All ranks must start it at the same position
        in the order of their requests."""
        ...


def round_trips(request: Request) -> int:
    """Number of consecutive collectives in a request: a gather exchanges sizes first, unless they are known."""
    asks_first = isinstance(request, Gather) or (isinstance(request, SparseSum) and not request.is_sized)
    return 2 if asks_first else 1


def context_of(reducer: Answerer, name: str, **rest: Any) -> StepContext:
    """Context of a call on the reducer's rank; `rest` are further fields."""
    return StepContext(name, rank=reducer.rank, world=reducer.world, **rest)


class RankCompressor:
    """Common base of compressors: one rank's reducer, error feedback and seed, which must be the same on every rank."""

    by_matrix = False

    def __init__(self, reducer: Reducer, error_feedback: ErrorFeedback, seed: int):
        self.reducer, self.error_feedback, self.seed = reducer, error_feedback, seed
        self.lr = 1.0
        """Learning rate of the step, for error feedback that depends on it; set by the caller when it changes."""
        self._agreed = False
        self.guards: list[StepGuard] | None = None
        """Those of the tensors of a step in progress, for `roll_back` at its end; None if each tensor is a step of its
        own."""

    def _agree(self, codec: str) -> None:
        """In the first call, check that all ranks have the same codec; raises RanksDisagree on every rank otherwise."""
        if not self._agreed:
            agree(self.reducer, f"codec {codec}, memory {self.error_feedback}, seed {self.seed}")
            self._agreed = True


class Compressor(RankCompressor):
    """One rank's compressed all-reduces with one codec and one error feedback.

    `codec`, `memory`: texts as in docs/codecs.md ("topk:ratio=0.01"); `memory` None for the one that the codec's paper
    trains with. Raises ConfigError for unknown codecs or settings. All ranks must pass the same, which the first call
    checks: RanksDisagree names the ranks that differ.
    """

    def __init__(
        self, reducer: Reducer, codec: str | Codec, memory: str | ErrorFeedback | None = None, *, seed: int = 0
    ):
        self.codec = codecs.parse(codec) if isinstance(codec, str) else codec
        self.by_matrix = self.codec.by_matrix
        memory = self.codec.error_feedback if memory is None else memory
        super().__init__(reducer, codecs.parse_error_feedback(memory) if isinstance(memory, str) else memory, seed)
        warm_up([self.codec], reducer)
        self._states: dict[tuple[str, int], tuple[Any, Any]] = {}
        self._steps: dict[tuple[str, int], int] = {}

    def allreduce(self, name: str, x: Array, shape: tuple[int, ...] | None = None) -> Array:
        """Mean of `x`, float32[n], over the ranks, after compression; identical bits on every rank.

        `name` and n select the state of codec and error feedback; `shape` is the tensor's original shape, if any.
        """
        self._agree(str(self.codec))
        key = (name, x.size)
        if key not in self._states:
            self._states[key] = self.codec.new_state(), self.error_feedback.new_state()
        codec_state, feedback_state = self._states[key]
        step = self._steps[key] = self._steps.get(key, -1) + 1
        context = context_of(self.reducer, name, step=step, seed=self.seed, lr=self.lr, shape=shape)
        states = codec_state, feedback_state
        exchange = codecs.allreduce(self.codec, self.error_feedback, *states, x, context, self.guards)
        return drive(exchange, self.reducer, context)

    def state_dict(self) -> dict[str, Any]:
        """State of error feedback and codec, and number of steps, per tensor: plain values and arrays."""
        tensors = {
            key: {"step": self._steps[key], "codec": _values(of_codec), "memory": _values(of_feedback)}
            for key, (of_codec, of_feedback) in self._states.items()
        }
        return {"codec": str(self.codec), "memory": str(self.error_feedback), "seed": self.seed, "tensors": tensors}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the result of `state_dict`. Raises ConfigError if it is of another codec, error feedback or
        seed."""
        mine = {"codec": str(self.codec), "memory": str(self.error_feedback), "seed": self.seed}
        for name, value in mine.items():
            if state_dict.get(name) != value:
                raise ConfigError(
                    f"state_dict: {name} is {state_dict.get(name)!r}; expected {value!r}, as in this object"
                )
        states, steps = {}, {}
        for key, saved in state_dict["tensors"].items():
            states[key] = self.codec.new_state(), self.error_feedback.new_state()
            for state, name in zip(states[key], ("codec", "memory"), strict=True):
                if state is not None:
                    vars(state).update(copy.deepcopy(saved[name]))
            steps[key] = int(saved["step"])
        self._states, self._steps = states, steps


def _values(state: Any) -> dict[str, Any]:
    """Copies of a state's fields."""
    return {} if state is None else copy.deepcopy(vars(state))


def drive(exchange: Generator[Request | AsyncMax, Any, T], answerer: Answerer, context: StepContext) -> T:
    """Answer an exchange's requests until it returns, and return its result. Only a `Reducer` can answer `AsyncMax`."""
    answer = None
    while True:
        try:
            request = exchange.send(answer)
        except StopIteration as stop:
            return cast(T, stop.value)
        if isinstance(request, AsyncMax):
            answer = cast(Reducer, answerer).later(request.request, context)
        else:
            answer = answerer.reduce(request, context)


def agree(reducer: Reducer, what: str) -> None:
    """Check that all ranks pass the same text; raises RanksDisagree on every rank otherwise."""
    digest = int.from_bytes(hashlib.blake2b(what.encode(), digest_size=4).digest(), "little")
    places = np.zeros(reducer.world, np.int32)
    places.view(np.uint32)[reducer.rank] = digest
    digests = reducer.reduce(Sum(places, "int32"), context_of(reducer, "agree"))
    others = [rank for rank in range(reducer.world) if digests[rank] != digests[reducer.rank]]
    if others:
        raise RanksDisagree(f"rank {reducer.rank} has {what}, but ranks {others} have something else: all must agree")


# Integers in int32 lanes


def lanes_of(values: Array) -> Array:
    """Pack int8[n] or int16[n] into int32 lanes of four or two values each, so that sums of lanes are the lanes of the
    sums.

    A lane is v0 + v1 * 2^b + …, in ordinary signed arithmetic, so that a negative field borrows from the next one,
    which `values_of` reverses. Valid while every sum, except for the minimum integer, fits its field.
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
    """Unpack the values of `lanes_of`, after any number of additions: `dtype`[n]."""
    per, bits = 4 // dtype.itemsize, 8 * dtype.itemsize
    fields = np.empty((lanes.size, per), dtype)
    rest = lanes.astype(np.int64)
    for column in range(per):
        fields[:, column] = low = rest.astype(dtype)  # keeps the low bits: two's complement
        rest = (rest - low) >> bits
    return fields.reshape(-1)[:n]


# Sparse vectors: gathered, streamed, or summed as dense ones

STREAM_BLOCK = 32
"""Elements of a block in which selected elements are sent: a packet of 1024 bytes holds eight fused blocks."""
GATHER_BLOCK = 256
"""Words of a block in which gathered bytes are sent: a packet of 1024 bytes."""
MIN_GATHER_BLOCKS = 64
"""Minimum number of blocks for a sparse stream: fewer take one round trip as a dense tensor, and two as a stream."""
ASK_EVERY = 16
"""Number of sums of equally sized sparse vectors after which the ranks choose the route anew."""
PACKET_ELEMENTS = PAYLOAD_BYTES // 4
WORDS_BYTES = 32
"""Bytes of index words in a packet of eight blocks."""


def packets_of(indices: Array) -> int:
    """Number of packets of a dense tensor that contain some of `indices` (ascending)."""
    return int(np.count_nonzero(np.diff(indices // PACKET_ELEMENTS))) + 1 if indices.size else 0


def streamed_bytes(packets: Array, count: int) -> float:
    """Bytes that each rank receives if the ranks stream `packets` (one number per rank) of the packets that `count`
    elements fill: the union of independent selections, and a first round in each stream. Correlated selections result
    in less."""
    whole = max(1, -(-count // PACKET_ELEMENTS))
    union = whole * (1.0 - np.prod(1.0 - np.asarray(packets, np.float64) / whole))
    rounds = union + streams_of(whole, whole)
    return float(union * PAYLOAD_BYTES + rounds * (LINE_OVERHEAD_BYTES + WORDS_BYTES))


def framed_bytes(size: float) -> float:
    """Bytes on the line for `size` payload bytes in full packets."""
    return size * (1.0 + LINE_OVERHEAD_BYTES / PAYLOAD_BYTES)


def route_of(gathered: float, packets: Array, count: int, takes_sparse: bool) -> str:
    """Route for a sum of sparse vectors with the fewest bytes on the busier direction of a link: "gather" (`gathered`
    bytes), "stream" or "dense". Depends only on numbers that are equal on all ranks."""
    costs = {"gather": framed_bytes(gathered), "dense": framed_bytes(4 * count)}
    if takes_sparse:
        costs["stream"] = streamed_bytes(packets, count)
    return min(costs, key=costs.__getitem__)


def share_numbers(add: Callable[[Array], Array], rank: int, world: int, *numbers: int) -> Array:
    """Gather the `numbers` of all ranks as int32[world, k], by summing a vector in which each rank fills its
    own row."""
    places = np.zeros((world, len(numbers)), np.int32)
    places[rank] = numbers
    return add(places.reshape(-1)).reshape(world, -1)


def gather_by_sum(
    payload: Payload, add: Callable[[Array], Array], rank: int, world: int, sizes: Array | None = None
) -> list[Payload]:
    """Gather all ranks' payloads in rank order, with integer sums only.

    1. Sum a vector in which every rank fills in its size at its own index, unless `sizes` (int32[world]) are known.
    2. Sum a vector in which every rank fills in its bytes in its own row; all rows are as long as the largest payload.

    `add`: int32[m] to int32[m] summed over the ranks.
    """
    raw = np.frombuffer(payload.to_bytes(), np.uint8)
    if sizes is None:
        sizes = share_numbers(add, rank, world, raw.size)[:, 0]
    places = np.zeros((world, -(-int(sizes.max()) // 4)), np.int32)
    places[rank].view(np.uint8)[: raw.size] = raw
    places = add(places.reshape(-1)).reshape(world, -1)
    return [Payload.from_bytes(places[each].view(np.uint8)[: sizes[each]]) for each in range(world)]


def sum_of_payloads(payloads: list[Payload]) -> Array:
    """Sum of the decoded payloads of one sparsifying codec, in rank order: float32[n]."""
    codec = codecs.by_number(payloads[0].number)
    assert codec is not None
    decoder, n = codec(), payloads[0].count
    total = np.zeros(n, np.float32)
    for payload in payloads:
        total += decoder.decompress(payload, n)
    return total


class SummingAgent(Protocol):
    """The part of an agent (host_agent/base.py) that `AgentReducer` uses."""

    rank: int
    world_size: int
    wire: str
    takes_sparse: bool
    sums_halves: bool

    def allreduce(self, x: Any, *, async_op: bool = ..., sparse: Any = ..., wire: str | None = ...) -> Any: ...

    def allreduce_as(self, dtype: str, x: Array) -> Array: ...


class AgentReducer:
    """A Reducer over an agent; does not need torch.

    For a sparse stream, `bytes` counts the packets to which this rank contributes, and the index words of every packet
    to which any rank contributes."""

    def __init__(self, agent: SummingAgent):
        self._agent = agent
        self._takes_sparse = agent.takes_sparse
        self._routes: dict[tuple[str, int], tuple[int, str, int]] = {}
        self.rank, self.world, self.bytes = agent.rank, agent.world_size, 0

    def reduce(self, request: Request, context: StepContext) -> Any:
        if isinstance(request, Sum):
            return self._sum(request)
        if isinstance(request, Max):
            return codecs.max_of_sum(self._sum(codecs.max_as_sum(request, context)), context)
        if isinstance(request, Gather):
            return gather_by_sum(request.payload, self._add_places, self.rank, self.world)
        assert isinstance(request, SparseSum)
        route, sizes = self.route(request, context, lambda largest: self.world * 4 * -(-largest // 4))
        if route != "gather":
            return self.add_sparse(request, route)
        return sum_of_payloads(gather_by_sum(request.payload, self._add_places, self.rank, self.world, sizes=sizes))

    def later(self, request: Max, context: StepContext) -> Callable[[], Array]:
        places = codecs.max_as_sum(request, context).values
        self.bytes += places.nbytes
        handle = self._agent.allreduce(places, wire="int32", async_op=True)
        return lambda: codecs.max_of_sum(handle.wait(), context)

    def route(self, request: SparseSum, context: StepContext, gathered: Callable[[int], float]) -> tuple[str, Array]:
        """Choose the route from numbers that all ranks share; returns it with the bytes of each rank's payload,
        int32[world].

        `gathered`: bytes on a link as a function of the largest payload, if gathered. The ranks exchange the bytes of
        their payloads and the packets of their streams; where the bytes are known, the last exchange remains valid for
        `ASK_EVERY` sums of the name, which saves the round trip.
        """
        key, nbytes = (context.name, request.count), request.payload.nbytes
        known_bytes, route, left = self._routes.get(key, (-1, "", 0))
        if request.is_sized and known_bytes == nbytes and left:
            self._routes[key] = nbytes, route, left - 1
            return route, np.full(self.world, nbytes, np.int32)
        numbers = share_numbers(self._add, self.rank, self.world, nbytes, packets_of(request.indices))
        sizes = numbers[:, 0]
        route = route_of(gathered(int(sizes.max())), numbers[:, 1], request.count, self._takes_sparse)
        if request.is_sized:
            self._routes[key] = nbytes, route, ASK_EVERY - 1
        return route, sizes

    def add_sparse(self, request: SparseSum, route: str) -> Array:
        """Sum through the aggregator: as a "stream" of the blocks that are non-zero on some rank, or "dense"."""
        dense = np.zeros(request.count, np.float32)
        dense[request.indices] = request.values
        return self._add(dense, block=STREAM_BLOCK if route == "stream" else 0)

    def wire_bytes(self, request: Request) -> int:
        if isinstance(request, Sum):
            return request.values.size * (2 if self._is_halved(request) else request.values.itemsize)
        if isinstance(request, Max):
            return 4 * self.world * request.values.size
        gathered = self.world * (4 + -(-request.payload.nbytes // 4) * 4)
        if isinstance(request, Gather):
            return gathered
        return int(min(gathered, self.summed_bytes(request)))

    def summed_bytes(self, request: SparseSum) -> float:
        """Wire bytes of a sum of sparse vectors that is not gathered, assuming that all ranks send as much as
        this one."""
        dense = 4.0 * request.count
        packets = np.full(self.world, packets_of(request.indices))
        return min(dense, streamed_bytes(packets, request.count)) if self._takes_sparse else dense

    def _is_halved(self, request: Sum) -> bool:
        return request.wire in HALVES and (self._agent.sums_halves or self._agent.wire == "int16")

    def _sum(self, request: Sum) -> Array:
        values = request.values
        if values.dtype in (np.int8, np.int16):
            return values_of(self._add(lanes_of(values)), values.dtype, values.size)
        if request.wire in HALVES and self._agent.sums_halves:
            self.bytes += 2 * values.size
            return self._agent.allreduce_as(request.wire, values)
        return self._add(values, "int16" if self._is_halved(request) else "int32")

    def _add(self, values: Array, wire: str = "int32", block: int = 0) -> Array:
        """Sum over the ranks. `block`: block size of a sparse stream, or 0 for a dense sum."""
        if not block:
            self.bytes += values.size * (2 if wire == "int16" else values.itemsize)
            dense: Array = self._agent.allreduce(values, wire=wire)
            return dense
        total: Array = self._agent.allreduce(values, wire=wire, sparse=Sparse(block))
        own, union = _used_blocks(values, PACKET_ELEMENTS), _used_blocks(total, PACKET_ELEMENTS)
        words = WORDS_BYTES if block == STREAM_BLOCK else 4
        self.bytes += own * PACKET_ELEMENTS * values.itemsize + union * words
        return total

    def _add_places(self, places: Array) -> Array:
        """Sum of vectors that are mostly zeros, in the parts of other ranks."""
        is_worth_it = self._takes_sparse and places.size >= MIN_GATHER_BLOCKS * GATHER_BLOCK
        return self._add(places, block=GATHER_BLOCK if is_worth_it else 0)


def _used_blocks(values: Array, block: int) -> int:
    """Number of non-zero blocks of `values`."""
    return int(np.count_nonzero(np.add.reduceat(values != 0, np.arange(0, values.size, block))))


# Reducers that measure, and that need no network


@dataclass
class Meter:
    """A Reducer that counts and times requests and forwards them to `inner`."""

    inner: Reducer
    counts: bool = True
    requests: int = 0
    wire_bytes: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.rank, self.world = self.inner.rank, self.inner.world

    def reduce(self, request: Request, context: StepContext) -> Any:
        if self.counts:
            self.requests += round_trips(request)
            self.wire_bytes += self.inner.wire_bytes(request)
        start = time.perf_counter()
        answer = self._answer(request, context)
        self.seconds += time.perf_counter() - start
        return answer

    def _answer(self, request: Request, context: StepContext) -> Any:
        return self.inner.reduce(request, context)


class Echo(Meter):
    """A Meter that answers at once as if every rank had sent the same as this one, with the same amount of
    computation."""

    def _answer(self, request: Request, context: StepContext) -> Any:
        if isinstance(request, Sum):
            return request.values * request.values.dtype.type(self.world)
        if isinstance(request, Max):
            return request.values
        if isinstance(request, Gather):
            return [request.payload] * self.world
        assert isinstance(request, SparseSum)
        return sum_of_payloads([request.payload] * self.world)


def warm_up(chosen: Iterable[Codec], reducer: Reducer) -> None:
    """Compile the kernels of these codecs: one process of the machine compiles them, the others load them from disk
    (seconds per codec the first time on a machine). So the first step, and its measurements, are like all others."""
    x = np.linspace(-1, 1, WARM_UP_ELEMENTS, dtype=np.float32)
    context = context_of(reducer, "warm-up", shape=(x.size // 64, 64))
    folder = cache_root()
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # without write access to the cache, each process compiles for itself
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(folder / "codecs.lock"))
        for codec in chosen:
            drive(codec.exchange(codec.new_state(), x, context), Echo(reducer), context)
