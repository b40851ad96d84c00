"""What quantizers share: norms that show what is not finite, and dithering, which rounds up or down at random so that
the mean is right.

A vector (or bucket) that holds an infinity or NaN has a norm that says so; its levels are 0, and it decodes to NaN:
0 times infinity, or NaN.
"""

from __future__ import annotations

import math

import numpy as np

from ..jit import kernel
from .noise import uniform


def lanes(most: int, world: int) -> str:
    """The narrowest integers that hold the sum of `world` numbers of magnitudes up to `most`."""
    return next(name for name in ("int8", "int16", "int32") if most * world <= np.iinfo(name).max)


def largest(x: np.ndarray) -> np.float32:
    """The largest magnitude in x, float32[n]; NaN if there is one, 0 if x is empty."""
    return np.uint32(_largest(x.view(np.uint32))).view(np.float32)


@kernel
def _largest(bits):
    most = np.uint32(0)
    for i in range(bits.size):
        magnitude = bits[i] & np.uint32(0x7FFFFFFF)
        most = max(most, magnitude)
    return most


@kernel
def bucket_norms(x, bucket, is_l2, norms):
    """The Euclidean norm (or the largest magnitude) of each `bucket` elements of x, float32[n], to norms, float32."""
    for b in range(norms.size):
        end = min((b + 1) * bucket, x.size)
        if is_l2:
            total = 0.0
            for i in range(b * bucket, end):
                total += np.float64(x[i]) * np.float64(x[i])
            norms[b] = math.sqrt(total)
        else:
            most = np.float32(0)
            for i in range(b * bucket, end):
                magnitude = abs(x[i])
                most = magnitude if magnitude > most or magnitude != magnitude else most
            norms[b] = most


@kernel
def dither(x, norms, bucket, levels, low, high, out):
    """Signed levels (int16[n]) of x, float32[n], whose magnitudes are at most their bucket's norm.

    The level of a magnitude m is m / norm * levels, rounded up with the probability of its fraction.
    """
    for b in range(norms.size):
        norm = norms[b]
        start, end = b * bucket, min((b + 1) * bucket, x.size)
        if not (norm > 0 and norm <= np.float32(3.4028235e38)):
            out[start:end] = 0
            continue
        for i in range(start, end):
            exact = min(abs(x[i]) / norm, np.float32(1)) * np.float32(levels)
            below = np.int32(exact)
            level = below + (uniform(i, low, high) < exact - np.float32(below))
            out[i] = np.int16(-level if x[i] < 0 else level)


@kernel
def undither(levels, norms, bucket, count, x):
    """x, float32[n], of signed levels (int16[n], or the lanes of a sum): level / count * norm."""
    inverse = np.float32(1 / count)
    for b in range(norms.size):
        for i in range(b * bucket, min((b + 1) * bucket, x.size)):
            x[i] = np.float32(levels[i]) * inverse * norms[b]
