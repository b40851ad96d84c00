"""The interface of codecs and error feedback: settings (a frozen dataclass), a state a tensor, and pure functions.

A codec turns a float32 vector into a `Payload` and back (`compress`, `decompress`), and defines how the vectors of
several ranks become their mean (`exchange`). An exchange is a generator: it yields what the ranks must reduce together
(`Sum`, `Max`, `SparseSum`, `Gather`), is sent the result, and returns an `Outcome`. A codec therefore knows no network:
`host_agent` drives the generators over an aggregator, and `exchange.together` drives those of all ranks in one process.
"""

from __future__ import annotations

import hashlib
import operator
import struct
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from switchml.errors import ConfigError, PayloadError, UnsupportedTensor
from switchml.protocol import sizes

Floats: TypeAlias = npt.NDArray[np.float32]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Indices: TypeAlias = npt.NDArray[np.int64]
Array: TypeAlias = npt.NDArray[Any]

SUM, VOTE, SPARSE_SUM, GATHER = "sum", "vote", "sparse-sum", "gather"
AGGREGATIONS = {
    SUM: "the aggregator adds a dense vector of floats, or of small integers",
    VOTE: "the aggregator adds signs (+1, -1) in int8 or int16 lanes; the majority decides",
    SPARSE_SUM: "the aggregator adds the blocks that hold the selected elements, or the ranks gather them",
    GATHER: "every rank gets every payload and averages what they decode to",
}
"""How the payloads of several ranks become one vector: name → description."""

_HEADER = struct.Struct("<2sBBQ")
_MAGIC, _VERSION = b"cx", 1
HEADER_BYTES = _HEADER.size


@dataclass(frozen=True)
class StepContext:
    """Which tensor is compressed, in which step, on which rank.

    `name`: of the tensor or bucket. `shape`: of the tensor, which PowerSGD uses. `lr`: the step's learning rate, which
    EF-signSGD's error feedback uses. Random numbers are derived from (seed, step, name), so that all ranks draw the
    same (`shared_key`), and from the rank as well where the ranks must differ (`private_key`).
    """

    name: str = ""
    step: int = 0
    seed: int = 0
    rank: int = 0
    world: int = 1
    lr: float = 1.0
    shape: tuple[int, ...] | None = None

    def shared_key(self) -> int:
        """64 random bits, the same on all ranks."""
        return _key(f"{self.seed}/{self.step}/{self.name}")

    def private_key(self) -> int:
        """64 random bits, different on each rank."""
        return _key(f"{self.seed}/{self.step}/{self.name}/{self.rank}")


def _key(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


@dataclass(frozen=True)
class Payload:
    """What one rank sends of one vector: the codec's number, the count of elements, and `body`, uint8[…].

    On the wire: 12 bytes of header (`cx`, version, codec number, count as little-endian uint64), then the body.
    """

    number: int
    count: int
    body: Bytes

    @property
    def nbytes(self) -> int:
        return HEADER_BYTES + self.body.size

    def to_bytes(self) -> bytes:
        return _HEADER.pack(_MAGIC, _VERSION, self.number, self.count) + self.body.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes | Bytes) -> Payload:
        """The payload in `data` (bytes or uint8 array), whose body is a view of it. Raises PayloadError."""
        raw = np.frombuffer(data, np.uint8)
        if raw.size < HEADER_BYTES:
            raise PayloadError(f"a payload of {raw.size} bytes: its header alone has {HEADER_BYTES}")
        magic, version, number, count = _HEADER.unpack(raw[:HEADER_BYTES].tobytes())
        if (magic, version) != (_MAGIC, _VERSION):
            raise PayloadError(
                f"a payload begins with {magic!r}, version {version}: expected {_MAGIC!r}, version {_VERSION}"
            )
        return cls(number, count, raw[HEADER_BYTES:])


# Requests of an exchange

LANE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, **sizes.LANE_BYTES}
"""Values of `Sum.wire`: name → bytes an element."""
HALVES = ("float16", "bfloat16")
"""Of these, what an aggregator adds up as it is, or in int16 lanes."""


@dataclass(frozen=True)
class Sum:
    """Add `values` over the ranks; send back the sum, of the same shape and dtype.

    float32 values, or integers (int8, int16, int32) whose sum over all ranks fits their dtype. `wire` names the
    narrowest lanes that hold the values (and, of integers, the sum) without loss: "float16" for float32 values that
    were rounded to it, for example.
    """

    values: Array
    wire: str

    @property
    def nbytes(self) -> int:
        return self.values.size * LANE_BYTES[self.wire]


@dataclass(frozen=True)
class Max:
    """Send back the element-wise maximum of `values` (float32, few) over the ranks; NaN if any is NaN."""

    values: Floats

    @property
    def nbytes(self) -> int:
        return self.values.nbytes


@dataclass(frozen=True)
class SparseSum:
    """Add vectors of `count` elements that are 0 except at `indices` (int64[k], ascending), where they are `values`
    (float32[k]); send back the sum, dense float32[count]. `payload` holds the same, packed, for drivers that gather
    instead; with `is_sized` it has the same length on every rank."""

    indices: Indices
    values: Floats
    count: int
    payload: Payload
    is_sized: bool = False

    @property
    def nbytes(self) -> int:
        return self.payload.nbytes


