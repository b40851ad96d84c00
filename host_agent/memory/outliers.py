"""Outliers of a saved vector, kept apart from the rest, exactly: masks put -10,000 or the least float that there is
among logits of 5, and a bound or a scale that is made for both is too large for the logits.

Outliers are infinities, NaN, and what lies beyond a gap: no magnitude in `GAP` octaves, and above it nothing below
2^`BEYOND`. Where the density of magnitudes is smooth, the odds of such a gap above n elements are less than e^(-7n).
"""

import functools
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from host_agent.memory import device_bits
from host_agent.memory.codecs import Bits, CompressedTensor, packed
from host_agent.memory.parts import StoredVector, parts_of
from switchml.runtime.jit import compile_once, kernel

GAP = 3
"""Octaves without an element."""
BEYOND = 4
"""Less than 2^4 is no outlier: errors of the rest, a share of 1 at most, are small beside it."""
FEWEST = 8
"""Elements below a gap: a few may be small by chance."""
_BIAS, _ODD = 127, 255
"""Of float32's exponents; that of infinities and NaN."""


@dataclass(frozen=True)
class Outliers(StoredVector):
    """`mask`: bool[n], where they are. `values`: theirs, in order, or one that all have."""

    mask: Bits
    values: torch.Tensor
    count: int

    def put(self, vector: torch.Tensor) -> torch.Tensor:
        """Write them where they were."""
        where = device_bits.places(self.mask.restore(), self.count)
        return vector.index_copy_(0, where, self.values.expand(self.count))

    def tensors(self) -> list[torch.Tensor]:
        return [*self.mask.tensors(), self.values]


@dataclass(frozen=True)
class WithOutliers(StoredVector):
    """A vector of which `rest` has all but the outliers."""

    rest: CompressedTensor
    outliers: Outliers

    def restore(self) -> torch.Tensor:
        return self.outliers.put(self.rest.restore())

    def tensors(self) -> list[torch.Tensor]:
        return [*self.rest.tensors(), *self.outliers.tensors()]


def apart(vector: torch.Tensor) -> Generator[torch.Tensor, list[Any], tuple[torch.Tensor, Outliers | None]]:
    """A coroutine (`codecs.py`): of floats, contiguous, the rest, with zeros in the outliers' place, and the outliers.
    The vector itself and None, if there are none."""
    limit = _limit((yield _octaves(vector)))
    if limit is None:
        return vector, None
    mask = torch.cat([~(part.float().abs() < limit) for part in parts_of(vector)])
    count = int((yield mask.sum().view(1))[0])
    values = vector.index_select(0, device_bits.places(mask, count))
    (are_alike,) = yield (values == values[0]).all().view(1)
    if are_alike:
        values = values[:1].clone()
    return vector.masked_fill(mask, 0), Outliers((yield from packed(mask)), values, count)


def _limit(counts: list[int]) -> float | None:
    """What outliers are not below; None, if there are none. `counts`: elements of each exponent of float32."""
    below = empty = 0
    for exponent in range(1, _ODD):
        if not counts[exponent]:
            empty += 1
            continue
        if empty >= GAP and below >= FEWEST and exponent - _BIAS >= BEYOND:
            return float(2.0 ** (exponent - _BIAS))
        below += counts[exponent]
        empty = 0
    return float("inf") if counts[_ODD] else None


def _octaves(vector: torch.Tensor) -> torch.Tensor:
    """int64[256]: how many elements have each exponent of float32; the first counts zeros and denormals."""
    if vector.is_cuda:
        return _octaves_on_device(vector)
    _ready()
    found = np.zeros(256, np.int64)
    for part in parts_of(vector):
        _count(part.float().numpy().view(np.uint32), found)
    return torch.from_numpy(found)


def _octaves_on_device(vector: torch.Tensor) -> torch.Tensor:
    exponents = ((part.float().view(torch.int32) >> 23) & 0xFF for part in parts_of(vector))
    return torch.stack([some.float().histc(256, 0, 256).long() for some in exponents]).sum(0)


@functools.cache
def _ready() -> None:
    compile_once(_count, np.zeros(1, np.uint32), np.zeros(256, np.int64))


@kernel
def _count(bits: np.ndarray, counts: np.ndarray) -> None:
    """Add float32's exponents to counts, int64[256]. Four tables: neighbours of one exponent need not wait for each
    other."""
    tables = np.zeros((4, 256), np.int64)
    whole = bits.size // 4 * 4
    for i in range(0, whole, 4):
        for k in range(4):
            tables[k, (bits[i + k] >> np.uint32(23)) & np.uint32(0xFF)] += 1
    for i in range(whole, bits.size):
        tables[0, (bits[i] >> np.uint32(23)) & np.uint32(0xFF)] += 1
    for i in range(256):
        counts[i] += tables[0, i] + tables[1, i] + tables[2, i] + tables[3, i]
