"""SZx's compiled loops: block extremes, encoding and decoding, over plain arrays. `szx.py` documents the stream.

Floats are compared and truncated as the integers of their bits. To vectorize all other loops, branch-free loops are
separate from the one loop of each direction that must go element by element, and run over slices from 0 on (the
compiler could not exclude that a sum of signed indices is negative).
"""

import math
from typing import Any

import numpy as np

from switchml.runtime.jit import int64, kernel
from switchml.runtime.memory import be32, put_be32, u32_at

FIXED_BYTES = 13
"""Version (2), 1, 0, block size, and the count of constant blocks, big-endian uint64."""

MAX_BLOCK = 255
_LARGEST = np.int32(0x7F7FFFFF)
_DAMAGED = -1


@kernel(inline=True)
def _float_of(ordered: Any) -> np.int32:
    """Return the float32 bits at this position in the order of floats."""
    return np.int32(ordered ^ ((ordered >> 31) & 0x7FFFFFFF))


@kernel
def extremes(bits: np.ndarray, block: int, low: np.ndarray, high: np.ndarray) -> None:
    """Write the least and largest element of each block of float32 bits (int32[n]), as integers in the floats'
    order."""
    for b in range(low.size):
        some = bits[b * block : (b + 1) * block]
        least, most = np.int32(0x7FFFFFFF), np.int32(-0x80000000)
        for i in range(some.size):
            ordered = some[i] ^ ((some[i] >> np.int32(31)) & np.int32(0x7FFFFFFF))
            least = min(least, ordered)
            most = max(most, ordered)
        low[b] = least
        high[b] = most


@kernel
def _plan(low: Any, high: Any, ends: np.ndarray, bound: float) -> tuple[int, np.float32]:
    """Return a block's required length in bits (0: constant; 32 with a median of 0: unchanged) and its median.

    `ends`: float32[2], scratch memory to view bits as floats. Truncating a value minus the median to its required
    length loses less than half the bound; two roundings, of the difference here and of the sum in the decoder, must fit
    into the other half.
    """
    words = ends.view(np.int32)
    words[0], words[1] = _float_of(low), _float_of(high)
    if high > _LARGEST or low < ~_LARGEST:
        return 32, np.float32(0)
    least, most = ends[0], ends[1]
    radius = (most - least) * np.float32(0.5)
    median = least + radius
    if not math.isfinite(radius):
        return 32, np.float32(0)
    reach = max(np.float64(most) - np.float64(median), np.float64(median) - np.float64(least))
    if reach <= bound:
        return 0, median
    # Exponents of float32 numbers, at least that of the denormals; that of the bound in float64.
    ends[0] = np.float32(reach)
    ends[1] = max(abs(least), abs(most))
    spread = max(((words[0] >> 23) & 0xFF) - 127, -126)
    top = max(((words[1] >> 23) & 0xFF) - 127, -126)
    allowed = math.frexp(bound)[1] - 1 if bound > 0 else -2000
    length = max(9, 9 + spread - allowed + 1)
    if length > 32 or math.ldexp(1.0, spread - 24) + math.ldexp(1.0, top - 23) > math.ldexp(1.0, allowed - 1):
        return 32, np.float32(0)
    return length, median


