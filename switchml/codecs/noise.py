"""Counter-based random numbers: the i-th number of a key is computed from i and the key alone, so that loops vectorize
and any rank can reproduce another's numbers."""

from typing import Any

import numpy as np

from switchml.runtime.jit import kernel


def halves(key: int) -> tuple[np.uint32, np.uint32]:
    """Split a 64-bit key (`StepContext.shared_key`, `StepContext.private_key`) into the arguments of the kernels."""
    return np.uint32(key & 0xFFFFFFFF), np.uint32(key >> 32 & 0xFFFFFFFF)


@kernel(inline=True)
def mix(i: Any, low: np.uint32, high: np.uint32) -> np.uint32:
    """Return 32 random bits for index i of a key: three rounds of multiply, add and shift."""
    h = np.uint32(np.uint32(i) * np.uint32(0x9E3779B1) + low)
    h = np.uint32((h ^ (h >> np.uint32(16))) * np.uint32(0x21F0AAAD))
    h = np.uint32((h ^ (h >> np.uint32(15))) + high)
    h = np.uint32((h ^ (h >> np.uint32(13))) * np.uint32(0x735A2D97))
    return np.uint32(h ^ (h >> np.uint32(15)))


@kernel(inline=True)
def uniform(i: Any, low: np.uint32, high: np.uint32) -> np.float32:
    """Return a float32 in [0, 1), a multiple of 2^-24, for index i of a key."""
    return np.float32(mix(i, low, high) >> np.uint32(8)) * np.float32(2.0**-24)


def words(count: int, key: int) -> np.ndarray:
    """Return the first `count` random words of a key, uint32[count]."""
    values = np.empty(count, np.uint32)
    _fill(*halves(key), values)
    return values


@kernel
def _fill(low: np.uint32, high: np.uint32, values: np.ndarray) -> None:
    for i in range(values.size):
        values[i] = mix(i, low, high)
