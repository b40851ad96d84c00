"""Numbers on the wire: conversion of tensors to integer lanes with block exponents, and of sums of lanes back to
tensors.

The rules are docs/protocol.md, sections 4 and 5. A block is one chunk. Scales are powers of two, so scaling does not
round, and a block's result depends on its values and its exponent only: every rank gets the same bits, whatever the
network did. Lanes are big-endian on the wire; encoding and decoding swap bytes. Compared with SwitchML's
cpu_exponent_quantizer (scale INT32_MAX / (n 2^e)) this gives up to three bits below float32's mantissa and defines
zeros, subnormals, infinities and NaN.

A format is the mapping of a tensor's elements to lanes: FLOAT32 (1 lane), FLOAT64 (3), all of 32 bits; INT32 and INT64
(one lane per round, digits.py), in sparse streams INT32_LIMBS (2) and INT64_LIMBS (4); FLOAT32_INT16 and FLOAT32_INT8
(one narrow lane, see narrow.py); those that end in _EXACT (one lane per round, and as many rounds as needed, see
exact.py). RAW bytes are sent unconverted (collectives.py).
"""

import math
from typing import Any

import numpy as np

from switchml.protocol import packet as wire_format
from switchml.protocol.digits import truncating_division
from switchml.protocol.halves import KINDS
from switchml.protocol.narrow import decode_int8, decode_int16, encode_int8, encode_int16, quotient, spread, steps
from switchml.runtime.jit import Address, int64, kernel
from switchml.runtime.memory import bswap32, f32_at, f64_at, float64_of_bits, i32_at, i64_at, u8_at, u32_at, u64_at

FLOAT32, FLOAT64, INT32, INT64, FLOAT32_INT16, FLOAT32_INT8 = range(6)
FLOAT32_EXACT, FLOAT64_EXACT, FLOAT16_EXACT, BFLOAT16_EXACT, RAW, INT32_LIMBS, INT64_LIMBS = range(6, 13)
FORMATS = {
    "float32": FLOAT32,
    "float64": FLOAT64,
    "int32": INT32,
    "int64": INT64,
    "float32/int16": FLOAT32_INT16,
    "float32/int8": FLOAT32_INT8,
    "float32/exact": FLOAT32_EXACT,
    "float64/exact": FLOAT64_EXACT,
    "float16/exact": FLOAT16_EXACT,
    "bfloat16/exact": BFLOAT16_EXACT,
    "raw": RAW,
    "int32/limbs": INT32_LIMBS,
    "int64/limbs": INT64_LIMBS,
}
FORMATS |= {f"{half}{wire}": FORMATS[f"float32{wire}"] for half in KINDS for wire in ("", "/int16", "/int8")}
"""Half precision is widened to float32 for encoding, and sums are rounded back (halves.py)."""
LANES = (1, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4)
"""Number of lanes per element, by format."""
ITEM_BYTES = (4, 8, 4, 8, 4, 4, 4, 8, 4, 4, 1, 4, 8)
LANE_BYTES = (4, 4, 4, 4, 2, 1, 4, 4, 4, 4, 1, 4, 4)
PRECISION = (24, 53, 0, 0, 24, 24, 24, 53, 11, 8, 0, 0, 0)
"""Significant bits of an element, by format; 0 for integers."""
WIRES = (
    wire_format.WIRE_INT32,
    wire_format.WIRE_INT32,
    wire_format.WIRE_INT32,
    wire_format.WIRE_INT32,
    wire_format.WIRE_INT16,
    wire_format.WIRE_INT8,
    wire_format.WIRE_INT32,
    wire_format.WIRE_INT32,
    wire_format.WIRE_INT32,
    wire_format.WIRE_INT32,
    wire_format.WIRE_INT32,
    wire_format.WIRE_INT32,
    wire_format.WIRE_INT32,
)
"""Type of a format's lanes on the wire."""

LOWEST, HIGHEST = -126, 128
"""Range of float32 block exponents: subnormals use the lowest, values from 2^127 on need the highest."""
GRID = 4
"""Spacing of canonical exponents of int32 lanes."""
_EXACT_LOWEST = -116
"""Least exponent of a first round of exact sums. Its grid (-116, -112, …, 128) differs from float32's, except for 128.
"""
_FLOAT64_LOWEST, _FLOAT64_GRID = -1074, 17
_FLOAT64_FIRST = -127
"""Codes of float64 are odd, -127, -125, …, 121, one for each 17 binades; those of float32 are even."""

