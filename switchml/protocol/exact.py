"""Exact sums of floats: digits of any weight, in as many rounds as an element needs (docs/protocol.md, section 5,
"Exact sums").

A first round carries the binary digits of every element of a chunk down to a `step`, and the number of ranks with a
nonzero remainder. Elements that it does not decide are continued in rounds of lists: a `SUM` holds the digits of one
element's sum so far, and this rank's remainder. All ranks get the same results, so they decide alike and end with the
same bits. first_round.py has the first round of ordinary gradients.
"""

import math
from typing import Any

import numpy as np

from switchml.protocol import packet as wire_format
from switchml.protocol.fixedpoint import FLOAT64_EXACT, LOWEST, PRECISION, code64, exp2, exponent64
from switchml.runtime.jit import Address, int64, kernel
from switchml.runtime.memory import bswap32, f32_at, f64_at, record, u32_at

FURTHER32, FURTHER64 = wire_format.CODE_FURTHER, wire_format.CODE_FURTHER64
SUM = record("i8 high low", "f8 rest", "i4 where step top")
"""The sum of an undecided element: high * 2^32 + low units of 2^step, and the ranks' remainders, each below 2^top;
`rest` is this rank's. `where`: index of the element, from the first one of its list's chunk or group."""
NOWHERE = -1
"""`where` of the entries after a chunk's last one in the list of its group."""

_PRECISION = np.array(PRECISION, np.int64)
_WORD = 32
_LOW = 0xFFFFFFFF
_MAX_SHIFT = 30
"""Maximum bits of one shift of the two words."""
_SLACK_BITS = 2
"""The remainder of an element may change its sum by a quarter of a unit in the last place: with the rounding of the
result, three quarters in total (and one after a division)."""
_FAR = 900
"""Limit of gaps: anything so far below a nonzero sum does not change it."""


@kernel(inline=True)
def digits(guard: int) -> int:
    """B: binary digits in a lane; in addition to the sum's guard bits, the lowest L + 1 bits count the ranks with a
    remainder."""
    return 30 - 2 * guard


@kernel(inline=True)
def further(fmt: int) -> int:
    """`used` of a FURTHER round."""
    return FURTHER64 if fmt == FLOAT64_EXACT else FURTHER32


@kernel
def bound(fmt: int, code: int) -> int:
    """Exponent that bounds all magnitudes of some ranks, if their `need` is `code`."""
    return exponent64(code | 1) if fmt == FLOAT64_EXACT else max(code + wire_format.CODE_BIAS, LOWEST)


@kernel
def _code_of(fmt: int, most: float) -> int:
    """The least code whose `bound` is above `most`."""
    if most == 0.0:
        return wire_format.CODE_ZERO
    exponent = math.frexp(most)[1]
    return code64(exponent) if fmt == FLOAT64_EXACT else max(exponent, LOWEST) - wire_format.CODE_BIAS


# -- a first round with the count in each lane --


@kernel
def encode_first(fmt: int, address: Address, count: int, out: np.ndarray, top: int, guard: int) -> None:
    """Write the digits from `top` on of `count` elements at `address` as big-endian int32 to `out`, uint32[count];
    elements that are not finite count as 0."""
    step = top - digits(guard)
    if fmt == FLOAT64_EXACT:
        _encode_lanes(f64_at(address, count), out, step, guard)
    else:
        _encode_lanes(f32_at(address, count), out, step, guard)


@kernel
def _encode_lanes(x: np.ndarray, out: np.ndarray, step: int, guard: int) -> None:
    """Encode lanes of a first round. All products by powers of two are exact, unless a magnitude is far below the step:
    its digits are 0 then."""
    half = step >> 1
    down_a, down_b, up_a, up_b = exp2(-half), exp2(half - step), exp2(half), exp2(step - half)
    shift = np.uint32(guard + 1)
    for i in range(len(x)):
        value = np.float64(x[i]) if np.isfinite(x[i]) else 0.0
        whole = np.trunc(value * down_a * down_b)
        has_rest = np.uint32(whole * up_a * up_b != value)
        out[i] = bswap32(np.uint32((np.uint32(np.int32(whole)) << shift) | has_rest))


