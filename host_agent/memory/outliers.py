"""Elements of a saved vector that are stored separately and losslessly.

Outliers: masked logits contain -10,000 or the lowest float among
values of 5, and a bound or a scale for both is too large for the logits.

Outliers are infinities, NaN, and magnitudes beyond a gap: no magnitude in `GAP` octaves, and all above it at least
2^`BEYOND`. If the density of magnitudes is smooth, the probability of such a gap above n elements is less than e^(-7n).
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
"""Width of the gap in octaves without an element."""
BEYOND = 4
"""Magnitudes below 2^4 are not outliers: errors of the rest, at most a share of 1, are small relative to them."""
FEWEST = 8
"""Minimum number of elements below a gap: a few may be small by chance."""
NEAR = 32
"""Distance from 0 and from 1, in bounds, within which elements are stored exactly by the rule PRECISE of
`operators.py`: relative errors of the others are at most a 32nd."""
MAX_NEAR = 0.25
"""Share of such elements above which a vector stays uncompressed."""
_BIAS, _ODD = 127, 255
"""Bias of float32's exponents; exponent of infinities and NaN."""


@dataclass(frozen=True)
class Outliers(StoredVector):
    """Outliers of a vector. `mask`: bool[n], their positions. `values`: their values, in order, or the one that all
    have."""

    mask: Bits
    values: torch.Tensor
    count: int

    def put(self, vector: torch.Tensor) -> torch.Tensor:
        """Write the outliers to their positions."""
        where = device_bits.places(self.mask.restore(), self.count)
        return vector.index_copy_(0, where, self.values.expand(self.count))

    def tensors(self) -> list[torch.Tensor]:
        return [*self.mask.tensors(), self.values]


@dataclass(frozen=True)
class WithOutliers(StoredVector):
    """A vector whose outliers are separate from the `rest`."""

    rest: CompressedTensor
    outliers: Outliers

    def restore(self) -> torch.Tensor:
        return self.outliers.put(self.rest.restore())

    def tensors(self) -> list[torch.Tensor]:
        return [*self.rest.tensors(), *self.outliers.tensors()]


def split_outliers(vector: torch.Tensor) -> Generator[torch.Tensor, list[Any], tuple[torch.Tensor, Outliers | None]]:
    """Coroutine (`codecs.py`) that separates the outliers of a contiguous vector of floats: the rest, with zeros at
    their positions, and the outliers. Returns the vector itself and None if there are none."""
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


def split_near(
    vector: torch.Tensor, of_zero: float, of_one: float
) -> Generator[torch.Tensor, list[Any], tuple[torch.Tensor, Outliers | None]]:
    """Coroutine that separates the elements nearer to 0 than `of_zero`, or whose magnitude is nearer to 1 than
    `of_one`: the rest, with zeros at their positions, and these. Returns the vector itself and None if there are
    none."""
    masks = []
    for part in parts_of(vector):
        size = part.float().abs()
        masks.append(((size < of_zero) & (size > 0)) | ((size - 1).abs() < of_one))
    mask = torch.cat(masks)
    count = int((yield mask.sum().view(1))[0])
    if count == 0:
        return vector, None
    values = vector.index_select(0, device_bits.places(mask, count))
    return vector.masked_fill(mask, 0), Outliers((yield from packed(mask)), values, count)


def _limit(counts: list[int]) -> float | None:
    """Minimum magnitude of outliers; None if there are none. `counts`: elements of each exponent of float32."""
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
    """int64[256]: number of elements with each exponent of float32; the first counts zeros and denormals."""
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
    """Add the number of each float32 exponent to counts, int64[256]. Four tables, since consecutive elements with equal
    exponents would otherwise wait for each other."""
    tables = np.zeros((4, 256), np.int64)
    whole = bits.size // 4 * 4
    for i in range(0, whole, 4):
        for k in range(4):
            tables[k, (bits[i + k] >> np.uint32(23)) & np.uint32(0xFF)] += 1
    for i in range(whole, bits.size):
        tables[0, (bits[i] >> np.uint32(23)) & np.uint32(0xFF)] += 1
    for i in range(256):
        counts[i] += tables[0, i] + tables[1, i] + tables[2, i] + tables[3, i]
