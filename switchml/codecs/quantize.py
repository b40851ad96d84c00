"""Common parts of quantizers: norms that propagate infinities and NaN, dithering (random rounding up or down that
preserves the mean), and the exchange of integers with a shared scale.

The norm of a vector (or bucket) that holds an infinity or NaN is not finite; its levels are 0, and it decodes to NaN: 0
times infinity, or NaN.
"""

import math
from typing import Any

import numpy as np

from switchml.codecs import bitpack
from switchml.codecs.base import SUM, Array, Bytes, Codec, Exchange, Floats, Max, Outcome, StepContext, Sum
from switchml.codecs.noise import halves, uniform
from switchml.errors import PayloadError
from switchml.runtime.jit import kernel


class SharedScale(Codec):
    """Base of the codecs whose ranks agree on one scale, so that the aggregator can add their integers.

    1. Every rank prepares its vector and computes its scale; the ranks take the maximum.
    2. Every rank converts its vector to integers of magnitudes up to `most`.
    3. The aggregator adds them, in the narrowest lanes that hold the sum.
    4. The mean is the dequantized sum, divided by the number of ranks.
    """

    aggregation = SUM

    @property
    def most(self) -> int:
        """Largest magnitude of the integers."""
        raise NotImplementedError

    def prepare(self, x: Floats, context: StepContext) -> tuple[Floats, Floats]:
        """Return the vector to quantize (not necessarily x itself), and its scale, float32[1]."""
        return x, np.array([largest(x)])

    def quantize(self, prepared: Floats, scale: Floats, context: StepContext) -> Array:
        """Return the quantized vector, int16[n]."""
        return dithered(prepared, scale, self.most, context)

    def dequantize(self, integers: Array, scale: Floats, world: int, key: int, n: int) -> Floats:
        """Return the mean, float32[n], from a sum of integers of `world` ranks. `key`: `StepContext.shared_key`."""
        raise NotImplementedError

    def exchange(self, state: Any, x: Floats, context: StepContext) -> Exchange:
        prepared, scale = self.prepare(x, context)
        scale = yield Max(scale)
        integers = self.quantize(prepared, scale, context)
        wire = lanes(self.most, context.world)
        total = yield Sum(integers.astype(wire), wire)
        key, n = context.shared_key(), x.size
        mean = self.dequantize(total, scale, context.world, key, n)
        return Outcome(mean, self.dequantize(integers, scale, 1, key, n))


def lanes(most: int, world: int) -> str:
    """Return the narrowest integer type that holds the sum of `world` numbers of magnitudes up to `most`."""
    return next(name for name in ("int8", "int16", "int32") if most * world <= np.iinfo(name).max)


def dithered(x: Floats, norms: Floats, most: int, context: StepContext, bucket: int = 0) -> Array:
    """Return the signed levels of x up to `most`, int16[n]. Each `bucket` elements share a norm; 0: all elements share
    one."""
    levels = np.empty(x.size, np.int16)
    dither(x, norms, bucket or max(x.size, 1), most, *halves(context.private_key()), levels)
    return levels


def undithered(levels: Array, norms: Floats, most: int, bucket: int = 0) -> Floats:
    """Return float32[n] from signed levels, or sums of them: level / most * norm."""
    x = np.empty(levels.size, np.float32)
    undither(levels, norms, bucket or max(x.size, 1), most, x)
    return x


def level_bytes(n: int, most: int) -> int:
    """Return the size of n packed levels."""
    return bitpack.packed_bytes(n, bitpack.width(2 * most + 1))


def pack_levels(levels: Array, most: int) -> Bytes:
    """Pack signed levels (int16[n]) of magnitudes up to `most`, ceil(log2(2 * most + 1)) bits each."""
    return bitpack.pack((levels + np.int16(most)).view(np.uint16), bitpack.width(2 * most + 1))


def unpack_levels(codec: Codec, packed: Bytes, most: int, n: int) -> Array:
    """Invert `pack_levels`, and return int16[n]. Raises PayloadError if a magnitude is above `most`."""
    codes = bitpack.unpack(packed, bitpack.width(2 * most + 1), np.empty(n, np.uint16))
    if n and codes.max() > 2 * most:
        raise PayloadError(f"{codec.name}: a level of {int(codes.max()) - most}: expected at most {most}")
    return codes.view(np.int16) - np.int16(most)


def largest(x: np.ndarray) -> np.float32:
    """Return the largest magnitude in x, float32[n]; NaN if there is any, 0 if x is empty."""
    return np.uint32(_largest(x.view(np.uint32))).view(np.float32)


@kernel
def _largest(bits: np.ndarray) -> np.uint32:
    most = np.uint32(0)
    for i in range(bits.size):
        magnitude = bits[i] & np.uint32(0x7FFFFFFF)
        most = max(most, magnitude)
    return most


@kernel
def bucket_norms(x: np.ndarray, bucket: int, is_l2: bool, norms: np.ndarray) -> None:
    """Write the Euclidean norm (or the largest magnitude) of each `bucket` elements of x, float32[n], to norms,
    float32."""
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
def dither(
    x: np.ndarray, norms: np.ndarray, bucket: int, levels: int, low: np.uint32, high: np.uint32, out: np.ndarray
) -> None:
    """Write signed levels of x, float32[n], to `out`, int16[n]; magnitudes are at most their bucket's norm.

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
def undither(levels: np.ndarray, norms: np.ndarray, bucket: int, count: int, x: np.ndarray) -> None:
    """Write x, float32[n], from signed levels (int16[n], or the lanes of a sum): level / count * norm."""
    inverse = np.float32(1 / count)
    for b in range(norms.size):
        some, some_levels = x[b * bucket : (b + 1) * bucket], levels[b * bucket : (b + 1) * bucket]
        norm = norms[b]
        for i in range(some.size):
            some[i] = np.float32(some_levels[i]) * inverse * norm
