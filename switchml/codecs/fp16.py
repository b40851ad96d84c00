"""IEEE half precision, as sent by mixed-precision training and by torch's `fp16_compress_hook`."""

from dataclasses import dataclass

import numpy as np

from switchml.codecs.base import Array, Floats, FloatSum
from switchml.runtime.jit import kernel


@dataclass(frozen=True)
class Fp16(FloatSum):
    """1. Round every element to the nearest float16 (beyond ±65504: infinity; NaN stays NaN).
    2. The aggregator adds the rounded values.
    3. Divide by the number of ranks.

    Relative error at most 2^-11 down to 6.1e-5, absolute error at most 2^-25 below.
    """

    name = "fp16"
    number = 1
    floats = "float16"

    def round(self, x: Floats) -> Array:
        halves = np.empty(x.size, np.uint16)
        _narrow(x.view(np.uint32), halves)
        return halves

    def widen(self, rounded: Array) -> Floats:
        x = np.empty(rounded.size, np.float32)
        _widen(rounded, x.view(np.uint32))
        return x


@kernel
def _narrow(floats: np.ndarray, halves: np.ndarray) -> None:
    """Convert float32 bits (uint32[n]) to float16 bits (uint16[n]), rounding to nearest even."""
    for i in range(floats.size):
        sign = np.uint32((floats[i] >> np.uint32(16)) & np.uint32(0x8000))
        magnitude = np.uint32(floats[i] & np.uint32(0x7FFFFFFF))
        # Normal: change the exponent's bias from 127 to 15, and round at bit 13; too large numbers become infinity.
        odd = np.uint32((magnitude >> np.uint32(13)) & np.uint32(1))
        normal = np.uint32(np.uint32(magnitude - np.uint32(0x38000000) + np.uint32(0xFFF) + odd) >> np.uint32(13))
        normal = min(normal, np.uint32(0x7C00))
        # Denormal: shift the mantissa, with its hidden bit, to multiples of 2^-24, and round there.
        shift = np.uint32(min(np.uint32(126) - min(magnitude >> np.uint32(23), np.uint32(113)), np.uint32(31)))
        mantissa = np.uint32((magnitude & np.uint32(0x7FFFFF)) | np.uint32(0x800000))
        half = np.uint32(np.uint32(1) << np.uint32(shift - np.uint32(1)))
        odd = np.uint32((mantissa >> shift) & np.uint32(1))
        denormal = np.uint32(np.uint32(mantissa + half - np.uint32(1) + odd) >> shift)
        result = normal if magnitude >= np.uint32(0x38800000) else denormal
        if magnitude > np.uint32(0x7F800000):
            result = np.uint32(0x7E00)
        halves[i] = np.uint16(sign | result)


@kernel
def _widen(halves: np.ndarray, bits: np.ndarray) -> None:
    """Convert float16 bits (uint16[n]) to float32 bits (uint32[n]), exactly."""
    small = np.empty(256, np.float32)
    small_bits = small.view(np.uint32)
    for start in range(0, halves.size, small.size):
        some, out = halves[start : start + small.size], bits[start : start + small.size]
        for i in range(some.size):  # value of a denormal: its mantissa times 2^-24
            small[i] = np.float32(np.int32(some[i]) & np.int32(0x3FF)) * np.float32(2.0**-24)
        for i in range(some.size):
            magnitude = np.uint32(some[i]) & np.uint32(0x7FFF)
            # Change the exponent's bias from 15 to 127; once more for infinities and NaN.
            moved = np.uint32((magnitude << np.uint32(13)) + np.uint32(0x38000000))
            moved = np.uint32(moved + np.uint32(0x38000000)) if magnitude >= np.uint32(0x7C00) else moved
            moved = small_bits[i] if magnitude < np.uint32(0x400) else moved
            out[i] = moved | np.uint32((np.uint32(some[i]) & np.uint32(0x8000)) << np.uint32(16))