@kernel
def encode(
    x: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    block: int,
    bound: float,
    lengths: np.ndarray,
    medians: np.ndarray,
    out: np.ndarray,
) -> int:
    """Write the stream of x, float32[n], to `out`, uint8[enough]; return its size.

    `low`, `high`: the result of `extremes`. `lengths` (uint8) and `medians` (float32), one per block, are scratch
    arrays.
    """
    bits = x.view(np.uint32)
    ends = np.empty(2, np.float32)
    constants = 0
    for b in range(low.size):
        lengths[b], medians[b] = _plan(low[b], high[b], ends, bound)
        constants += lengths[b] == 0
    median_bits = medians.view(np.uint32)
    out[0], out[1], out[2], out[3], out[4] = 1, 1, 1, 0, block
    for i in range(8):
        out[5 + i] = (constants >> (56 - 8 * i)) & 0xFF
    states = (low.size + 7) // 8
    out[FIXED_BYTES : FIXED_BYTES + states] = 0
    constant_at = FIXED_BYTES + states
    at = constant_at + 4 * constants
    base = out.ctypes.data
    differences = np.empty(MAX_BLOCK + 1, np.float32)
    difference_bits = differences.view(np.uint32)
    cut = np.empty(MAX_BLOCK + 1, np.uint32)
    residual_bytes = np.empty(MAX_BLOCK + 1, np.uint32)
    leads = np.empty(MAX_BLOCK + 1, np.uint8)
    lead_words = leads.view(np.uint32)
    counts = np.empty(MAX_BLOCK + 1, np.uint8)
    for b in range(low.size):
        some, some_bits = x[b * block : (b + 1) * block], bits[b * block : (b + 1) * block]
        count = some.size
        if lengths[b] == 0:
            put_be32(out, constant_at, median_bits[b])
            constant_at += 4
            continue
        out[FIXED_BYTES + (b >> 3)] |= np.uint8(0x80 >> (b & 7))
        out[at] = lengths[b]
        put_be32(out, at + 1, median_bits[b])
        size = (lengths[b] + 7) // 8
        shift = np.uint32(8 * size - lengths[b])
        unused = np.uint32(32 - 8 * size)
        median = medians[b]
        if median_bits[b] == 0:
            for i in range(count):
                cut[i] = some_bits[i] >> shift
        else:
            for i in range(count):
                differences[i] = some[i] - median
            for i in range(count):
                cut[i] = difference_bits[i] >> shift
        leads[0] = _equal_bytes(cut[0])
        for i in range(1, count):
            leads[i] = _equal_bytes(cut[i] ^ cut[i - 1])
        for i in range(count, (count + 3) & ~3):
            leads[i] = 0
        for i in range(count):
            counts[i] = max(size - leads[i], 0)
            residual_bytes[i] = cut[i] >> unused
        at += 5
        packed = out[at : at + (count + 3) // 4]
        for i in range(packed.size):
            four = lead_words[i]
            packed[i] = np.uint8((four << 6 | four >> 4 | four >> 14 | four >> 24) & 0xFF)
        at += packed.size
        for i in range(count):
            u32_at(base + at, 1)[0] = residual_bytes[i]
            at += counts[i]
    return at


@kernel(inline=True)
def _equal_bytes(difference: Any) -> np.uint8:
    """Return the number of upper bytes of 32 bits that are 0, at most 3."""
    return np.uint8(
        (difference < np.uint32(1 << 24)) + (difference < np.uint32(1 << 16)) + (difference < np.uint32(1 << 8))
    )


@kernel
def constant_blocks(body: np.ndarray, blocks: int) -> int:
    """Return the number of constant blocks by the bitmap, which must fit into the body, and by the count before it; -1
    if the two disagree or the unused bits are not 0."""
    declared = 0
    for i in range(8):
        declared = declared << 8 | int64(body[5 + i])
    others = 0
    for b in range((blocks + 7) // 8 * 8):
        state = (body[FIXED_BYTES + (b >> 3)] >> (7 - (b & 7))) & 1
        if b >= blocks and state:
            return _DAMAGED
        others += state
    return declared if declared == blocks - others else _DAMAGED


@kernel
def decode(body: np.ndarray, block: int, constants: int, x: np.ndarray) -> bool:
    """Decode a stream whose bitmap and medians fit into `body` (uint8) to x, float32[n]; return whether it was valid
    and complete."""
    base = body.ctypes.data
    blocks = (x.size + block - 1) // block
    constant_at = FIXED_BYTES + (blocks + 7) // 8
    at = constant_at + 4 * constants
    words = np.empty(MAX_BLOCK + 1, np.uint32)
    values = words.view(np.float32)
    leads = np.empty(MAX_BLOCK + 1, np.uint8)
    lead_words = leads.view(np.uint32)
    fresh = np.empty(MAX_BLOCK + 1, np.uint32)
    counts = np.empty(MAX_BLOCK + 1, np.uint8)
    for b in range(blocks):
        some = x[b * block : (b + 1) * block]
        count = some.size
        if not (body[FIXED_BYTES + (b >> 3)] >> (7 - (b & 7))) & 1:
            words[0] = be32(body, constant_at)
            constant_at += 4
            median = values[0]
            for i in range(count):
                some[i] = median
            continue
        data_at = at + 5 + (count + 3) // 4
        if data_at > body.size or not 9 <= body[at] <= 32:
            return False
        size = np.uint32((body[at] + 7) // 8)
        unused, cut = np.uint32(32 - 8 * size), np.uint32(32 - body[at])
        words[0] = be32(body, at + 1)
        median, is_plain = values[0], words[0] == 0
        packed = body[at + 5 : data_at]
        for i in range(packed.size):
            four = np.uint32(packed[i])
            spread = four >> np.uint32(6) | four << np.uint32(4) | four << np.uint32(14) | four << np.uint32(24)
            lead_words[i] = spread & np.uint32(0x03030303)
        for i in range(count):
            lead = np.uint32(leads[i])
            fresh[i] = np.uint32(0xFFFFFFFF) >> (lead * np.uint32(8)) >> unused
            counts[i] = size - lead if size > lead else np.uint32(0)
        at = data_at
        # The upper bytes that equal the previous value's are copied from it, the others from the stream: of the four
        # bytes read, those beyond this value's own fall on bytes that are not fresh, or out of the word.
        previous = np.uint32(0)
        if at + 4 * count <= body.size:
            for i in range(count):
                new = u32_at(base + at, 1)[0]
                previous = (previous & ~fresh[i]) | (new & fresh[i])
                words[i] = previous
                at += counts[i]
        else:
            for i in range(count):
                if at + counts[i] > body.size:
                    return False
                new = np.uint32(0)
                for k in range(counts[i]):
                    new |= np.uint32(body[at + k]) << np.uint32(8 * k)
                previous = (previous & ~fresh[i]) | (new & fresh[i])
                words[i] = previous
                at += counts[i]
        for i in range(count):
            words[i] = words[i] << cut
        if is_plain:
            for i in range(count):
                some[i] = values[i]
        else:
            for i in range(count):
                some[i] = values[i] + median
    return at == body.size
