"""The randomized Hadamard transform: a rotation after which the elements of any vector are approximately normally
distributed.

Blocks of `block` elements (a power of two) are multiplied by random signs and by the Hadamard matrix over the square
root of its size, in n log2(block) additions. Lengths and inner products are preserved.
"""

import math

import numpy as np

from switchml.codecs.noise import halves, mix
from switchml.runtime.jit import kernel


def rotate(x: np.ndarray, block: int, key: int) -> np.ndarray:
    """Rotate x, float32[n], padded with zeros to whole blocks."""
    y = np.zeros(-(-x.size // block) * block, np.float32)
    y[: x.size] = x
    _signs(*halves(key), y)
    _transform(y, block, np.float32(1 / math.sqrt(block)))
    return y


def rotate_back(y: np.ndarray, block: int, key: int, n: int) -> np.ndarray:
    """Invert `rotate` and return float32[n]; y is not modified."""
    x = y.copy()
    _transform(x, block, np.float32(1 / math.sqrt(block)))
    _signs(*halves(key), x)
    return x[:n]


@kernel
def _signs(low: np.uint32, high: np.uint32, y: np.ndarray) -> None:
    bits = y.view(np.uint32)
    for i in range(y.size):
        bits[i] ^= mix(i, low, high) & np.uint32(0x80000000)


@kernel
def _transform(y: np.ndarray, block: int, scale: np.float32) -> None:
    """Transform all blocks in place; the first three stages are combined in registers."""
    for start in range(0, y.size, block):
        some = y[start : start + block]
        for j in range(block // 8):
            x = some[8 * j : 8 * j + 8]
            a, b, c, d = x[0] + x[1], x[0] - x[1], x[2] + x[3], x[2] - x[3]
            e, f, g, h = x[4] + x[5], x[4] - x[5], x[6] + x[7], x[6] - x[7]
            a, b, c, d = (a + c) * scale, (b + d) * scale, (a - c) * scale, (b - d) * scale
            e, f, g, h = (e + g) * scale, (f + h) * scale, (e - g) * scale, (f - h) * scale
            x[0], x[1], x[2], x[3] = a + e, b + f, c + g, d + h
            x[4], x[5], x[6], x[7] = a - e, b - f, c - g, d - h
        half = 8
        while half < block:
            for j in range(block // (2 * half)):
                upper = some[2 * half * j : 2 * half * j + half]
                lower = some[2 * half * j + half : 2 * half * (j + 1)]
                for i in range(half):
                    a, b = upper[i], lower[i]
                    upper[i] = a + b
                    lower[i] = a - b
            half *= 2
