"""What every codec and every memory is: settings (a frozen dataclass), a state for each tensor, and pure functions.

A codec makes a `Payload` of a float32 vector and a vector of a payload (`compress`, `decompress`), and says how the
vectors of several ranks become their mean (`exchange`). An exchange is a generator: it yields what the ranks shall
reduce together (`Sum`, `Max`, `SparseSum`, `Gather`), is sent the result, and returns an `Outcome`. So a codec knows no
network: `host_agent` drives the generators over an aggregator, `exchange.together` drives those of all ranks in one
process.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Generator
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar

import numpy as np

from switchml.errors import ConfigError, PayloadError, UnsupportedTensor

SUM, VOTE, SPARSE_SUM, GATHER = "sum", "vote", "sparse-sum", "gather"
AGGREGATIONS = {
    SUM: "the aggregator adds a dense vector of floats, or of small integers",
    VOTE: "the aggregator adds signs (+1, -1) in int8 or int16 lanes; the majority decides",
    SPARSE_SUM: "the aggregator adds the blocks that hold the selected elements, or the ranks gather them",
    GATHER: "every rank gets every payload and averages what they decode to",
}
"""How payloads of several ranks become one vector: name → in words."""

_HEADER = struct.Struct("<2sBBQ")
_MAGIC, _VERSION = b"cx", 1
HEADER_BYTES = _HEADER.size


@dataclass(frozen=True)
class Turn:
    """Which tensor is compressed, in which step, on which rank.

    `name`: of the tensor or bucket. `shape`: the tensor's own shape, which PowerSGD uses; `lr`: the step's
    learning rate, for the memory of EF-signSGD. Randomness is drawn from
    (seed, step, name), so that it is the same on all ranks (`shared_key`), and from the rank too where the ranks must
    differ (`private_key`).
    """

    name: str = ""
    step: int = 0
    seed: int = 0
    rank: int = 0
    world: int = 1
    lr: float = 1.0
    shape: tuple[int, ...] | None = None

    def shared_key(self) -> int:
        """64 random bits that all ranks draw alike."""
        return _key(f"{self.seed}/{self.step}/{self.name}")

    def private_key(self) -> int:
        """64 random bits of this rank's own."""
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
    body: np.ndarray

    @property
    def nbytes(self) -> int:
        return HEADER_BYTES + self.body.size

    def to_bytes(self) -> bytes:
        return _HEADER.pack(_MAGIC, _VERSION, self.number, self.count) + self.body.tobytes()

    @classmethod
    def from_bytes(cls, data) -> Payload:
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


# What an exchange asks for

LANE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int32": 4, "int16": 2, "int8": 1}
"""What `Sum.wire` may be: name → bytes an element."""
HALVES = ("float16", "bfloat16")
"""Of these, the floats that int16 lanes of the aggregator hold, too."""


@dataclass(frozen=True)
class Sum:
    """Add `values` over the ranks; send back the sum, of the same shape and dtype.

    float32 values, or integers (int8, int16, int32) whose sum over all ranks fits their dtype. `wire` names the
    narrowest lanes that hold all that the values (and the sum, if they are integers) mean: "float16" for float32
    values that were rounded to it, and so on.
    """

    values: np.ndarray
    wire: str

    @property
    def nbytes(self) -> int:
        return self.values.size * LANE_BYTES[self.wire]


@dataclass(frozen=True)
class Max:
    """Send back the element-wise maximum of `values` (float32, few) over the ranks; NaN if any is NaN."""

    values: np.ndarray

    @property
    def nbytes(self) -> int:
        return self.values.nbytes


@dataclass(frozen=True)
class SparseSum:
    """Add vectors of `count` elements that are 0 except at `indices` (int64[k], ascending), where they are `values`
    (float32[k]); send back the sum, dense float32[count]. `payload` says the same, packed, for who gathers instead;
    `is_sized`: in as many bytes on every rank."""

    indices: np.ndarray
    values: np.ndarray
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
    """`mean`: float32[n], bit for bit the same on all ranks. `own`: float32[n], what of this rank's vector went into
    it; the memory keeps the rest."""

    mean: np.ndarray
    own: np.ndarray


Exchange = Generator[Request, Any, Outcome]


# Settings


def setting(default, help: str, *, above=None, least=None, most=None, choices=None):
    """A dataclass field that a user can set, with the values that it may take."""
    return field(default=default, metadata=dict(help=help, above=above, least=least, most=most, choices=choices))


class Settings:
    """Base of codecs and memories: checked settings, and the text that `registry.parse` reads."""

    name: ClassVar[str]

    def __post_init__(self) -> None:
        for each in fields(self):
            self._check(each.name, getattr(self, each.name), each.metadata)

    def _check(self, key: str, value, rules) -> None:
        wants = []
        if rules.get("above") is not None:
            wants.append((value > rules["above"], f"above {rules['above']}"))
        if rules.get("least") is not None:
            wants.append((value >= rules["least"], f"at least {rules['least']}"))
        if rules.get("most") is not None:
            wants.append((value <= rules["most"], f"at most {rules['most']}"))
        if rules.get("choices") is not None:
            wants.append((value in rules["choices"], f"one of {', '.join(map(str, rules['choices']))}"))
        if not all(holds for holds, _ in wants):
            raise ConfigError(
                f"{self.name}: {key}={value}: expected {' and '.join(text for _, text in wants)} ({rules['help']})"
            )

    def __str__(self) -> str:
        """The text that `registry.parse` turns into this again; settings at their default are left out."""
        changed = [(f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != f.default]
        return self.name + (":" + ",".join(f"{key}={_text(value)}" for key, value in changed) if changed else "")

    @classmethod
    def from_options(cls, options: dict[str, str]):
        """Settings from their texts. Raises ConfigError."""
        known = {each.name: each for each in fields(cls)}
        values = {}
        for key, text in options.items():
            if key not in known:
                has = "; it has " + ", ".join(f"{f.name} ({f.metadata['help']})" for f in known.values())
                raise ConfigError(f"{cls.name} has no setting {key!r}{has if known else ' (it has none at all)'}")
            values[key] = _value(cls.name, key, text, known[key].default)
        return cls(**values)


def _text(value) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value!r}" if isinstance(value, float) else str(value)