@dataclass(frozen=True)
class Gather:
    """Send back the payloads of all ranks, a list in the order of the ranks."""

    payload: Payload

    @property
    def nbytes(self) -> int:
        return self.payload.nbytes


Request = Sum | Max | SparseSum | Gather


@dataclass(frozen=True)
class Outcome:
    """`mean`: float32[n], bit for bit the same on all ranks. `own`: float32[n], this rank's contribution to it; the
    error feedback keeps the difference from the rank's vector."""

    mean: Floats
    own: Floats


Exchange = Generator[Request, Any, Outcome]


# Settings


def setting(default: _Value, help: str, **limits: Any) -> _Value:
    """A dataclass field that a user can set. `limits`: above, least, most (numbers) and choices (a tuple)."""
    return field(default=default, metadata={"help": help, **limits})


_Value = TypeVar("_Value")
_Self = TypeVar("_Self", bound="CodecSettings")

_LIMITS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "above": ("above", operator.gt),
    "least": ("at least", operator.ge),
    "most": ("at most", operator.le),
    "choices": ("one of", lambda value, choices: value in choices),
}
"""Kind of limit → its wording in messages, and a function that says whether a value is within a limit."""

_BOOLS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True)
class CodecSettings:
    """Base of codecs and error feedback: checked settings, and the text that `registry.parse` reads.

    msgspec could convert and check them, but its messages lack the setting's meaning and the value.
    """

    name: ClassVar[str]

    def __post_init__(self) -> None:
        for each in fields(self):
            self._check(each.name, getattr(self, each.name), **each.metadata)

    def _check(self, key: str, value: Any, help: str, **limits: Any) -> None:
        """Raises ConfigError unless `value` is within all limits (those of `setting`)."""
        if not all(_LIMITS[key][1](value, limit) for key, limit in limits.items()):
            texts = {key: ", ".join(map(str, limit)) if key == "choices" else limit for key, limit in limits.items()}
            expected = " and ".join(f"{_LIMITS[key][0]} {text}" for key, text in texts.items())
            raise ConfigError(f"{self.name}: {key}={value}: expected {expected} ({help})")

    def __str__(self) -> str:
        """The text from which `registry.parse` makes an equal object; settings at their default are left out."""
        values = [(each.name, getattr(self, each.name), each.default) for each in fields(self)]
        changed = [(key, value) for key, value, default in values if value != default]
        texts = [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in changed]
        return self.name + (":" + ",".join(texts) if texts else "")

    @classmethod
    def from_options(cls: type[_Self], options: dict[str, str]) -> _Self:
        """Settings from their texts. Raises ConfigError."""
        known = {each.name: each for each in fields(cls)}
        values = {}
        for key, text in options.items():
            if key not in known:
                has = "; it has " + ", ".join(f"{f.name} ({f.metadata['help']})" for f in known.values())
                raise ConfigError(f"{cls.name} has no setting {key!r}{has if known else ' (it has none at all)'}")
            kind: type[Any] = type(known[key].default)
            try:
                values[key] = _BOOLS[text.lower()] if kind is bool else kind(text)
            except (KeyError, ValueError):
                expected = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
                raise ConfigError(f"{cls.name}: {key}={text}: expected {expected}") from None
        return cls(**values)


# The two kinds of settings


