"""What becomes of a saved tensor's storage: a codec compresses it as a vector; backward restores it.

`CODECS` names them. Those with `is_bounded` take the largest error that an element may have; zeros stay zeros. All work
where the vector is, part by part, so that beside the vector and the compressed one they take a few times
`part_of(vector)` elements; `host` alone moves it.

A codec is a coroutine. Where it needs a number on the host, it yields a vector of such numbers and gets them as a list:
of a CPU's tensors at once, of a GPU's when its stream has come so far, and without making the caller wait
(`behind.py`)."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from host_agent.memory import device_bits, device_levels, device_szx, streams
from host_agent.memory.host import Host
from host_agent.memory.parts import StoredVector, part_of, parts_of

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
ROW = 256
"""Elements that share one scale in `int8`."""
LEAST_HALF = 2.0**-10
"""float16 has ten bits down to 2^-14: of the largest magnitude, elements of a sixteenth as well."""
LARGEST_STEP = 126.9
"""How many steps a row's largest element is. Less than 127, so that no rounding makes a number 128."""


class CompressedTensor(Protocol):
    """A vector in compressed form. `nbytes`: on its device, or on the host where it was compressed there."""

    @property
    def nbytes(self) -> int: ...

    def restore(self) -> torch.Tensor:
        """The vector: dtype, device and count as they were."""

    def tensors(self) -> list[torch.Tensor]:
        """What it consists of on the vector's device."""


Compression = Generator[torch.Tensor, list[Any], CompressedTensor | None]
"""Yields vectors of numbers that it needs; returns the compressed vector, or None: it stays as it is."""


class Codec(Protocol):
    """`floats_only`: integers and bools are for `narrowed`."""

    is_bounded: bool
    floats_only: bool

    def compress(self, vector: torch.Tensor, bound: float) -> Compression:
        """`vector`: contiguous."""


@dataclass(frozen=True)
class Bounded:
    """`levels` or `szx`: numba's loops for a CPU's vectors, torch's operators for a GPU's."""

    coder: streams.Coder
    on_device: Any
    is_bounded = True
    floats_only = True

    def compress(self, vector: torch.Tensor, bound: float) -> Compression:
        if vector.is_cuda:
            compressed: CompressedTensor = yield from self.on_device(vector, bound)
            return compressed
        return streams.write(self.coder, vector, bound)


@dataclass(frozen=True)
class Cast(StoredVector):
    """The vector in another type."""

    parts: torch.Tensor
    dtype: torch.dtype

    def restore(self) -> torch.Tensor:
        return self.parts.to(self.dtype)

    def tensors(self) -> list[torch.Tensor]:
        return [self.parts]


class Half:
    """float16. A vector whose largest magnitude it has not, or not in full precision, stays as it is."""

    is_bounded = False
    floats_only = True

    def compress(self, vector: torch.Tensor, bound: float) -> Compression:
        if vector.element_size() < 4:
            return None
        half = vector.half()
        (largest,) = yield torch.stack([part.abs().amax().float() for part in parts_of(half)]).amax().view(1)
        return Cast(half, vector.dtype) if LEAST_HALF <= largest < float("inf") else None


@dataclass(frozen=True)
class Rows(StoredVector):
    """`numbers`: int8[rows, ROW]; `scales`: float32[rows, 1], what they are multiplied with. The last row may be longer
    than what is left of the vector."""

    numbers: torch.Tensor
    scales: torch.Tensor
    dtype: torch.dtype
    count: int

    def restore(self) -> torch.Tensor:
        vector = self.numbers.new_empty(self.numbers.shape, dtype=self.dtype)
        for part, numbers, scales in _rows_of(vector, self.numbers, self.scales):
            # Exact in all types up to the product: a number less a half has 8 bits.
            part.copy_(numbers).sub_(part.sign(), alpha=0.5).mul_(scales)
        return vector.view(-1)[: self.count]

    def tensors(self) -> list[torch.Tensor]:
        return [self.numbers, self.scales]