POSITIVE_INFINITY, NEGATIVE_INFINITY, NOT_A_NUMBER = 1, 1 << 10, 1 << 20
"""Value that a non-finite element adds to its lane in a CLASSIFY round: three counters of up to 1023 ranks in one lane.
"""

_LANES = np.array(LANES, np.int64)
_LANE_BYTES = np.array(LANE_BYTES, np.int64)
_ITEM_BYTES = np.array(ITEM_BYTES, np.int64)


def guard_bits(workers: int) -> int:
    """L: number of free bits so that the sum of `workers` lanes fits int32."""
    return (workers - 1).bit_length()


def headroom(workers: int) -> tuple[int, int, int]:
    """Parameters of `encode` and `decode` that depend on the world size, by wire: guard bits, and the steps of int16
    and int8 (0: too many ranks)."""
    return guard_bits(workers), steps(16, workers), steps(8, workers)


def spreads(workers: int) -> tuple[int, int, int]:
    """M, by wire: amount by which the code of a speculative round may exceed the canonical one."""
    return 0, spread(steps(16, workers)), spread(steps(8, workers))


@kernel(inline=True)
def is_narrow(fmt: int) -> bool:
    return fmt in (FLOAT32_INT16, FLOAT32_INT8)


@kernel(inline=True)
def has_digits(fmt: int) -> bool:
    """Whether a format is handled by digits.py."""
    return fmt in (INT32, INT64)


@kernel(inline=True)
def is_integer(fmt: int) -> bool:
    return fmt in (INT32, INT64, INT32_LIMBS, INT64_LIMBS)


@kernel(inline=True)
def is_exact(fmt: int) -> bool:
    return FLOAT32_EXACT <= fmt <= BFLOAT16_EXACT


@kernel(inline=True)
def _is_float64(fmt: int) -> bool:
    return fmt in (FLOAT64, FLOAT64_EXACT)


