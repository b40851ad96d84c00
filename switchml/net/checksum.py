"""The Internet checksum (RFC 1071) of memory at an address, and the fields of IPv4 headers that depend on it."""

from typing import Any

import numpy as np

from switchml.runtime.jit import Address, int64, kernel
from switchml.runtime.memory import be16, put_be16, u8_at, u32_at


@kernel
def fold(total: Any) -> Any:
    """Add the carries of a sum of 16-bit words to it; the result is not complemented."""
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


@kernel
def ones_sum(at: Address, count: int, start: int) -> Any:
    """Return the ones' complement sum of the `count` bytes at an address and of the number `start`, not
    complemented."""
    words = u32_at(at, count // 4)
    little = int64(0)
    for i in range(count // 4):
        little += words[i]
    little = fold(little)
    total = start + (((little & 0xFF) << 8) | (little >> 8))
    data = u8_at(at, count)
    for i in range(count // 4 * 4, count):
        total += int64(data[i]) if i & 1 else int64(data[i]) << 8
    return fold(total)


@kernel
def complete(at: Address, length: int, start: int, offset: int) -> None:
    """Fill in the checksum that a frame leaves out, whose field holds the sum of the pseudo header: it covers the frame
    from `start` on and is located `offset` bytes after that."""
    if start + offset + 2 > length:
        return
    value = ~ones_sum(at + start, length - start, 0) & 0xFFFF
    put_be16(u8_at(at, length), start + offset, value if value else 0xFFFF)


@kernel
def put_ipv4(frame: np.ndarray, at: int, length: int, number: int) -> None:
    """Set an IPv4 header's total length, identification and checksum; the header begins at frame[at]."""
    put_be16(frame, at + 2, length)
    put_be16(frame, at + 4, number & 0xFFFF)
    put_be16(frame, at + 10, 0)
    total = int64(0)
    for word in range(at, at + 4 * (int64(frame[at]) & 15), 2):
        total += be16(frame, word)
    put_be16(frame, at + 10, ~fold(total) & 0xFFFF)