class Codec(CodecSettings):
    """A compressor. Subclasses are frozen dataclasses that fill in the class variables, `encode` and `decode`.

    `number` identifies the codec in a payload's header and never changes. `error_feedback` names the kind that the
    codec's paper trains with.

    Vectors may hold any float32. Infinities and NaN show as infinity or NaN after decoding, at that place or everywhere
    (sign codecs cannot represent them), and so may magnitudes above 1e34, where a codec's norms and sums leave float32.
    """

    number: ClassVar[int]
    aggregation: ClassVar[str]
    is_unbiased: ClassVar[bool] = False
    error_feedback: ClassVar[str] = "none"
    floats: ClassVar[str] = ""
    """`Sum.wire` of the floats whose sum it requests; "" if these are integers, or it requests no sums."""
    by_matrix: ClassVar[bool] = False
    """Whether it works better on one tensor at a time, with its shape, than on a bucket of them."""

    @property
    def is_half(self) -> bool:
        """Whether everything that the aggregator adds up is half precision."""
        return self.floats in HALVES

    def new_state(self) -> Any:
        """What the codec remembers of one tensor from step to step; None if nothing."""
        return None

    def compress(self, state: Any, x: Floats, context: StepContext = StepContext()) -> Payload:
        """The payload of `x`, float32[n] (any other raises UnsupportedTensor). Changes `state`, never `x`."""
        return self.payload(self.encode(state, vector(x), context), x.size)

    def payload(self, body: Bytes, n: int) -> Payload:
        return Payload(self.number, n, body)

    def decompress(self, payload: Payload, n: int) -> Floats:
        """float32[n]. Raises PayloadError if the payload is no such vector of this codec."""
        if payload.number != self.number:
            raise PayloadError(f"{self.name}: the payload is of codec number {payload.number}, not {self.number}")
        if payload.count != n:
            raise PayloadError(f"{self.name}: the payload holds {payload.count} elements: expected {n}")
        self.expect_size(payload.body, self.body_bytes(n))
        return self.decode(_writeable(payload.body), n)

    def payload_bytes(self, n: int) -> int | None:
        """Size of the payload of n elements; None if it depends on their values."""
        size = self.body_bytes(n)
        return None if size is None else HEADER_BYTES + size

    def body_bytes(self, n: int) -> int | None:
        """Size of every payload body that `decode` accepts; None if it depends on more than n and the settings."""
        return None

    def encode(self, state: Any, x: Floats, context: StepContext) -> Bytes:
        """The payload's body of a checked vector."""
        raise NotImplementedError

    def decode(self, body: Bytes, n: int) -> Floats:
        """float32[n] of a payload's body, which has `body_bytes(n)` bytes if that is known. Raises PayloadError."""
        raise NotImplementedError

    def exchange(self, state: Any, x: Floats, context: StepContext) -> Exchange:
        """The mean over the ranks, by gathering; codecs that can be summed or voted on override this."""
        own = self.compress(state, x, context)
        payloads = yield Gather(own)
        return self.mean_of(payloads, own, x.size)

    def mean_of(self, payloads: list[Payload], own: Payload, n: int) -> Outcome:
        """The mean of the decoded payloads of all ranks, and the decoded payload of this rank."""
        total = np.zeros(n, np.float32)
        for payload in payloads:
            total += self.decompress(payload, n)
        return Outcome(total / np.float32(len(payloads)), self.decompress(own, n))

    def expect_size(self, body: Bytes, size: int | None) -> None:
        """Raises PayloadError unless the body has `size` bytes; None allows any."""
        if size is not None and body.size != size:
            raise PayloadError(f"{self.name}: a payload body of {body.size} bytes: expected {size}")


class FloatSum(Codec):
    """Base of the codecs whose floats the aggregator adds as they are: each element is rounded to `floats`."""

    aggregation = SUM

    def round(self, x: Floats) -> Array:
        """x as an array of `floats`, or of their bits: what a payload holds."""
        raise NotImplementedError

    def widen(self, rounded: Array) -> Floats:
        """float32[n] of what `round` returned."""
        raise NotImplementedError

    def body_bytes(self, n: int) -> int:
        return LANE_BYTES[self.floats] * n

    def encode(self, state: Any, x: Floats, context: StepContext) -> Bytes:
        return self.round(x).view(np.uint8)

    def decode(self, body: Bytes, n: int) -> Floats:
        return self.widen(body.view(np.float32 if self.floats == "float32" else np.uint16))

    def exchange(self, state: Any, x: Floats, context: StepContext) -> Exchange:
        own = self.widen(self.round(x))
        total = yield Sum(own, self.floats)
        return Outcome(total / np.float32(context.world), own)


class ErrorFeedback(CodecSettings):
    """What a rank remembers of what was not sent. A frozen dataclass; the values are in the state."""

    def new_state(self) -> Any:
        return None

    def compensate(self, state: Any, x: Floats, context: StepContext) -> Floats:
        """What to compress in place of `x`, float32[n]; may be `x` itself."""
        return x

    def update(self, state: Any, compensated: Floats, own: Floats, context: StepContext) -> None:
        """Remember what of `compensated` is missing in `own`, both float32[n]."""


# Vectors and bodies


def vector(x: Floats) -> Floats:
    """`x`, checked to be a C-contiguous float32 vector. Raises UnsupportedTensor."""
    if not isinstance(x, np.ndarray) or x.dtype != np.float32 or x.ndim != 1 or not x.flags.c_contiguous:
        shape = getattr(x, "shape", None)
        raise UnsupportedTensor(
            f"{getattr(x, 'dtype', type(x).__name__)} of shape {shape}: codecs take contiguous float32 vectors"
        )
    return _writeable(x)


def _writeable(x: Array) -> Array:
    """`x`, or a copy if it is read-only: a kernel would be compiled a second time for such an array."""
    return x if x.flags.writeable else x.copy()


def scatter(indices: Indices, values: Floats | np.float32, n: int) -> Floats:
    """float32[n] with `values` at `indices`, and 0 elsewhere."""
    x = np.zeros(n, np.float32)
    x[indices] = values
    return x


def join(*parts: Array) -> Bytes:
    """A payload's body: the bytes of vectors of any dtype, one after the other."""
    return np.concatenate([part.view(np.uint8) for part in parts])


def split(body: Bytes, *parts: tuple[str, int]) -> list[Array]:
    """The vectors that begin a body, each given as (dtype, count), then the rest of its bytes."""
    vectors: list[Array] = []
    for dtype, count in parts:
        size = np.dtype(dtype).itemsize * count
        vectors.append(body[:size].copy().view(dtype))
        body = body[size:]
    return [*vectors, body]
