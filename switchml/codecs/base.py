"""The interface of codecs and error feedback: settings (a frozen dataclass), a state per tensor, and pure functions.

A codec turns a float32 vector into a `Payload` and back (`compress`, `decompress`), and defines how the vectors of
several ranks become their mean (`exchange`). An exchange is a generator: it yields requests for joint operations of the
ranks (`Sum`, `Max`, `SparseSum`, `Gather`), is sent the result, and returns an `Outcome`. A codec is therefore
independent of the network: `host_agent` drives the generators over an aggregator, and `exchange.together` drives those
of all ranks in one process.
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
"""How the payloads of several ranks are combined into one vector: name → description."""

_HEADER = struct.Struct("<2sBBQ")
_MAGIC, _VERSION = b"cx", 1
HEADER_BYTES = _HEADER.size


@dataclass(frozen=True)
class StepContext:
    """The tensor, step and rank of a compression.

    `name`: of the tensor or bucket. `shape`: of the tensor, used by PowerSGD. `lr`: the step's learning rate, used by
    EF-signSGD's error feedback. Random numbers are derived from (seed, step, name), so that all ranks draw the same
    (`shared_key`), and also from the rank if ranks must differ (`private_key`).
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
    """One rank's compressed vector: the codec's number, the number of elements, and `body`, uint8[…].

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
        """Parse a payload from `data` (bytes or uint8 array); its body is a view of it. Raises PayloadError."""
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
"""Values of `Sum.wire`: name → bytes per element."""
HALVES = ("float16", "bfloat16")
"""Types among these that an aggregator adds up directly, or in int16 lanes."""


@dataclass(frozen=True)
class Sum:
    """Request the sum of `values` over the ranks, of the same shape and dtype.

    float32 values, or integers (int8, int16, int32) whose sum over all ranks fits their dtype. `wire` names the
    narrowest lanes that hold the values (and, for integers, the sum) without loss: "float16" for float32 values that
    were rounded to it, for example.
    """

    values: Array
    wire: str

    @property
    def nbytes(self) -> int:
        return self.values.size * LANE_BYTES[self.wire]


@dataclass(frozen=True)
class Max:
    """Request the element-wise maximum of `values` (float32, few) over the ranks; NaN if any is NaN."""

    values: Floats

    @property
    def nbytes(self) -> int:
        return self.values.nbytes


@dataclass(frozen=True)
class SparseSum:
    """Request the sum, dense float32[count], of vectors of `count` elements that are 0 except at `indices` (int64[k],
    ascending), where they are `values` (float32[k]). `payload` holds the same, packed, for drivers that gather instead;
    with `is_sized` it has the same length on every rank."""

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
    """Request the payloads of all ranks, a list in rank order."""

    payload: Payload

    @property
    def nbytes(self) -> int:
        return self.payload.nbytes


Request = Sum | Max | SparseSum | Gather


@dataclass(frozen=True)
class Outcome:
    """Result of an exchange. `mean`: float32[n], bit for bit the same on all ranks. `own`: float32[n], this rank's
    contribution to it; the error feedback keeps the difference from the rank's vector."""

    mean: Floats
    own: Floats


Exchange = Generator[Request, Any, Outcome]


# Settings


def setting(default: _Value, help: str, **limits: Any) -> _Value:
    """Return a dataclass field for a setting. `limits`: above, least, most (numbers) and choices (a tuple)."""
    return field(default=default, metadata={"help": help, **limits})


_Value = TypeVar("_Value")
_Self = TypeVar("_Self", bound="CodecSettings")

_LIMITS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "above": ("above", operator.gt),
    "least": ("at least", operator.ge),
    "most": ("at most", operator.le),
    "choices": ("one of", lambda value, choices: value in choices),
}
"""Kind of limit → its wording in messages, and a function that checks a value against a limit."""