class Int8:
    """Steps of a 127th of each row's largest magnitude, of which the middle is restored; zeros and signs stay. With
    infinities or NaN the vector stays as it is."""

    is_bounded = False
    floats_only = True

    def compress(self, vector: torch.Tensor, bound: float) -> Compression:
        count = vector.numel()
        whole, rest = divmod(count, ROW)
        numbers = vector.new_empty((whole + bool(rest), ROW), dtype=torch.int8)
        scales = vector.new_empty((len(numbers), 1), dtype=torch.float32)
        rows = vector[: whole * ROW].view(-1, ROW)
        for part, *to in _rows_of(rows, numbers[:whole], scales[:whole]):
            _write_rows(part, *to)
        if rest:
            last = torch.nn.functional.pad(vector[whole * ROW :], (0, ROW - rest)).view(1, ROW)
            _write_rows(last, numbers[whole:], scales[whole:])
        (is_finite,) = yield scales.isfinite().all().view(1)
        return Rows(numbers, scales, vector.dtype, count) if is_finite else None


def _rows_of(*matrices: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """The same rows of all, as many at a time as `part_of` says."""
    rows = part_of(matrices[0]) // ROW
    for first in range(0, len(matrices[0]), rows):
        yield tuple(matrix[first : first + rows] for matrix in matrices)


def _write_rows(rows: torch.Tensor, numbers: torch.Tensor, scales: torch.Tensor) -> None:
    """x becomes sign(x) more than x / scale without its fraction: what lies within one step has one number, and only 0
    has number 0."""
    if not rows.is_cuda:
        rows = rows.float()  # operators of the CPU are slow on other types
    largest = torch.maximum(rows.amax(1, keepdim=True), -rows.amin(1, keepdim=True))
    tiny = torch.finfo(torch.float32).tiny
    scales.copy_(largest).div_(LARGEST_STEP).clamp_(min=tiny)
    numbers.copy_(torch.addcdiv(rows.sign(), rows, scales))


class Nothing:
    """Tensors stay what they are."""

    is_bounded = floats_only = False

    def compress(self, vector: torch.Tensor, bound: float) -> Compression:
        return None
        yield


@dataclass(frozen=True)
class Bits(StoredVector):
    """Bools, eight a byte, as numpy.packbits has them."""

    packed: torch.Tensor
    count: int

    def restore(self) -> torch.Tensor:
        if not self.packed.is_cuda:
            return torch.from_numpy(np.unpackbits(self.packed.numpy(), count=self.count)).view(torch.bool)
        return device_bits.unpacked(self.packed, self.count)

    def tensors(self) -> list[torch.Tensor]:
        return [self.packed]


def narrowed(vector: torch.Tensor) -> Compression:
    """Integers, exactly, in as few bytes as the largest of them needs (max-pooling's indices are int64), and bools."""
    if vector.dtype == torch.bool:
        return (yield from packed(vector))
    least, most = yield torch.stack(vector.aminmax())
    for dtype in (torch.uint8, torch.int16, torch.int32):
        limits = torch.iinfo(dtype)
        if limits.min <= least and most <= limits.max and dtype.itemsize < vector.element_size():
            return Cast(vector.to(dtype), vector.dtype)
    return None


def packed(vector: torch.Tensor) -> Generator[torch.Tensor, list[Any], Bits]:
    """A coroutine, of bools."""
    if vector.is_cuda:
        return Bits(device_bits.packed(vector), vector.numel())
    packed = torch.empty((vector.numel() + 7) // 8, dtype=torch.uint8)
    packed.numpy()[:] = np.packbits(vector.numpy())
    return Bits(packed, vector.numel())
    yield


CODECS: dict[str, Any] = {
    "levels": lambda: Bounded(streams.Levels(), device_levels.compress),
    "szx": lambda: Bounded(streams.SzxOfOthers(), device_szx.compress),
    "fp16": Half,
    "int8": Int8,
    "host": Host,
    "none": Nothing,
}
"""Name → what makes one."""
