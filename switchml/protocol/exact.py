"""Exact sums of floats: digits of any weight, as many rounds of a chunk as its elements need (docs/protocol.md,
section 5, "Exact sums").

A round carries the binary digits of every element from `top` (its weight is 2^top, excluded) down to `step`. What an
element has below goes in a later round, if the digits so far do not decide its sum. `Sum` collects the digits of one
element's sum; all ranks see the same results, so they decide alike and end with the same bits.
"""

import math
from typing import Any

import numpy as np

from switchml.protocol import packet as wire_format
from switchml.protocol.fixedpoint import FLOAT64_EXACT, LOWEST, PRECISION, code64, exp2, exponent64
from switchml.runtime.jit import Address, kernel
from switchml.runtime.memory import bswap32, f32_at, f64_at, i64_at, record, u32_at

FURTHER32, FURTHER64 = wire_format.CODE_FURTHER, wire_format.CODE_FURTHER64
SUM = record("i8 high low", "f8 value")
"""The sum of one element: high * 2^32 + low units of the last round's step, or, once it is decided, DECIDED in `low`
and the result in `value`."""
DECIDED = -1

_PRECISION = np.array(PRECISION, np.int64)
_WORD = 32
_LOW = 0xFFFFFFFF
_MOST_SHIFT = 30
"""Bits by which the two words are moved at once."""
_SLACK_BITS = 2
"""What is left of an element may change its sum by a quarter of a unit in the last place: with the rounding of the
result, three quarters in all."""
_FAR = 900
"""Gaps are cut to this: whatever is so far below a nonzero sum does not change it."""
_NOTHING = 1 << 20
"""Its negative is the exponent of what is left where nothing is."""


@kernel(inline=True)
def digits(guard: int) -> int:
    """B: binary digits in a lane; beside the sum's guard bits, L + 1 lowest ones count who has something left."""
    return 30 - 2 * guard


@kernel(inline=True)
def further(fmt: int) -> int:
    """`used` of a FURTHER round."""
    return FURTHER64 if fmt == FLOAT64_EXACT else FURTHER32


@kernel
def bound(fmt: int, code: int) -> int:
    """The exponent of which `code` says that all magnitudes are below it."""
    return exponent64(code | 1) if fmt == FLOAT64_EXACT else code + wire_format.CODE_BIAS


@kernel
def _code_of(fmt: int, exponent: int) -> int:
    """The least code whose `bound` is `exponent` or more."""
    return code64(exponent) if fmt == FLOAT64_EXACT else max(exponent, LOWEST) - wire_format.CODE_BIAS


@kernel
def encode_digits(
    fmt: int,
    address: Address,
    count: int,
    lanes_address: Address,
    lanes: int,
    top: int,
    guard: int,
    sums: np.ndarray,
    is_first: bool,
) -> Any:
    """Write the digits from `top` on of `count` elements at `address` as big-endian int32; lanes past them are 0, as
    are elements that are not finite, and decided ones unless the round `is_first`. Returns the code of what is left,
    which only further rounds announce."""
    out = u32_at(lanes_address, lanes)
    if fmt == FLOAT64_EXACT:
        most = _encode64(address, count, out, top, guard, sums, is_first)
    elif is_first:
        _encode32_first(address, count, out, top, guard)
        most = -_NOTHING
    else:
        most = _encode32(address, count, out, top, guard, sums)
    for i in range(count, lanes):
        out[i] = 0
    return _code_of(fmt, most) if most > -_NOTHING else wire_format.CODE_ZERO


@kernel
def _encode32_first(address: Address, count: int, out: np.ndarray, top: int, guard: int) -> None:
    """float32 in a first round: all is below 2^top, and what is left need not be known. (A loop of its own, without
    branches and sums, so that it is vectorized.)"""
    x = f32_at(address, count)
    scale, shift = exp2(digits(guard) - top), np.uint32(guard + 1)
    for i in range(count):
        value = x[i] if np.isfinite(x[i]) else np.float32(0.0)
        scaled = np.float64(value) * scale
        whole = np.int32(scaled)  # truncates
        out[i] = bswap32(np.uint32((np.uint32(whole) << shift) | np.uint32(np.float64(whole) != scaled)))


