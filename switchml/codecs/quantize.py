"""What quantizers share: norms that show what is not finite, and dithering, which rounds up or down at random so that
the mean is right.

A vector (or bucket) that holds an infinity or NaN has a norm that says so; its levels are 0, and it decodes to NaN:
0 times infinity, or NaN.
"""

from __future__ import annotations

import math

import numpy as np

from switchml.codecs.noise import uniform
from switchml.runtime.jit import kernel


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
    largest_value = np.empty(1, np.float32)
    largest_bits = largest_value.view(np.uint32)
    for b in range(norms.size):
        some = x[b * bucket : (b + 1) * bucket]
        if is_l2:
            total = 0.0
            for i in range(some.size):
                total += np.float64(some[i]) * np.float64(some[i])
            norms[b] = math.sqrt(total)
        else:
            bits = some.view(np.uint32)
            most = np.uint32(0)
            for i in range(some.size):
                most = max(most, bits[i] & np.uint32(0x7FFFFFFF))
            largest_bits[0] = most
            norms[b] = largest_value[0]


@kernel
def dither(x, norms, bucket, levels, low, high, out):
    """Signed levels (int16[n]) of x, float32[n], whose magnitudes are at most their bucket's norm.

    The level of a magnitude m is m / norm * levels, rounded up with the probability of its fraction.
    """
    for b in range(norms.size):
        some, some_out = x[b * bucket : (b + 1) * bucket], out[b * bucket : (b + 1) * bucket]
        norm, first = norms[b], np.uint32(b * bucket)
        if not (norm > 0 and norm <= np.float32(3.4028235e38)):
            some_out[:] = 0
            continue
        for i in range(some.size):
            exact = min(abs(some[i]) / norm, np.float32(1)) * np.float32(levels)
            below = np.int32(exact)
            chance = uniform(np.uint32(first + np.uint32(i)), low, high)
            level = np.int32(below + np.int32(chance < exact - np.float32(below)))
            some_out[i] = np.int16(-level if some[i] < 0 else level)


@kernel
def undither(levels, norms, bucket, count, x):
    """x, float32[n], of signed levels (int16[n], or the lanes of a sum): level / count * norm."""
    inverse = np.float32(1 / count)
    for b in range(norms.size):
        some, some_levels = x[b * bucket : (b + 1) * bucket], levels[b * bucket : (b + 1) * bucket]
        norm = norms[b]
        for i in range(some.size):
            some[i] = np.float32(some_levels[i]) * inverse * norm
