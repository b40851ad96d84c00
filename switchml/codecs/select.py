"""Selection of the elements of a vector with the largest magnitudes, exactly, or above a threshold, as used by all
sparsifiers.

Magnitudes are compared as the integers of their bits, which orders floats, with infinities above all numbers and NaN
above those: values that are not finite are always selected, so that the receiver sees them.
"""

import numpy as np
import numpy.typing as npt

from switchml.codecs.base import Floats
from switchml.runtime.jit import kernel

_SMALL = 4096
"""Below this many elements NumPy's partition is equally fast."""

_SAMPLE = 8192
_GROUP = 16
"""Elements tested together: most groups contain no candidate, which a few instructions determine."""

MAGNITUDE = np.uint32(0x7FFFFFFF)


def top_k(x: np.ndarray, k: int) -> np.ndarray:
    """Return the indices (int64[k], ascending) of the k largest magnitudes of x, float32[n]; among equals, those of
    lower index.

    1. Estimate a threshold from a sample, slightly too low.
    2. Collect the elements that reach it.
    3. If these are not enough, or far too many, determine the threshold's upper 16 bits by a histogram of all elements,
       and collect again.
    4. Select exactly among the collected elements.
    """
    n = x.size
    k = min(k, n)
    if k == n:
        return np.arange(n, dtype=np.int64)
    if k <= 0:
        return np.empty(0, np.int64)
    bits = x.view(np.uint32)
    if n <= _SMALL:
        return _exactly(np.arange(n, dtype=np.int64), bits & MAGNITUDE, k)
    sample = bits[:: n // _SAMPLE or 1] & MAGNITUDE
    expected = sample.size * k / n
    place = sample.size - 1 - int(expected + 4 * np.sqrt(expected) + 4)
    if place >= 0:
        sample.partition(place)
        capacity = min(n, 3 * k + 8192)
        indices = np.empty(capacity + _GROUP, np.int64)
        count = _collect(bits, sample[place], indices)
        if k <= count <= capacity:
            indices = indices[:count]
            return _exactly(indices, bits[indices] & MAGNITUDE, k)
    counts = np.zeros(1 << 15, np.int64)
    _count(bits, counts)
    reaching = counts[::-1].cumsum()
    bin_from_top = int(np.searchsorted(reaching, k))
    indices = np.empty(int(reaching[bin_from_top]) + _GROUP, np.int64)
    indices = indices[: _collect(bits, np.uint32(((1 << 15) - 1 - bin_from_top) << 16), indices)]
    return _exactly(indices, bits[indices] & MAGNITUDE, k)


def ordered_bits(values: Floats) -> npt.NDArray[np.int32]:
    """Map float32[m] to int32[m] of the same order (NaN above all, -0 as 0); `floats_of` is the inverse."""
    bits = np.where(np.isnan(values), np.float32(np.nan), values + np.float32(0)).astype(np.float32).view(np.int32)
    return np.where(bits < 0, bits ^ np.int32(0x7FFFFFFF), bits)


def floats_of(ordered: npt.NDArray[np.int32]) -> Floats:
    """Map int32[m] in the order of floats back to float32[m]."""
    return np.where(ordered < 0, ordered ^ np.int32(0x7FFFFFFF), ordered).astype(np.int32).view(np.float32)


def _exactly(indices: np.ndarray, magnitudes: np.ndarray, k: int) -> np.ndarray:
    """Return the k of `indices` (ascending) with the largest `magnitudes`."""
    if k == indices.size:
        return indices.copy()
    threshold = np.partition(magnitudes, magnitudes.size - k)[magnitudes.size - k]
    is_above = magnitudes > threshold
    equals = np.flatnonzero(magnitudes == threshold)[: k - np.count_nonzero(is_above)]
    is_above[equals] = True
    chosen: np.ndarray = indices[is_above]
    return chosen


def above(x: np.ndarray, threshold: float) -> np.ndarray:
    """Return the indices (int64[…], ascending) of the elements of x, float32[n], whose magnitude is above `threshold`,
    or NaN."""
    bits = x.view(np.uint32)
    with np.errstate(over="ignore"):
        least = np.float32(max(threshold, 0)).view(np.uint32) + np.uint32(1)
    capacity = count_reaching(bits, least)
    indices = np.empty(capacity + _GROUP, np.int64)
    return indices[: _collect(bits, least, indices)]


@kernel
def count_reaching(bits: np.ndarray, threshold: np.uint32) -> int:
    """Return the number of magnitudes (bits of float32) that are at least `threshold` (uint32)."""
    count = 0
    for i in range(bits.size):
        count += (bits[i] & np.uint32(0x7FFFFFFF)) >= threshold
    return count


@kernel
def _collect(bits: np.ndarray, threshold: np.uint32, indices: np.ndarray) -> int:
    """Write the indices of magnitudes of at least `threshold` until `indices` is full; return their number.

    Writes unconditionally and then counts, for which it needs up to _GROUP extra entries at the end.
    """
    count, capacity = 0, indices.size - _GROUP
    whole = bits.size - bits.size % _GROUP
    for start in range(0, whole, _GROUP):
        some = bits[start : start + _GROUP]
        most = np.uint32(0)
        for i in range(_GROUP):
            most = max(most, some[i] & np.uint32(0x7FFFFFFF))
        if most >= threshold:
            if count > capacity:
                return count
            for i in range(_GROUP):
                indices[count] = start + i
                count += (some[i] & np.uint32(0x7FFFFFFF)) >= threshold
    for i in range(whole, bits.size):
        if (bits[i] & np.uint32(0x7FFFFFFF)) >= threshold:
            if count < indices.size:
                indices[count] = i
            count += 1
    return count


@kernel
def _count(bits: np.ndarray, counts: np.ndarray) -> None:
    """Compute the histogram of the magnitudes' upper 15 bits."""
    for i in range(bits.size):
        counts[(bits[i] >> np.uint32(16)) & np.uint32(0x7FFF)] += 1