def _value(owner: str, key: str, text: str, default):
    assert default is not MISSING
    try:
        if isinstance(default, bool):
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[text.lower()]
        return type(default)(text)
    except (KeyError, ValueError):
        kind = {bool: "true or false", int: "a whole number", float: "a number"}[type(default)]
        raise ConfigError(f"{owner}: {key}={text}: expected {kind}") from None


# The two kinds of settings


class Codec(Settings):
    """A compressor. Subclasses are frozen dataclasses that fill in the class variables, `encode` and `decode`.

    `number` is the codec's in the payload's header and never changes. `memory` names the memory that the codec's paper
    trains with.

    Vectors may hold any float32. What is not finite shows as infinity or NaN after decoding, in that place or all over
    (sign codecs can't say it), and so may magnitudes above 1e34, where a codec's norms and sums leave float32.
    """

    number: ClassVar[int]
    aggregation: ClassVar[str]
    is_unbiased: ClassVar[bool] = False
    memory: ClassVar[str] = "none"
    floats: ClassVar[str] = ""
    """`Sum.wire` of the floats that it has added up; "" where these are integers, or it has nothing added up."""
    by_matrix: ClassVar[bool] = False
    """Whether it works better on one tensor at a time, with its shape, than on a bucket of them."""

    @property
    def is_half(self) -> bool:
        """Whether all that the aggregator adds up fits its int16 lanes."""
        return self.floats in HALVES

    def new_state(self) -> Any:
        """What the codec remembers of one tensor from step to step; None if nothing."""
        return None

    def compress(self, state: Any, x: np.ndarray, turn: Turn = Turn()) -> Payload:
        """The payload of `x`, float32[n] (any other raises UnsupportedTensor). Changes `state`, never `x`."""
        body = self.encode(state, vector(x), turn)
        return Payload(self.number, x.size, body)

    def decompress(self, payload: Payload, n: int) -> np.ndarray:
        """float32[n]. Raises PayloadError if the payload is no such vector of this codec."""
        if payload.number != self.number:
            raise PayloadError(f"{self.name}: the payload is of codec number {payload.number}, not {self.number}")
        if payload.count != n:
            raise PayloadError(f"{self.name}: the payload holds {payload.count} elements: expected {n}")
        return self.decode(_writeable(payload.body), n)

    def payload_bytes(self, n: int) -> int | None:
        """Size of the payload of n elements; None if it depends on their values."""
        return None

    def encode(self, state: Any, x: np.ndarray, turn: Turn) -> np.ndarray:
        """The payload's body, uint8[…], of a checked vector."""
        raise NotImplementedError

    def decode(self, body: np.ndarray, n: int) -> np.ndarray:
        """float32[n] of a payload's body. Raises PayloadError, whatever the bytes are."""
        raise NotImplementedError

    def exchange(self, state: Any, x: np.ndarray, turn: Turn) -> Exchange:
        """The mean over the ranks, by gathering; codecs that can be summed or voted on do it their own way."""
        mine = self.compress(state, x, turn)
        payloads = yield Gather(mine)
        return self.mean_of(payloads, mine, x.size)

    def mean_of(self, payloads: list[Payload], mine: Payload, n: int) -> Outcome:
        """What gathered payloads decode to on average, and what `mine` decodes to."""
        total = np.zeros(n, np.float32)
        for payload in payloads:
            total += self.decompress(payload, n)
        return Outcome(total / np.float32(len(payloads)), self.decompress(mine, n))


class Memory(Settings):
    """What a rank keeps of what was not sent. A frozen dataclass; what it remembers lies in the state."""

    def new_state(self) -> Any:
        return None

    def compensate(self, state: Any, x: np.ndarray, turn: Turn) -> np.ndarray:
        """What to compress in place of `x`, float32[n]; may be `x` itself."""
        return x

    def update(self, state: Any, compensated: np.ndarray, own: np.ndarray, turn: Turn) -> None:
        """Remember what of `compensated` is missing in `own`, both float32[n]."""


def vector(x: np.ndarray) -> np.ndarray:
    """`x`, checked to be a C-contiguous float32 vector. Raises UnsupportedTensor."""
    if not isinstance(x, np.ndarray) or x.dtype != np.float32 or x.ndim != 1 or not x.flags.c_contiguous:
        shape = getattr(x, "shape", None)
        raise UnsupportedTensor(
            f"{getattr(x, 'dtype', type(x).__name__)} of shape {shape}: codecs take contiguous float32 vectors"
        )
    return _writeable(x)


def _writeable(x: np.ndarray) -> np.ndarray:
    """`x`, or a copy if it is read-only: a kernel would be compiled a second time for such an array."""
    return x if x.flags.writeable else x.copy()


def expect_size(codec: Codec, body: np.ndarray, size: int) -> None:
    """Raises PayloadError unless the body has `size` bytes."""
    if body.size != size:
        raise PayloadError(f"{codec.name}: a payload body of {body.size} bytes: expected {size}")