_BOOLS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True)
class CodecSettings:
    """Base of codecs and error feedback: checked settings, and their text form, which `registry.parse` reads.

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
        """Return the text from which `registry.parse` creates an equal object; settings with default values are
        omitted."""
        values = [(each.name, getattr(self, each.name), each.default) for each in fields(self)]
        changed = [(key, value) for key, value, default in values if value != default]
        texts = [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in changed]
        return self.name + (":" + ",".join(texts) if texts else "")

    @classmethod
    def from_options(cls: type[_Self], options: dict[str, str]) -> _Self:
        """Parse settings from their texts. Raises ConfigError."""
        known = {each.name: each for each in fields(cls)}
        values = {}
        for key, text in options.items():
            if key not in known:
                has = "; it has " + ", ".join(f"{f.name} ({f.metadata['help']})" for f in known.values())
                raise ConfigError(f"{cls.name} has no setting {key!r}{has if known else ' (it has none)'}")
            kind: type[Any] = type(known[key].default)
            try:
                values[key] = _BOOLS[text.lower()] if kind is bool else kind(text)
            except (KeyError, ValueError):
                expected = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
                raise ConfigError(f"{cls.name}: {key}={text}: expected {expected}") from None
        return cls(**values)


# The two kinds of settings


class Codec(CodecSettings):
    """A compressor. Subclasses are frozen dataclasses that define the class variables, `encode` and `decode`.

    `number` identifies the codec in a payload's header and never changes. `error_feedback` names the kind used for
    training in the codec's paper.

    Vectors may hold any float32. Infinities and NaN decode to infinity or NaN, at that place or everywhere (sign codecs
    cannot represent them); the same may happen with magnitudes above 1e34, where a codec's norms and sums overflow
    float32.
    """

    number: ClassVar[int]
    aggregation: ClassVar[str]
    is_unbiased: ClassVar[bool] = False
    error_feedback: ClassVar[str] = "none"
    floats: ClassVar[str] = ""
    """`Sum.wire` of the floats whose sum it requests; "" for integers, or if it requests no sums."""
    by_matrix: ClassVar[bool] = False
    """Whether the codec works better on single tensors with their shape than on a bucket."""

    @property
    def is_half(self) -> bool:
        """Whether all values that the aggregator sums are half precision."""
        return self.floats in HALVES

    def new_state(self) -> Any:
        """Return a new state of one tensor, kept from step to step; None if the codec has none."""
        return None

    def compress(self, state: Any, x: Floats, context: StepContext = StepContext()) -> Payload:
        """Compress `x`, float32[n] (others raise UnsupportedTensor). Modifies `state`, never `x`."""
        return self.payload(self.encode(state, vector(x), context), x.size)

    def payload(self, body: Bytes, n: int) -> Payload:
        return Payload(self.number, n, body)

    def decompress(self, payload: Payload, n: int) -> Floats:
        """Decompress to float32[n]. Raises PayloadError unless the payload is such a vector of this codec."""
        if payload.number != self.number:
            raise PayloadError(f"{self.name}: the payload is of codec number {payload.number}, not {self.number}")
        if payload.count != n:
            raise PayloadError(f"{self.name}: the payload holds {payload.count} elements: expected {n}")
        self.expect_size(payload.body, self.body_bytes(n))
        return self.decode(_writeable(payload.body), n)

    def payload_bytes(self, n: int) -> int | None:
        """Return the payload size for n elements; None if it depends on their values."""
        size = self.body_bytes(n)
        return None if size is None else HEADER_BYTES + size

    def body_bytes(self, n: int) -> int | None:
        """Return the size of every payload body that `decode` accepts; None if it depends on more than n and the
        settings."""
        return None

    def encode(self, state: Any, x: Floats, context: StepContext) -> Bytes:
        """Return the payload body of a checked vector."""
        raise NotImplementedError

    def decode(self, body: Bytes, n: int) -> Floats:
        """Decode a payload body to float32[n]; it has `body_bytes(n)` bytes if that is known. Raises PayloadError."""
        raise NotImplementedError

    def exchange(self, state: Any, x: Floats, context: StepContext) -> Exchange:
        """Compute the mean over the ranks by gathering; codecs that can be summed or voted on override this."""
        own = self.compress(state, x, context)
        payloads = yield Gather(own)
        return self.mean_of(payloads, own, x.size)

    def mean_of(self, payloads: list[Payload], own: Payload, n: int) -> Outcome:
        """Return the mean of the decoded payloads of all ranks, and the decoded payload of this rank."""
        total = np.zeros(n, np.float32)
        for payload in payloads:
            total += self.decompress(payload, n)
        return Outcome(total / np.float32(len(payloads)), self.decompress(own, n))

    def expect_size(self, body: Bytes, size: int | None) -> None:
        """Raise PayloadError unless the body has `size` bytes; None allows any."""
        if size is not None and body.size != size:
            raise PayloadError(f"{self.name}: a payload body of {body.size} bytes: expected {size}")


class FloatSum(Codec):
    """Base of the codecs whose floats the aggregator adds directly: each element is rounded to `floats`."""

    aggregation = SUM

    def round(self, x: Floats) -> Array:
        """Return x as an array of `floats`, or of their bits, as stored in a payload."""
        raise NotImplementedError

    def widen(self, rounded: Array) -> Floats:
        """Convert the result of `round` to float32[n]."""
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
    """Keeps the compression error of a rank for its next step. A frozen dataclass; the values are in the state."""

    def new_state(self) -> Any:
        return None

    def compensate(self, state: Any, x: Floats, context: StepContext) -> Floats:
        """Return the vector to compress instead of `x`, float32[n]; may be `x` itself."""
        return x

    def update(self, state: Any, compensated: Floats, own: Floats, context: StepContext) -> None:
        """Store the part of `compensated` that is missing in `own`, both float32[n]."""


# Vectors and bodies


def vector(x: Floats) -> Floats:
    """Check that `x` is a C-contiguous float32 vector, and return it. Raises UnsupportedTensor."""
    if not isinstance(x, np.ndarray) or x.dtype != np.float32 or x.ndim != 1 or not x.flags.c_contiguous:
        shape = getattr(x, "shape", None)
        raise UnsupportedTensor(
            f"{getattr(x, 'dtype', type(x).__name__)} of shape {shape}: codecs take contiguous float32 vectors"
        )
    return _writeable(x)


def _writeable(x: Array) -> Array:
    """Return `x`, or a copy if it is read-only, for which kernels would have to be compiled again."""
    return x if x.flags.writeable else x.copy()


def scatter(indices: Indices, values: Floats | np.float32, n: int) -> Floats:
    """Return float32[n] with `values` at `indices`, and 0 elsewhere."""
    x = np.zeros(n, np.float32)
    x[indices] = values
    return x


def join(*parts: Array) -> Bytes:
    """Return a payload body: the concatenated bytes of vectors of any dtype."""
    return np.concatenate([part.view(np.uint8) for part in parts])


def split(body: Bytes, *parts: tuple[str, int]) -> list[Array]:
    """Return the vectors at the beginning of a body, each given as (dtype, count), then the remaining bytes."""
    vectors: list[Array] = []
    for dtype, count in parts:
        size = np.dtype(dtype).itemsize * count
        vectors.append(body[:size].copy().view(dtype))
        body = body[size:]
    return [*vectors, body]
