"""Counter-based random numbers: the i-th number of a key is computed from i and the key alone, so that loops vectorize
and any rank can draw what another drew."""

from typing import Any

import numpy as np

from switchml.runtime.jit import kernel


def halves(key: int) -> tuple[np.uint32, np.uint32]:
    """A 64-bit key (`StepContext.shared_key`, `StepContext.private_key`) as the kernels take it."""
    return np.uint32(key & 0xFFFFFFFF), np.uint32(key >> 32 & 0xFFFFFFFF)


@kernel(inline=True)
def mix(i: Any, low: np.uint32, high: np.uint32) -> np.uint32:
    """32 random bits for place i of a key: three rounds of multiply, add and shift."""
    h = np.uint32(np.uint32(i) * np.uint32(0x9E3779B1) + low)
    h = np.uint32((h ^ (h >> np.uint32(16))) * np.uint32(0x21F0AAAD))
    h = np.uint32((h ^ (h >> np.uint32(15))) + high)
    h = np.uint32((h ^ (h >> np.uint32(13))) * np.uint32(0x735A2D97))
    return np.uint32(h ^ (h >> np.uint32(15)))


@kernel(inline=True)
def uniform(i: Any, low: np.uint32, high: np.uint32) -> np.float32:
    """float32 in [0, 1), a multiple of 2^-24, for place i of a key."""
    return np.float32(mix(i, low, high) >> np.uint32(8)) * np.float32(2.0**-24)


def words(count: int, key: int) -> np.ndarray:
    """uint32[count], the first random words of a key."""
    values = np.empty(count, np.uint32)
    _fill(*halves(key), values)
    return values


@kernel
def _fill(low: np.uint32, high: np.uint32, values: np.ndarray) -> None:
    for i in range(values.size):
        values[i] = mix(i, low, high)
