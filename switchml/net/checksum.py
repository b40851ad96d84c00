"""The Internet checksum (RFC 1071) of memory at an address, and the fields of IPv4 headers that depend on it."""

from __future__ import annotations

import numpy as np

from switchml.runtime.jit import kernel
from switchml.runtime.memory import be16, put_be16, u8_at, u32_at


@kernel
def fold(total):
    """A sum of 16-bit words with its carries added, not complemented."""
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


@kernel
def ones_sum(at, count, start):
    """The ones' complement sum of the `count` bytes at an address and of the number `start`, not complemented."""
    words = u32_at(at, count // 4)
    little = np.int64(0)
    for i in range(count // 4):
        little += words[i]
    little = fold(little)
    total = start + (((little & 0xFF) << 8) | (little >> 8))
    data = u8_at(at, count)
    for i in range(count // 4 * 4, count):
        total += np.int64(data[i]) if i & 1 else np.int64(data[i]) << 8
    return fold(total)


@kernel
def complete(at, length, start, offset):
    """Fill in the checksum that a frame leaves out, whose field holds the sum of the pseudo header: it covers the frame
    from `start` on and lies `offset` bytes behind that."""
    if start + offset + 2 > length:
        return
    value = ~ones_sum(at + start, length - start, 0) & 0xFFFF
    put_be16(u8_at(at, length), start + offset, value if value else 0xFFFF)


@kernel
def put_ipv4(frame, at, length, number):
    """Set an IPv4 header's total length, identification and checksum; the header begins at frame[at]."""
    put_be16(frame, at + 2, length)
    put_be16(frame, at + 4, number & 0xFFFF)
    put_be16(frame, at + 10, 0)
    total = np.int64(0)
    for word in range(at, at + 4 * (np.int64(frame[at]) & 15), 2):
        total += be16(frame, word)
    put_be16(frame, at + 10, ~fold(total) & 0xFFFF)
