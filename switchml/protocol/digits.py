"""Dense sums of integers: one lane per element if the sums fit it, else a round for each digit (docs/protocol.md,
section 5).

int32 lanes hold the sum of n ranks' values if all are below 2^(31-L) in magnitude. `need` tells whether a rank's are;
if some rank's are not, all ranks send the most significant digit of each element, signed, and in further rounds the
others: two digits of 16 bits for int32, three of 23 for int64. Sums of up to 256 digits fit a lane.
"""

from typing import Any

import numpy as np

from switchml.protocol.packet import CODE_ZERO
from switchml.runtime.jit import Address, int64, kernel
from switchml.runtime.memory import bswap32, i32_at, i64_at, u32_at

FITS, CODE_DIGITS = CODE_ZERO, CODE_ZERO + 1
"""Values of `need` for integers."""
_BITS32, _BITS64 = 16, 23
"""Bits of a digit."""
_MASK32, _MASK64 = (1 << _BITS32) - 1, (1 << _BITS64) - 1
_TOP64 = 1 << (63 - 2 * _BITS64)
"""Limit of the most significant digit of an int64."""


@kernel
def need_of(is_long: bool, address: Address, count: int, guard: int) -> int:
    """FITS if `count` int32 (or int64) at `address` are at least -2^(31-guard) and below 2^(31-guard), else
    CODE_DIGITS."""
    if is_long:
        x, wide = i64_at(address, count), int64(0)
        for i in range(count):
            wide |= x[i] ^ (x[i] >> 63)
        return FITS if wide < 1 << (31 - guard) else CODE_DIGITS
    y, bits = i32_at(address, count), np.int32(0)
    for i in range(count):
        bits |= np.int32(y[i] ^ np.int32(y[i] >> np.int32(31)))
    return FITS if bits < 1 << (31 - guard) else CODE_DIGITS


@kernel(inline=True)
def rounds(is_long: bool, need: int) -> Any:
    """Number of rounds of a chunk."""
    return 1 if need == FITS else 3 if is_long else 2


@kernel
def encode(is_long: bool, address: Address, count: int, lanes_at: Address, lanes: int, digit: int, digits: int) -> None:
    """Write digit number `digit` (0: the most significant one) of `digits` of `count` integers at `address` as
    big-endian lanes; remaining lanes are set to 0."""
    out = u32_at(lanes_at, lanes)
    if is_long:
        x, shift = i64_at(address, count), int64(_BITS64 * (digits - 1 - digit))
        mask = int64(_MASK64 if digit else -1)
        for i in range(count):
            out[i] = bswap32(np.uint32((x[i] >> shift) & mask))
    else:
        y, low = i32_at(address, count), np.int32(_BITS32 * (digits - 1 - digit))
        mask32 = np.int32(_MASK32 if digit else -1)
        for i in range(count):
            out[i] = bswap32(np.uint32(np.int32(y[i] >> low) & mask32))
    for i in range(count, lanes):
        out[i] = 0


@kernel
def keep(lanes_at: Address, count: int, kept: np.ndarray, digit: int) -> None:
    """Store the sums of a digit that is followed by others in `kept`, uint32[2 count or more]."""
    sums = u32_at(lanes_at, count)
    for i in range(count):
        kept[digit * count + i] = bswap32(sums[i])


@kernel
def take(
    is_long: bool, lanes_at: Address, address: Address, count: int, kept: np.ndarray, digits: int, divisor: int
) -> int:
    """Write the sums of `count` integers to `address`, divided by `divisor` and truncated toward zero; the lanes are
    those of the last of `digits` rounds. Returns the number that did not fit their type (those are left wrapped)."""
    misfits = np.uint32(0)
    last = u32_at(lanes_at, count)
    if is_long:
        x = i64_at(address, count)
        if digits == 1:
            for i in range(count):
                x[i] = np.int32(bswap32(last[i]))
        else:
            for i in range(count):
                low = int64(np.int32(bswap32(last[i])))
                middle = int64(np.int32(kept[count + i])) + (low >> _BITS64)
                top = int64(np.int32(kept[i])) + (middle >> _BITS64)
                misfits += np.uint32((top < -_TOP64) | (top >= _TOP64))
                x[i] = (top << (2 * _BITS64)) | ((middle & _MASK64) << _BITS64) | (low & _MASK64)
        if divisor != 1:
            for i in range(count):
                x[i] = truncating_division(x[i], divisor)
        return int64(misfits)
    y = i32_at(address, count)
    if digits == 1:
        for i in range(count):
            y[i] = np.int32(bswap32(last[i]))
    else:
        for i in range(count):
            part = np.int32(bswap32(last[i]))
            whole = np.int32(np.int32(kept[i]) + np.int32(part >> np.int32(_BITS32)))
            misfits += np.uint32((whole < -0x8000) | (whole > 0x7FFF))
            y[i] = np.int32(np.int32(whole << np.int32(_BITS32)) | np.int32(part & np.int32(_MASK32)))
    if divisor != 1:
        for i in range(count):
            y[i] = np.int32(truncating_division(int64(y[i]), divisor))
    return int64(misfits)


@kernel
def truncating_division(value: Any, divisor: int) -> Any:
    quotient = value // divisor
    if quotient < 0 and quotient * divisor != value:
        quotient += 1
    return quotient
