"""float32 in int16 and int8 lanes: two and four times the elements per packet, for jobs that prefer speed to precision.

A block of k elements is sent as `q = round_half_even(x * m / 2^Q)` with `m = (2^(bits-1) - 1) div n`, so that n of them
can't overflow, and `Q` the exact block exponent (no grid: there are too few bits). The sum is multiplied by `2^Q / m`.
With n ranks a value keeps about `bits - 1 - log2 n` bits below its block's maximum: 13 with int16 and 4 ranks, 5 with
int8.

With such narrow lanes a block's exponent changes from tensor to tensor, and a speculative round with a wrong exponent
is repeated. So a speculative exponent may be larger than needed, by up to the `spread` that the lanes can afford.
"""

from typing import Any

import numpy as np

from switchml.runtime.jit import Address, kernel
from switchml.runtime.memory import bswap16, f32_at, u8_at, u16_at

_LEAST, _MOST = 1e-30, 1e30
"""Scales in this range are applied in float32, others in float64."""


def steps(bits: int, workers: int) -> int:
    """m: number of quantization steps of a rank on each side of zero; 0 if the lanes can't hold the sum of all
    ranks."""
    return ((1 << (bits - 1)) - 1) // workers


def spread(steps: int) -> int:
    """Maximum amount by which the exponent of a speculative round may exceed what its block needs (docs/protocol.md,
    section 4): a step is then at most 2^spread times as large. Smaller for lanes with few steps."""
    return 4 if steps >= 1024 else 2 if steps >= 16 else 1 if steps >= 8 else 0


@kernel
def encode_int16(
    address: Address, count: int, lanes_address: Address, lanes: int, scale: float, finite_only: bool
) -> None:
    """Convert `count` float32 times `scale` to big-endian int16; remaining lanes are set to 0, as are values that
    aren't finite with `finite_only`."""
    x, out = f32_at(address, count), u16_at(lanes_address, lanes)
    if finite_only or not _LEAST <= scale <= _MOST:
        for i in range(count):
            out[i] = (
                bswap16(np.uint16(np.int16(np.rint(np.float64(x[i]) * scale)))) if np.isfinite(x[i]) else np.uint16(0)
            )
    else:
        for i in range(count):
            out[i] = bswap16(np.uint16(np.int16(np.rint(x[i] * np.float32(scale)))))
    for i in range(count, lanes):
        out[i] = 0


@kernel
def encode_int8(
    address: Address, count: int, lanes_address: Address, lanes: int, scale: float, finite_only: bool
) -> None:
    """`encode_int16` for int8."""
    x, out = f32_at(address, count), u8_at(lanes_address, lanes)
    if finite_only or not _LEAST <= scale <= _MOST:
        for i in range(count):
            out[i] = np.uint8(np.int8(np.rint(np.float64(x[i]) * scale))) if np.isfinite(x[i]) else np.uint8(0)
    else:
        for i in range(count):
            out[i] = np.uint8(np.int8(np.rint(x[i] * np.float32(scale))))
    for i in range(count, lanes):
        out[i] = 0


@kernel(forceinline=True)
def quotient(total: Any, divisor: int) -> Any:
    """A float64 sum divided by `divisor` as float32: the sum is rounded first, unless it exceeds float32's range, in
    which the quotient may still be."""
    whole = np.float32(total)
    return whole / np.float32(divisor) if np.isfinite(whole) else np.float32(total / divisor)


@kernel
def decode_int16(lanes_address: Address, address: Address, count: int, scale: float, divisor: int) -> None:
    """Convert sums in big-endian int16 lanes, times `scale`, divided by `divisor`, to float32 at `address`."""
    sums, x = u16_at(lanes_address, count), f32_at(address, count)
    if _LEAST <= scale <= _MOST:
        for i in range(count):
            x[i] = np.float32(np.int16(bswap16(sums[i]))) * np.float32(scale)
        if divisor != 1:
            for i in range(count):
                x[i] = x[i] / np.float32(divisor)
    else:
        for i in range(count):
            x[i] = quotient(np.float64(np.int16(bswap16(sums[i]))) * scale, divisor)


@kernel
def decode_int8(lanes_address: Address, address: Address, count: int, scale: float, divisor: int) -> None:
    """`decode_int16` for int8."""
    sums, x = u8_at(lanes_address, count), f32_at(address, count)
    if _LEAST <= scale <= _MOST:
        for i in range(count):
            x[i] = np.float32(np.int8(sums[i])) * np.float32(scale)
        if divisor != 1:
            for i in range(count):
                x[i] = x[i] / np.float32(divisor)
    else:
        for i in range(count):
            x[i] = quotient(np.float64(np.int8(sums[i])) * scale, divisor)