@kernel
def _encode32(address: Address, count: int, out: np.ndarray, top: int, guard: int, sums: np.ndarray) -> int:
    """float32 in a further round, in float64's exact products and differences. Returns the exponent of the largest
    rest."""
    x = f32_at(address, count)
    down, up = exp2(-top), exp2(digits(guard))
    shift = np.uint32(guard + 1)
    most = 0.0
    for i in range(count):
        out[i] = 0
        if sums[i].low == DECIDED or not np.isfinite(x[i]):
            continue
        scaled = np.float64(x[i]) * down
        scaled = (scaled - np.trunc(scaled)) * up
        whole = np.trunc(scaled)
        rest = abs(scaled - whole)
        most = max(most, rest)
        out[i] = bswap32(np.uint32((np.uint32(np.int32(whole)) << shift) | np.uint32(rest != 0.0)))
    return math.frexp(most)[1] + top - digits(guard) if most else -_NOTHING


@kernel
def _encode64(
    address: Address, count: int, out: np.ndarray, top: int, guard: int, sums: np.ndarray, is_first: bool
) -> int:
    """float64, whose range no product of powers of two spans: the same on the bits of the mantissa."""
    x = i64_at(address, count)
    step = top - digits(guard)
    most = -_NOTHING
    for i in range(count):
        out[i] = 0
        biased = (x[i] >> 52) & 0x7FF
        if biased == 0x7FF or (not is_first and sums[i].low == DECIDED):
            continue
        mantissa = x[i] & 0xFFFFFFFFFFFFF
        if biased:
            mantissa |= 1 << 52
        exponent = max(biased, 1) - 1075
        if top <= exponent:  # all of it has been sent
            continue
        if top - exponent < 53:
            mantissa &= (1 << (top - exponent)) - 1
        if mantissa == 0:
            continue
        whole, rest = np.int64(0), mantissa
        if step <= exponent:
            whole, rest = mantissa << (exponent - step), np.int64(0)
        elif step - exponent < 53:
            whole, rest = mantissa >> (step - exponent), mantissa & ((1 << (step - exponent)) - 1)
        if rest:
            most = max(most, math.frexp(np.float64(rest))[1] + exponent)
        signed = -whole if x[i] < 0 else whole
        out[i] = bswap32(np.uint32((signed << (guard + 1)) + (rest != 0)))
    return most


@kernel
def add_digits(
    fmt: int,
    lanes_address: Address,
    count: int,
    sums: np.ndarray,
    guard: int,
    shift: int,
    step: int,
    following: int,
    divisor: int,
) -> bool:
    """Add a round's result to the `sums`. Returns whether some of them need a further round.

    `shift`: by how much the round's step is below the one of the round before, negative in a first round. `following`:
    all that the ranks have left is below 2^following.
    """
    lanes = u32_at(lanes_address, count)
    counted = (1 << (guard + 1)) - 1
    decides = exp2(_PRECISION[fmt] + _SLACK_BITS - min(step - following, _FAR))
    half = step >> 1
    scale_a, scale_b = exp2(half), exp2(step - half)
    is_open = False
    for i in range(count):
        lane = np.int64(np.int32(bswap32(lanes[i])))
        element = sums[i]
        if shift < 0:
            element.high = element.low = 0
        elif element.low == DECIDED:
            continue
        else:
            _move(element, shift)
        low = element.low + (lane >> (guard + 1))
        element.high += low >> _WORD
        element.low = low & _LOW
        total = np.float64(element.high) * 4294967296.0 + np.float64(element.low)
        holders = lane & counted
        if holders == 0 or (total != 0.0 and abs(total) >= holders * decides):
            if divisor != 1:
                total /= divisor
            element.low, element.value = DECIDED, total * scale_a * scale_b
        else:
            is_open = True
    return is_open


@kernel(forceinline=True)
def _move(element: Any, shift: int) -> None:
    """Multiply by 2^shift. A sum that is not decided has at most 84 bits afterwards, and is 0 before a long way."""
    if element.high == 0 and element.low == 0:
        return
    while shift > 0:
        part = min(shift, _MOST_SHIFT)
        low = element.low << part
        element.high = (element.high << part) + (low >> _WORD)
        element.low = low & _LOW
        shift -= part


@kernel
def store_sums(fmt: int, sums: np.ndarray, address: Address, count: int) -> None:
    """Write `count` decided sums to the elements at `address`."""
    if fmt == FLOAT64_EXACT:
        wide = f64_at(address, count)
        for i in range(count):
            wide[i] = sums[i].value
    else:
        x = f32_at(address, count)
        for i in range(count):
            x[i] = np.float32(sums[i].value)
