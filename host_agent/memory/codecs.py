"""What becomes of a saved tensor's storage: a codec takes it as a vector and gives what is kept until backward.

`CODECS` names them. Those with `is_bounded` take the largest error that an element may have; zeros stay zeros.
On CUDA, `fp16` and `int8` work where the tensor is, the others on the host.
"""

from __future__ import annotations

import tempfile
import weakref
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from host_agent.memory import streams

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
ROW = 256
"""Elements that share one scale in `int8`."""
LARGEST_HALF = 65504.0


class Kept(Protocol):
    """A vector in compressed form. `nbytes`: on its device, or on the host where it was compressed there."""

    @property
    def nbytes(self) -> int: ...

    def restore(self) -> torch.Tensor:
        """The vector: dtype, device and count as they were."""


class Codec(Protocol):
    """`floats_only`: integers and bools are for `narrowed`."""

    is_bounded: bool
    floats_only: bool

    def keep(self, vector: torch.Tensor, bound: float) -> Kept | None:
        """`vector`: contiguous. None: keep it as it is."""


@dataclass(frozen=True)
class Streamed:
    """On the host, of whatever device and float type."""

    stream: streams.Stream
    dtype: torch.dtype
    device: torch.device

    @property
    def nbytes(self) -> int:
        return self.stream.nbytes

    def restore(self) -> torch.Tensor:
        return self.stream.restore().to(self.device, self.dtype)


@dataclass(frozen=True)
class Bounded:
    """Streams of `coder`, on the host."""

    coder: streams.Coder
    is_bounded = True
    floats_only = True

    def keep(self, vector: torch.Tensor, bound: float) -> Kept | None:
        on_host = vector.to("cpu", torch.float32)
        return Streamed(streams.write(self.coder, on_host, bound), vector.dtype, vector.device)


@dataclass(frozen=True)
class Rounded:
    """`parts` are what is kept, `scales` what they are multiplied with."""

    parts: torch.Tensor
    dtype: torch.dtype
    scales: torch.Tensor | None = None
    count: int = 0

    @property
    def nbytes(self) -> int:
        return self.parts.nbytes + (self.scales.nbytes if self.scales is not None else 0)

    def restore(self) -> torch.Tensor:
        vector = self.parts.to(self.dtype)
        if self.scales is None:
            return vector
        return vector.sub_(vector.sign(), alpha=0.5).mul_(self.scales).view(-1)[: self.count]


class Half:
    """float16; finite values beyond its range become its largest."""

    is_bounded = False
    floats_only = True

    def keep(self, vector: torch.Tensor, bound: float) -> Kept | None:
        if vector.element_size() < 4:
            return None
        half = vector.half()
        if half.isinf().any():
            half = vector.clamp(-LARGEST_HALF, LARGEST_HALF).where(vector.isfinite(), vector).half()
        return Rounded(half, vector.dtype)


class Int8:
    """Steps of a 127th of each row's largest magnitude, of which the middle is restored; zeros and signs stay. With
    infinities or NaN the vector is kept as it is."""

    is_bounded = False
    floats_only = True

    def keep(self, vector: torch.Tensor, bound: float) -> Kept | None:
        count = vector.numel()
        rows = torch.nn.functional.pad(vector, (0, -count % ROW)).view(-1, ROW)
        scales = rows.abs().amax(dim=1, keepdim=True).float() / 127
        if not bool(scales.isfinite().all()):
            return None
        steps = rows / scales.clamp(min=torch.finfo(torch.float32).tiny)
        numbers = steps.abs().ceil_().clamp_(max=127).mul_(steps.sign()).to(torch.int8)
        return Rounded(numbers, vector.dtype, scales.to(vector.dtype), count)


@dataclass(frozen=True)
class OnHost:
    """A copy of a CUDA tensor in pinned memory."""

    copy: torch.Tensor
    device: torch.device
    nbytes = 0

    def restore(self) -> torch.Tensor:
        return self.copy.to(self.device, non_blocking=True)


class InFile:
    """A vector of a CPU's tensor in the file of `Host`."""

    nbytes = 0

    def __init__(self, host: Host, vector: torch.Tensor):
        self._host, self._dtype = host, vector.dtype
        self._data = host.write(vector.view(torch.uint8).numpy())
        weakref.finalize(self, host.release)

    def restore(self) -> torch.Tensor:
        vector = torch.empty(self._data.size, dtype=torch.uint8)
        vector.numpy()[:] = self._data
        return vector.view(self._dtype)


class Host:
    """Off the device: CUDA tensors to pinned memory, a CPU's to a memory-mapped file in `folder` (default: that for
    temporary files), which has no name and so is gone with the process. Nothing changes by that."""

    is_bounded = floats_only = False

    def __init__(self, folder: str | None = None):
        self._folder = folder
        self._file: Any = None
        self._end = self._users = 0

    def keep(self, vector: torch.Tensor, bound: float) -> Kept | None:
        if not vector.is_cuda:
            return InFile(self, vector)
        copy = torch.empty(vector.shape, dtype=vector.dtype, pin_memory=True)
        return OnHost(copy.copy_(vector), vector.device)

    def write(self, data: np.ndarray) -> np.ndarray:
        """The bytes, mapped from the end of the file."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
        self._users += 1
        self._file.seek(self._end)
        data.tofile(self._file)
        mapped = np.memmap(self._file, np.uint8, "r", offset=self._end, shape=data.shape)
        self._end += -(-data.size // 4096) * 4096
        return mapped

    def release(self) -> None:
        """One vector less; the file is empty when none is left."""
        self._users -= 1
        if not self._users:
            self._end = 0
            self._file.truncate(0)


class Nothing:
    """Tensors stay what they are."""

    is_bounded = floats_only = False

    def keep(self, vector: torch.Tensor, bound: float) -> Kept | None:
        return None


@dataclass(frozen=True)
class Bits:
    """Bools of the CPU, eight a byte."""

    packed: torch.Tensor
    count: int

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes

    def restore(self) -> torch.Tensor:
        return torch.from_numpy(np.unpackbits(self.packed.numpy(), count=self.count)).view(torch.bool)


def narrowed(vector: torch.Tensor) -> Kept | None:
    """Integers, exactly, in as few bytes as the largest of them needs (max-pooling's indices are int64), and bools."""
    if vector.dtype == torch.bool:
        if vector.is_cuda:
            return None
        packed = torch.empty((vector.numel() + 7) // 8, dtype=torch.uint8)
        packed.numpy()[:] = np.packbits(vector.numpy())
        return Bits(packed, vector.numel())
    least, most = (int(end) for end in vector.aminmax())
    for dtype in (torch.uint8, torch.int16, torch.int32):
        limits = torch.iinfo(dtype)
        if limits.min <= least and most <= limits.max and dtype.itemsize < vector.element_size():
            return Rounded(vector.to(dtype), vector.dtype)
    return None


CODECS: dict[str, Any] = {
    "levels": lambda: Bounded(streams.Levels()),
    "szx": lambda: Bounded(streams.SzxOfOthers()),
    "fp16": Half,
    "int8": Int8,
    "host": Host,
    "none": Nothing,
}
"""Name → what makes one."""
