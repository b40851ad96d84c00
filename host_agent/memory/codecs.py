"""Codecs for the storage of a saved tensor: they compress it as a vector, and the backward pass restores it.

`CODECS` lists them by name. Codecs with `is_bounded` take the maximum error of an element; zeros stay zeros. All work
on the vector's device, part by part, so that in addition to the vector and the compressed one they need memory for a
few times `part_elements(vector)` elements; only `host` moves the vector.

A codec is a coroutine. When it needs numbers on the host, it yields a vector of them and receives them as a list: at
once for tensors on a CPU, and for those on a GPU when the stream has computed them, without blocking the caller
(`side_stream.py`)."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from host_agent.memory import device_bits, device_levels, device_szx, streams
from host_agent.memory.host import Host
from host_agent.memory.parts import StoredVector, part_elements, parts_of

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
ROW = 256
"""Number of elements that share one scale in `int8`."""
MIN_HALF = 2.0**-10
"""Smallest magnitude of the largest element that `Half` accepts. float16 has ten bits down to 2^-14, so elements of a
sixteenth of that have full precision, too."""
LARGEST_STEP = 126.9
"""Number of quantization steps of a row's largest element. Less than 127, so that no rounding results in 128."""


class CompressedTensor(Protocol):
    """A vector in compressed form. `nbytes`: its size on its device, or on the host if it was compressed there."""

    @property
    def nbytes(self) -> int: ...

    def restore(self) -> torch.Tensor:
        """The vector, with its original dtype, device and size."""

    def tensors(self) -> list[torch.Tensor]:
        """Tensors on the vector's device that it consists of."""


Compression = Generator[torch.Tensor, list[Any], CompressedTensor | None]
"""Coroutine that yields vectors of numbers that it needs, and returns the compressed vector, or None if it stays
uncompressed."""


class Codec(Protocol):
    """Interface of codecs. `floats_only`: floats are changed, and integers and bools are compressed by `narrowed`.
    `error`: largest error of an element, relative to the largest magnitude, unless `is_bounded`. `near`: distances from
    0 and from 1 below which the relative errors of x and of 1 - |x| are large; None if these are everywhere."""

    is_bounded: bool
    floats_only: bool
    error: float
    near: tuple[float, float] | None

    def compress(self, vector: torch.Tensor, bound: float) -> Compression:
        """Compress a contiguous vector."""


@dataclass(frozen=True)
class Bounded:
    """`levels` or `szx`: numba loops for vectors on a CPU, torch operators for those on a GPU."""

    coder: streams.Coder
    on_device: Any
    is_bounded = True
    floats_only = True
    error = 0.0
    near: tuple[float, float] | None = None

    def compress(self, vector: torch.Tensor, bound: float) -> Compression:
        if vector.is_cuda:
            compressed: CompressedTensor = yield from self.on_device(vector, bound)
            return compressed
        return streams.write(self.coder, vector, bound)


@dataclass(frozen=True)
class Cast(StoredVector):
    """The vector converted to another dtype."""

    parts: torch.Tensor
    dtype: torch.dtype

    def restore(self) -> torch.Tensor:
        return self.parts.to(self.dtype)

    def tensors(self) -> list[torch.Tensor]:
        return [self.parts]


class Half:
    """float16. A vector stays uncompressed if its largest magnitude is out of range, or has reduced precision."""

    is_bounded = False
    floats_only = True
    error = 2.0**-11
    near: tuple[float, float] | None = (2.0**-14, 2.0**-7)

    def compress(self, vector: torch.Tensor, bound: float) -> Compression:
        if vector.element_size() < 4:
            return None
        half = vector.half()
        (largest,) = yield torch.stack([part.abs().amax().float() for part in parts_of(half)]).amax().view(1)
        return Cast(half, vector.dtype) if MIN_HALF <= largest < float("inf") else None


@dataclass(frozen=True)
class Rows(StoredVector):
    """Rows of quantized elements. `numbers`: int8[rows, ROW]; `scales`: float32[rows, 1], the factors of the rows. The
    last row may extend beyond the end of the vector."""

    numbers: torch.Tensor
    scales: torch.Tensor
    dtype: torch.dtype
    count: int

    def restore(self) -> torch.Tensor:
        vector = self.numbers.new_empty(self.numbers.shape, dtype=self.dtype)
        for part, numbers, scales in _rows_of(vector, self.numbers, self.scales):
            # Exact in all types up to the product: an integer minus a half has 8 bits.
            part.copy_(numbers).sub_(part.sign(), alpha=0.5).mul_(scales)
        return vector.view(-1)[: self.count]

    def tensors(self) -> list[torch.Tensor]:
        return [self.numbers, self.scales]


class Int8:
    """Quantization to steps of a 127th of each row's largest magnitude, restored as the middle of the step; zeros and
    signs are preserved. A vector with infinities or NaN stays uncompressed."""

    is_bounded = False
    floats_only = True
    error = 0.5 / LARGEST_STEP
    near: tuple[float, float] | None = None

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
    """The same rows of all matrices, in groups of as many as `part_elements` allows."""
    rows = part_elements(matrices[0]) // ROW
    for first in range(0, len(matrices[0]), rows):
        yield tuple(matrix[first : first + rows] for matrix in matrices)


def _write_rows(rows: torch.Tensor, numbers: torch.Tensor, scales: torch.Tensor) -> None:
    """Quantize x to sign(x) plus the integer part of x / scale: all values within one step have the same number, and
    only 0 has number 0."""
    if not rows.is_cuda:
        rows = rows.float()  # operators on the CPU are slow for other types
    largest = torch.maximum(rows.amax(1, keepdim=True), -rows.amin(1, keepdim=True))
    tiny = torch.finfo(torch.float32).tiny
    scales.copy_(largest).div_(LARGEST_STEP).clamp_(min=tiny)
    numbers.copy_(torch.addcdiv(rows.sign(), rows, scales))


class Nothing:
    """Leaves tensors uncompressed."""

    is_bounded = floats_only = False
    error = 0.0
    near: tuple[float, float] | None = None

    def compress(self, vector: torch.Tensor, bound: float) -> Compression:
        return None
        yield


@dataclass(frozen=True)
class Bits(StoredVector):
    """Bools packed eight per byte, as by numpy.packbits."""

    packed: torch.Tensor
    count: int

    def restore(self) -> torch.Tensor:
        if not self.packed.is_cuda:
            return torch.from_numpy(np.unpackbits(self.packed.numpy(), count=self.count)).view(torch.bool)
        return device_bits.unpacked(self.packed, self.count)

    def tensors(self) -> list[torch.Tensor]:
        return [self.packed]


def narrowed(vector: torch.Tensor) -> Compression:
    """Compress integers losslessly to the smallest type that holds them (max-pooling's indices are int64), and bools to
    bits."""
    if vector.dtype == torch.bool:
        return (yield from packed(vector))
    least, most = yield torch.stack(vector.aminmax())
    for dtype in (torch.uint8, torch.int16, torch.int32):
        limits = torch.iinfo(dtype)
        if limits.min <= least and most <= limits.max and dtype.itemsize < vector.element_size():
            return Cast(vector.to(dtype), vector.dtype)
    return None


def packed(vector: torch.Tensor) -> Generator[torch.Tensor, list[Any], Bits]:
    """Coroutine that packs bools to bits."""
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
"""Codec name → factory."""