@kernel
def take_first(
    fmt: int,
    lanes_address: Address,
    source: Address,
    target: Address,
    count: int,
    top: int,
    guard: int,
    divisor: int,
    sums: np.ndarray,
) -> int:
    """Write the decided sums of such a round to the elements at `target`, and list the others in `sums`; returns their
    number. `source` may be `target`."""
    lanes, step = u32_at(lanes_address, count), top - digits(guard)
    counted = (1 << (guard + 1)) - 1
    decides = exp2(_PRECISION[fmt] + _SLACK_BITS)
    half = step >> 1
    down_a, down_b, up_a, up_b = exp2(-half), exp2(half - step), exp2(half), exp2(step - half)
    n = 0
    for i in range(count):
        lane = int64(np.int32(bswap32(lanes[i])))
        total, holders = lane >> (guard + 1), lane & counted
        if abs(total) < holders * decides:
            value = f64_at(source, count)[i] if fmt == FLOAT64_EXACT else np.float64(f32_at(source, count)[i])
            if not np.isfinite(value):
                value = 0.0
            rest = value - np.trunc(value * down_a * down_b) * up_a * up_b
            keep(sums[n], i, total, rest, step)
            n += 1
        else:
            _put(fmt, target, i, np.float64(total), divisor, step)
    return n


@kernel(forceinline=True)
def keep(element: Any, where: int, total: int, rest: float, step: int) -> None:
    """Set `element` (SUM) to the state after a first round: `total` units of 2^step, and a remainder below one unit."""
    element.high, element.low = total >> _WORD, total & _LOW
    element.rest, element.where, element.step, element.top = rest, where, step, step


@kernel(forceinline=True)
def _put(fmt: int, target: Address, i: int, total: float, divisor: int, step: int) -> None:
    """Write element `i` at `target`: `total` units of 2^step, divided by `divisor`."""
    half = step >> 1
    if divisor != 1:
        total /= divisor
    value = total * exp2(half) * exp2(step - half)
    if fmt == FLOAT64_EXACT:
        f64_at(target, i + 1)[i] = value
    else:
        f32_at(target, i + 1)[i] = np.float32(value)


# -- rounds of lists --


@kernel
def encode_digits(fmt: int, sums: np.ndarray, count: int, out: np.ndarray, guard: int) -> int:
    """Write the next digits of the first `count` entries of `sums` as big-endian int32, followed by lanes of 0. Returns
    the code of this rank's remainders after that."""
    most, width = 0.0, digits(guard)
    for i in range(count):
        element = sums[i]
        step = int64(element.top) - width
        half = step >> 1
        whole = np.trunc(element.rest * exp2(-half) * exp2(half - step))
        element.rest -= whole * exp2(half) * exp2(step - half)
        most = max(most, abs(element.rest))
        shifted = np.uint32(np.uint32(np.int32(whole)) << np.uint32(guard + 1))
        out[i] = bswap32(np.uint32(shifted | np.uint32(element.rest != 0.0)))
    out[count:] = 0
    return _code_of(fmt, most)


@kernel
def take_digits(
    fmt: int, lanes_address: Address, target: Address, sums: np.ndarray, count: int, guard: int, need: int, divisor: int
) -> int:
    """Add a round's result to the first `count` entries of `sums`. Those that are decided now are written to the
    elements at `target`, the others moved to the front; returns the number of the latter. `need`: code of all ranks'
    remainders."""
    lanes, counted = u32_at(lanes_address, count), (1 << (guard + 1)) - 1
    n = 0
    for i in range(count):
        lane, element = int64(np.int32(bswap32(lanes[i]))), sums[i]
        step = int64(element.top) - digits(guard)
        _move(element, element.step - step)
        low = element.low + (lane >> (guard + 1))
        element.high += low >> _WORD
        element.low = low & _LOW
        element.step, element.top = step, min(step, bound(fmt, need))
        total = np.float64(element.high) * 4294967296.0 + np.float64(element.low)
        holders = lane & counted
        decides = exp2(_PRECISION[fmt] + _SLACK_BITS - min(step - element.top, _FAR))
        if holders == 0 or (total != 0.0 and abs(total) >= holders * decides):
            _put(fmt, target, int64(element.where), total, divisor, step)
        else:
            sums[n] = sums[i]
            n += 1
    return n


@kernel(forceinline=True)
def _move(element: Any, shift: int) -> None:
    """Multiply by 2^shift. An undecided sum has at most 84 bits afterwards, and is 0 before large shifts."""
    if element.high == 0 and element.low == 0:
        return
    while shift > 0:
        part = min(shift, _MAX_SHIFT)
        low = element.low << part
        element.high = (element.high << part) + (low >> _WORD)
        element.low = low & _LOW
        shift -= part
