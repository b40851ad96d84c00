"""The first round of exact sums of float32 among up to 8 ranks, designed for gradients (docs/protocol.md, section 5,
"Exact sums"): full-width lanes, and separate lanes in which the counts of ranks with a remainder are packed.

Few elements are not decided by such a round. Those of a chunk are appended to the list of its group of chunks, which
one packet carries.
"""

from typing import Any

import numpy as np

from switchml.protocol.exact import keep
from switchml.protocol.fixedpoint import FLOAT32_EXACT, exp2
from switchml.runtime.jit import Address, int64, kernel
from switchml.runtime.memory import bswap32, f32_at, u32_at

_MAX_GUARD = 3
"""With more than 8 ranks too many elements would be undecided."""
_GROUPS = (16, 16, 16, 4)
"""Number of chunks in a group, by guard bits: together they have about half a packet of undecided elements, if they are
normally distributed."""
_PRECISION = 24
_MIN_SHIFT, _MAX_SHIFT = -96, 120
"""Range of scales that float32 can represent, with their inverse."""


@kernel(inline=True)
def is_wide(fmt: int, guard: int) -> bool:
    """Whether a format's first rounds are of this kind."""
    return fmt == FLOAT32_EXACT and guard <= _MAX_GUARD


@kernel(inline=True)
def _fields(guard: int) -> int:
    """Number of counts, of 0 to n ranks each, in a lane; the sign bit is not used."""
    return 31 // (guard + 1)


@kernel(inline=True)
def elements(lanes: int, guard: int) -> int:
    """Number of elements of a chunk; the other lanes hold counts."""
    return lanes - (lanes + _fields(guard)) // (_fields(guard) + 1)


def group_size(slots: int, guard: int) -> int:
    """G: number of chunks whose undecided elements share a list."""
    return min(_GROUPS[guard], slots)


@kernel
def encode(
    address: Address, count: int, lanes_address: Address, lanes: int, top: int, guard: int, marks: np.ndarray
) -> None:
    """Write `count` elements below 2^top at `address`, rounded to 31 - L binary digits, and the fields of the counts.
    Elements that are not finite count as 0. `marks`: uint32[lanes], overwritten."""
    shift, capacity = 31 - guard - top, elements(lanes, guard)
    x, out = f32_at(address, count), u32_at(lanes_address, lanes)
    marks[count:] = 0
    if _MIN_SHIFT <= shift <= _MAX_SHIFT:
        _round(x, out, marks, np.float32(exp2(shift)), np.float32(exp2(-shift)))
    else:
        _round(x, out, marks, exp2(shift), exp2(-shift))
    counts = out[capacity:]
    counts[:] = 0
    out[count:capacity] = 0
    for field in range(_fields(guard)):
        bits = np.uint32(field * (guard + 1))
        part = marks[field * len(counts) : (field + 1) * len(counts)]
        for j in range(len(part)):
            counts[j] |= part[j] << bits
    for j in range(len(counts)):
        counts[j] = bswap32(counts[j])


@kernel
def _round(x: np.ndarray, out: np.ndarray, marks: np.ndarray, scale: Any, inverse: Any) -> None:
    """Write multiples of the scale's step to `out`, and to `marks` whether an element has a remainder."""
    for i in range(len(x)):
        value = x[i] if np.isfinite(x[i]) else np.float32(0.0)
        whole = np.rint(value * scale)
        out[i] = bswap32(np.uint32(np.int32(whole)))
        marks[i] = np.uint32(whole * inverse != value)


@kernel
def take(
    lanes_address: Address,
    source: Address,
    target: Address,
    count: int,
    lanes: int,
    top: int,
    guard: int,
    divisor: int,
    sums: np.ndarray,
    marks: np.ndarray,
) -> int:
    """Write the sums of a round to the elements at `target`, and list in `sums` those that it does not decide; returns
    their number. `source` may be `target`. `marks`: uint32[lanes], overwritten."""
    out, capacity, step = u32_at(lanes_address, lanes), elements(lanes, guard), top - (31 - guard)
    counts, mask = out[capacity:], np.uint32((1 << (guard + 1)) - 1)
    for field in range(_fields(guard)):
        bits = np.uint32(field * (guard + 1))
        part = marks[field * len(counts) : (field + 1) * len(counts)]
        for j in range(len(part)):
            part[j] = (bswap32(counts[j]) >> bits) & mask
    totals = out[:count]
    opened = _judge(totals, marks)
    if opened:
        _list(f32_at(source, count), marks, totals, step, sums)
    _store(f32_at(target, count), totals, step, divisor)
    return opened


@kernel
def _judge(totals: np.ndarray, marks: np.ndarray) -> int:
    """Replace each count in `marks` by whether it leaves its sum undecided; returns the number of undecided ones. Each
    rank with a remainder, which is rounded, may change the sum by half a step: all together by at most a quarter of its
    unit in the last place, or the sum is undecided. (Casts keep the loop vectorized with 32 bits.)"""
    opened = np.uint32(0)
    for i in range(len(totals)):
        total, below = np.int32(bswap32(totals[i])), np.int32(np.int32(marks[i]) - np.int32(1))
        below = np.int32(below | np.int32(below >> np.int32(1)))
        below = np.int32(below | np.int32(below >> np.int32(2)))
        power = np.int32(below + np.int32(1))  # the least power of two that is not below the count; 0 for 0
        marks[i] = np.uint32(np.int32(abs(total)) < np.int32(power << np.int32(_PRECISION)))
        opened = np.uint32(opened + marks[i])
    return int64(opened)


@kernel
def _list(x: np.ndarray, marks: np.ndarray, totals: np.ndarray, step: int, sums: np.ndarray) -> None:
    """Write entries for the undecided elements in `marks`."""
    down, up = exp2(-step), exp2(step)
    n = 0
    for i in range(len(totals)):
        if marks[i]:
            scaled = np.float64(x[i]) * down if np.isfinite(x[i]) else 0.0
            keep(sums[n], i, int64(np.int32(bswap32(totals[i]))), (scaled - np.rint(scaled)) * up, step)
            n += 1


@kernel
def _store(target: np.ndarray, totals: np.ndarray, step: int, divisor: int) -> None:
    if divisor == 1 and _MIN_SHIFT <= step <= _MAX_SHIFT:
        scale = np.float32(exp2(step))
        for i in range(len(totals)):
            target[i] = np.float32(np.int32(bswap32(totals[i]))) * scale
    else:
        wide, n = exp2(step), np.float64(divisor)
        for i in range(len(totals)):
            target[i] = np.float32(np.float64(np.int32(bswap32(totals[i]))) / n * wide)