@kernel(forceinline=True)
def canonical(code: int, fmt: int) -> int:
    """The exponent code that all ranks must use for a block whose values need `code` (-128..126).

    No two formats have one in common, so that ranks whose tensors differ in dtype always differ in `used`, which the
    aggregator flags.
    """
    if is_narrow(fmt):
        return code  # too few bits for a grid; the packet's type distinguishes these formats from the others
    if is_integer(fmt):
        return wire_format.CODE_INTEGER if _ITEM_BYTES[fmt] == 4 else wire_format.CODE_INTEGER64
    if _is_float64(fmt):
        return code | 1
    exponent = code + wire_format.CODE_BIAS
    if is_exact(fmt):
        exponent = _EXACT_LOWEST + GRID * max((exponent - _EXACT_LOWEST + GRID - 1) // GRID, 0)
    else:
        exponent = min(HIGHEST, LOWEST + GRID * ((exponent - LOWEST + GRID - 1) // GRID))
    return exponent - wire_format.CODE_BIAS


@kernel(inline=True)
def exp2(exponent: Any) -> Any:
    """2.0**exponent for -1022 <= exponent <= 1023, exactly."""
    return float64_of_bits(int64((exponent + 1023) << 52))


@kernel
def code32(bits: int) -> int:
    """Exponent code of the largest magnitude, given as float32 bits without the sign; 127 if it is not finite."""
    if bits >= 0x7F800000:
        return wire_format.CODE_UNKNOWN
    if bits == 0:
        return wire_format.CODE_ZERO
    return max(LOWEST, (bits >> 23) - 126) - wire_format.CODE_BIAS


@kernel
def _code64(bits: int) -> int:
    if bits >= 0x7FF0000000000000:
        return wire_format.CODE_UNKNOWN
    if bits == 0:
        return wire_format.CODE_ZERO
    exponent = (bits >> 52) - 1022
    if bits >> 52 == 0:  # subnormal: 2^-1074 times an integer
        exponent = -1074
        while bits:
            bits >>= 1
            exponent += 1
    return code64(exponent)


@kernel
def code64(exponent: int) -> int:
    """float64's exponent code of magnitudes below 2^exponent."""
    return 2 * ((exponent - _FLOAT64_LOWEST + _FLOAT64_GRID - 1) // _FLOAT64_GRID) + _FLOAT64_FIRST


@kernel
def exponent64(code: int) -> int:
    """Q: exponent of a canonical float64 code."""
    return (code - _FLOAT64_FIRST) // 2 * _FLOAT64_GRID + _FLOAT64_LOWEST


@kernel
def need_of(fmt: int, address: Address, count: int, finite_only: bool) -> int:
    """Exponent code that `count` elements at `address` need; 127 if one is not finite (never with `finite_only`)."""
    if not _is_float64(fmt) and not is_integer(fmt):
        words = u32_at(address, count)
        top = np.uint32(0)
        for i in range(count):
            bits = np.uint32(words[i] & np.uint32(0x7FFFFFFF))
            top = max(top, bits)
        if finite_only and top >= 0x7F800000:
            top = np.uint32(0)
            for i in range(count):
                bits = np.uint32(words[i] & np.uint32(0x7FFFFFFF))
                if bits < 0x7F800000:
                    top = max(top, bits)
        return code32(int64(top))
    if _is_float64(fmt):
        longs = u64_at(address, count)
        most = int64(0)
        for i in range(count):
            magnitude = int64(longs[i] & np.uint64(0x7FFFFFFFFFFFFFFF))
            if not finite_only or magnitude < 0x7FF0000000000000:
                most = max(most, magnitude)
        return _code64(most)
    return wire_format.CODE_ZERO


@kernel
def _encode32(address: Address, count: int, lanes: np.ndarray, exponent: int, guard: int) -> None:
    """Convert finite float32 to lanes at 2^(31 - guard - exponent).

    The limit matters with 8 guard bits only: there 2^exponent's next lower float32 would be rounded up to one more than
    n lanes may have.
    """
    shift = 31 - guard - exponent
    x = f32_at(address, count)
    limit = np.float32(exp2(31 - guard)) - np.float32(1.0)
    if shift <= 127:
        scale = np.float32(exp2(shift))
        for i in range(count):
            lanes[i] = bswap32(np.uint32(np.int32(min(np.rint(x[i] * scale), limit))))
    else:
        wide = exp2(shift)
        for i in range(count):
            lanes[i] = bswap32(np.uint32(np.int32(min(np.rint(np.float64(x[i]) * wide), np.float64(limit)))))


@kernel
def _encode32_finite(address: Address, count: int, lanes: np.ndarray, exponent: int, guard: int) -> None:
    """Like `_encode32`, with 0 for non-finite values (the rare repetition after a CLASSIFY round)."""
    x = f32_at(address, count)
    scale = exp2(31 - guard - exponent)
    limit = np.float64(np.float32(exp2(31 - guard)) - np.float32(1.0))
    for i in range(count):
        value = np.float64(x[i])
        lanes[i] = (
            bswap32(np.uint32(np.int32(min(np.rint(value * scale), limit)))) if np.isfinite(value) else np.uint32(0)
        )


@kernel
def _encode64(address: Address, count: int, lanes: np.ndarray, code: int, guard: int) -> None:
    """Convert float64 to three limbs of 31 - guard bits each, most significant first; 0 for non-finite values."""
    x = f64_at(address, count)
    bits = 31 - guard
    shift = bits - exponent64(code)
    half = shift // 2
    scale_a, scale_b = exp2(half), exp2(shift - half)
    radix = exp2(bits)
    for i in range(count):
        rest = x[i] * scale_a * scale_b if np.isfinite(x[i]) else 0.0
        for limb in range(3):
            whole = np.trunc(rest)
            lanes[3 * i + limb] = bswap32(np.uint32(np.int32(whole)))
            rest = (rest - whole) * radix


@kernel
def _encode_int(address: Address, count: int, lanes: np.ndarray, limbs: int) -> None:
    """Convert int32 or int64 to 16-bit limbs, most significant (signed) first."""
    if limbs == 2:
        x = i32_at(address, count)
        for i in range(count):
            value = int64(x[i])
            lanes[2 * i] = bswap32(np.uint32(value >> 16))
            lanes[2 * i + 1] = bswap32(np.uint32(value & 0xFFFF))
    else:
        y = i64_at(address, count)
        for i in range(count):
            value = y[i]
            lanes[4 * i] = bswap32(np.uint32(value >> 48))
            lanes[4 * i + 1] = bswap32(np.uint32((value >> 32) & 0xFFFF))
            lanes[4 * i + 2] = bswap32(np.uint32((value >> 16) & 0xFFFF))
            lanes[4 * i + 3] = bswap32(np.uint32(value & 0xFFFF))


@kernel(forceinline=True)
def encode(
    fmt: int,
    address: Address,
    count: int,
    lanes_address: Address,
    lanes: int,
    used: int,
    headroom: int,
    finite_only: bool,
) -> None:
    """Write `count` elements at `address` as big-endian lanes; remaining lanes are set to 0.

    `used` is a canonical exponent code, `lanes` the number of lanes of the chunk. Without `finite_only` the elements
    must be finite and need no more than `used`. `headroom`: the format's (function `headroom`).
    """
    if fmt == FLOAT32_INT16:
        encode_int16(
            address, count, lanes_address, lanes, headroom * exp2(-(used + wire_format.CODE_BIAS)), finite_only
        )
        return
    if fmt == FLOAT32_INT8:
        encode_int8(address, count, lanes_address, lanes, headroom * exp2(-(used + wire_format.CODE_BIAS)), finite_only)
        return
    out = u32_at(lanes_address, lanes)
    if fmt == FLOAT32:
        if finite_only:
            _encode32_finite(address, count, out, used + wire_format.CODE_BIAS, headroom)
        else:
            _encode32(address, count, out, used + wire_format.CODE_BIAS, headroom)
    elif fmt == FLOAT64:
        _encode64(address, count, out, used, headroom)
    else:
        _encode_int(address, count, out, _LANES[fmt])
    for i in range(count * _LANES[fmt], lanes):
        out[i] = 0


@kernel
def classify(fmt: int, address: Address, count: int, lanes_address: Address, lanes: int) -> None:
    """Write the lanes of a CLASSIFY round: the first lane of each non-finite element names its kind."""
    if is_narrow(fmt):
        width = _LANE_BYTES[fmt]
        narrow = u8_at(lanes_address, lanes * width)
        narrow[:] = 0
        for i in range(count):
            narrow[(i + 1) * width - 1] = not np.isfinite(f32_at(address, count)[i])
        return
    out = u32_at(lanes_address, lanes)
    for i in range(lanes):
        out[i] = 0
    for i in range(count):
        value = f64_at(address, count)[i] if _is_float64(fmt) else np.float64(f32_at(address, count)[i])
        if np.isnan(value):
            out[i * _LANES[fmt]] = bswap32(np.uint32(NOT_A_NUMBER))
        elif np.isinf(value):
            out[i * _LANES[fmt]] = bswap32(np.uint32(POSITIVE_INFINITY if value > 0 else NEGATIVE_INFINITY))


@kernel
def multiply(fmt: int, address: Address, count: int, factor: float) -> None:
    """Multiply `count` floats at `address` by `factor`, rounded to their type."""
    if _is_float64(fmt):
        y = f64_at(address, count)
        for i in range(count):
            y[i] *= factor
        return
    x, narrow = f32_at(address, count), np.float32(factor)
    for i in range(count):
        x[i] *= narrow


@kernel
def clear_non_finite(fmt: int, address: Address, count: int) -> None:
    """Replace each infinity and NaN among `count` floats at `address` by 0."""
    if _is_float64(fmt):
        y = f64_at(address, count)
        for i in range(count):
            y[i] = y[i] if np.isfinite(y[i]) else 0.0
        return
    x = f32_at(address, count)
    for i in range(count):
        x[i] = x[i] if np.isfinite(x[i]) else np.float32(0.0)


@kernel(forceinline=True)
def decode(
    fmt: int, lanes_address: Address, address: Address, count: int, used: int, headroom: int, divisor: int
) -> int:
    """Convert sums of lanes to `count` elements at `address`, divided by `divisor` (1 for a sum; integers truncate
    toward zero).

    Returns the number of integer sums that did not fit their type (those elements are left wrapped).
    """
    if fmt == FLOAT32_INT16:
        decode_int16(lanes_address, address, count, exp2(used + wire_format.CODE_BIAS) / headroom, divisor)
        return 0
    if fmt == FLOAT32_INT8:
        decode_int8(lanes_address, address, count, exp2(used + wire_format.CODE_BIAS) / headroom, divisor)
        return 0
    sums = u32_at(lanes_address, count * _LANES[fmt])
    misfits = 0
    if fmt == FLOAT32:
        x = f32_at(address, count)
        shift = used + wire_format.CODE_BIAS + headroom - 31
        if -120 <= shift <= 96:
            scale = np.float32(exp2(shift))
            for i in range(count):
                x[i] = np.float32(np.int32(bswap32(sums[i]))) * scale
            if divisor != 1:
                n = np.float32(divisor)
                for i in range(count):
                    x[i] = x[i] / n
        else:
            wide = exp2(shift)
            for i in range(count):
                x[i] = quotient(np.float64(np.int32(bswap32(sums[i]))) * wide, divisor)
    elif fmt == FLOAT64:
        y = f64_at(address, count)
        bits = 31 - headroom
        inverse = exp2(-bits)
        shift = exponent64(used) - bits
        half = shift // 2
        scale_a, scale_b = exp2(half), exp2(shift - half)
        for i in range(count):
            high, middle, low = (
                np.int32(bswap32(sums[3 * i])),
                np.int32(bswap32(sums[3 * i + 1])),
                np.int32(bswap32(sums[3 * i + 2])),
            )
            units = (low * inverse + middle) * inverse + high
            total = units * scale_a * scale_b
            if divisor != 1:
                total = total / divisor if np.isfinite(total) else units / divisor * scale_a * scale_b
            y[i] = total
    elif fmt == INT32_LIMBS:
        z = i32_at(address, count)
        for i in range(count):
            whole = (int64(np.int32(bswap32(sums[2 * i]))) << 16) + int64(np.int32(bswap32(sums[2 * i + 1])))
            misfits += whole < -0x80000000 or whole > 0x7FFFFFFF
            z[i] = np.int32(truncating_division(whole, divisor))
    else:
        w = i64_at(address, count)
        for i in range(count):
            carry = int64(0)
            value = int64(0)
            for limb in range(3):
                part = int64(np.int32(bswap32(sums[4 * i + 3 - limb]))) + carry
                value |= (part & 0xFFFF) << (16 * limb)
                carry = part >> 16
            top = int64(np.int32(bswap32(sums[4 * i]))) + carry
            misfits += top < -0x8000 or top > 0x7FFF
            w[i] = truncating_division(value | (top << 48), divisor)
    return misfits


@kernel
def keep_classes(fmt: int, lanes_address: Address, count: int, classes: np.ndarray) -> None:
    """Copy the summed lanes of a CLASSIFY round to `classes` (uint32, native order), one for each element."""
    if is_narrow(fmt):
        width = _LANE_BYTES[fmt]
        narrow = u8_at(lanes_address, count * width)
        for i in range(count):
            counted = np.uint32(0)  # up to 256: both bytes of an int16 count
            for b in range(width):
                counted = np.uint32(counted << np.uint32(8)) | np.uint32(narrow[i * width + b])
            classes[i] = counted
        return
    sums = u32_at(lanes_address, count * _LANES[fmt])
    for i in range(count):
        classes[i] = bswap32(sums[i * _LANES[fmt]])


@kernel
def apply_classes(fmt: int, classes: np.ndarray, address: Address, count: int) -> None:
    """Overwrite decoded elements at `address` with NaN and infinities, according to the `classes` of `keep_classes`.

    Narrow lanes cannot distinguish infinities from NaN: an element that is not finite on any rank becomes NaN.
    """
    for i in range(count):
        counts = int64(classes[i])
        if counts == 0:
            continue
        positive, negative, nan = counts & 0x3FF, (counts >> 10) & 0x3FF, counts >> 20
        value = math.nan if nan or (positive and negative) or is_narrow(fmt) else math.inf if positive else -math.inf
        if _is_float64(fmt):
            f64_at(address, count)[i] = value
        else:
            f32_at(address, count)[i] = np.float32(value)
