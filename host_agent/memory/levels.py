"""Compiled loops of the codec `levels`: floats quantized to integers, in blocks of 128 with as many bits per number as
the block needs.

A zero has number 0, and x > 0 has number floor(x / step) + 1, so that all values within one step are restored as the
step's middle: no element changes by more than half a step, zeros stay zeros, and no other becomes zero or changes its
sign, which derivatives of ReLU and the like require. A block consists of

    bits per number (1 byte), then: the block's least number (int16) and 128 numbers minus that, in planes
                                or, with 32: the floats themselves, because they are too large for the step,
                                or not finite

A plane holds 8, 4, 2 or 1 bits of all 128 numbers; planes whose sizes add up to the block's bits are consecutive. Its
byte i has the numbers i, i + 128 * bits / 8, …, from the lowest bits up, so that all loops are vectorized.

Fixed-length blocks of quantized floats: Huang et al., "cuSZp", SC 2023, which also predicts each element from the
previous one; adjacent activations differ too much for that to help.
"""

from typing import Any

import numpy as np

from switchml.runtime.jit import kernel

BLOCK = 128
PLAIN = 32
"""Value of a block's bits that marks uncompressed floats."""
MOST = 1 << 13
"""Limit of numbers. Below it, float32 represents x / step to a thousandth of a step."""
MARGIN = 1 - 1 / 128
"""Factor of the step that the bound allows, so that rounding in float32 does not exceed the bound."""


def most_bytes(n: int) -> int:
    """Maximum size of `encode`'s output for n elements."""
    return -(-n // BLOCK) * (3 + 4 * BLOCK)


@kernel
def _put(numbers: np.ndarray, shift: Any, bits: int, out: np.ndarray) -> None:
    """Write a plane: `bits` bits of 128 numbers, from bit `shift` on, into 16 * bits bytes."""
    mask = np.uint16((1 << bits) - 1)
    for i in range(out.size):
        out[i] = np.uint8((numbers[i] >> shift) & mask)
    for k in range(1, 8 // bits):
        some = numbers[k * out.size : (k + 1) * out.size]
        up = np.uint16(k * bits)
        for i in range(out.size):
            out[i] |= np.uint8(((some[i] >> shift) & mask) << up)


@kernel
def _take(plane: np.ndarray, shift: Any, bits: int, numbers: np.ndarray) -> None:
    """Read a plane written by `_put` into the numbers."""
    mask = np.uint16((1 << bits) - 1)
    for k in range(8 // bits):
        some = numbers[k * plane.size : (k + 1) * plane.size]
        down = np.uint16(k * bits)
        for i in range(plane.size):
            some[i] |= ((np.uint16(plane[i]) >> down) & mask) << shift


@kernel
def encode(x: np.ndarray, bound: float, out: np.ndarray) -> int:
    """Encode x, float32[n], into `out`, uint8[most_bytes(n)], so that no element changes by more than `bound` > 0;
    returns the number of bytes."""
    step = np.float32(2.0 * MARGIN * bound)
    inverse = np.float32(1.0) / step
    limit = np.float32(MOST - 1) * step
    bits_of_x = x.view(np.uint32)
    limits = np.array([min(limit, np.float32(3e38))], np.float32).view(np.uint32)
    numbers, above = np.zeros(BLOCK, np.int32), np.zeros(BLOCK, np.uint16)
    at = 0
    for b in range((x.size + BLOCK - 1) // BLOCK):
        some = x[b * BLOCK : (b + 1) * BLOCK]
        some_bits = bits_of_x[b * BLOCK : (b + 1) * BLOCK]
        count = some.size
        largest = np.uint32(0)
        for i in range(count):
            largest = max(largest, some_bits[i] & np.uint32(0x7FFFFFFF))
        if largest > limits[0]:
            out[at] = PLAIN
            out[at + 1 : at + 1 + 4 * count] = some_bits.view(np.uint8)
            at += 1 + 4 * count
            continue
        for i in range(count):
            number = np.int32(abs(some[i]) * inverse) + np.int32(1)
            number = number if some[i] > 0 else -number
            numbers[i] = number if some[i] != 0 else np.int32(0)
        least, most = numbers[0], numbers[0]
        for i in range(count):
            least = min(least, numbers[i])
            most = max(most, numbers[i])
        bits = 0
        while (most - least) >> bits:
            bits += 1
        for i in range(count):
            above[i] = np.uint16(numbers[i] - least)
        for i in range(count, BLOCK):
            above[i] = np.uint16(0)
        out[at] = bits
        out[at + 1] = np.uint8(least & 0xFF)
        out[at + 2] = np.uint8((least >> 8) & 0xFF)
        at += 3
        shift = 0
        for plane in (8, 4, 2, 1):
            if bits & plane:
                _put(above, np.uint16(shift), plane, out[at : at + 16 * plane])
                shift += plane
                at += 16 * plane
    return at


@kernel
def decode(body: np.ndarray, bound: float, x: np.ndarray) -> int:
    """Decode the output of `encode` with this bound into x, float32[n]; returns the number of bytes read."""
    step = np.float32(2.0 * MARGIN * bound)
    bits_of_x = x.view(np.uint32)
    above = np.zeros(BLOCK, np.uint16)
    at = 0
    for b in range((x.size + BLOCK - 1) // BLOCK):
        some = x[b * BLOCK : (b + 1) * BLOCK]
        count = some.size
        bits = body[at]
        if bits == PLAIN:
            bits_of_x[b * BLOCK : (b + 1) * BLOCK].view(np.uint8)[:] = body[at + 1 : at + 1 + 4 * count]
            at += 1 + 4 * count
            continue
        least = np.int32(np.int16(np.uint16(body[at + 1]) | (np.uint16(body[at + 2]) << np.uint16(8))))
        at += 3
        above[:] = 0
        shift = 0
        for plane in (8, 4, 2, 1):
            if bits & plane:
                _take(body[at : at + 16 * plane], np.uint16(shift), plane, above)
                shift += plane
                at += 16 * plane
        for i in range(count):
            number = np.int32(above[i]) + least
            middle = (np.float32(abs(number)) - np.float32(0.5)) * step
            middle = middle if number > 0 else -middle
            some[i] = middle if number != 0 else np.float32(0)
    return at
