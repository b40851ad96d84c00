"""Arithmetic on packet contents at addresses: lanes of big-endian integers, and words of sparse streams and addressed
packets.

Sums stay big-endian; swapping bytes during addition costs less than copying later.
"""

from typing import Any

import numpy as np

from switchml.protocol import packet as wire_format
from switchml.runtime.jit import Address, int64, kernel
from switchml.runtime.memory import bswap32, u8_at, u32_at, u64_at


@kernel
def add_int32(sums: Address, values: Address, lanes: int) -> int:
    """sums += values over big-endian int32 at two addresses, with wraparound. Returns 1 if a lane overflowed,
    else 0."""
    a, b = u32_at(sums, lanes), u32_at(values, lanes)
    overflow = np.uint32(0)
    for i in range(lanes):
        x, y = bswap32(a[i]), bswap32(b[i])
        total = np.uint32(x + y)
        overflow |= np.uint32((x ^ total) & (y ^ total))
        a[i] = bswap32(total)
    return int64(overflow >> np.uint32(31))


_TOP16, _LOW16, _BYTE16 = np.uint64(0x8000800080008000), np.uint64(0x7FFF7FFF7FFF7FFF), np.uint64(0x00FF00FF00FF00FF)
_TOP8, _LOW8 = np.uint64(0x8080808080808080), np.uint64(0x7F7F7F7F7F7F7F7F)
_EIGHT = np.uint64(8)


@kernel(inline=True)
def _swap16(word: Any) -> Any:
    """Swap the bytes of four 16-bit lanes."""
    return ((word & _BYTE16) << _EIGHT) | ((word >> _EIGHT) & _BYTE16)


@kernel
def add_int16(sums: Address, values: Address, lanes: int) -> int:
    """`add_int32` for big-endian int16; `lanes` is a multiple of 4. Four lanes are added in one word: all bits except
    the top ones, so that no carry leaves a lane, then the top ones without carry."""
    a, b = u64_at(sums, lanes // 4), u64_at(values, lanes // 4)
    overflow = np.uint64(0)
    for i in range(lanes // 4):
        x, y = _swap16(a[i]), _swap16(b[i])
        total = ((x & _LOW16) + (y & _LOW16)) ^ ((x ^ y) & _TOP16)
        overflow |= (x ^ total) & (y ^ total)
        a[i] = _swap16(total)
    return int64(overflow & _TOP16 != 0)


@kernel
def add_int8(sums: Address, values: Address, lanes: int) -> int:
    """`add_int32` for int8; `lanes` is a multiple of 8."""
    a, b = u64_at(sums, lanes // 8), u64_at(values, lanes // 8)
    overflow = np.uint64(0)
    for i in range(lanes // 8):
        x, y = a[i], b[i]
        total = ((x & _LOW8) + (y & _LOW8)) ^ ((x ^ y) & _TOP8)
        overflow |= (x ^ total) & (y ^ total)
        a[i] = total
    return int64(overflow & _TOP8 != 0)


@kernel(inline=True)
def full_size_code(payload: int) -> int:
    """Size code of a full ordinary packet: packet.SIZE_CODE_OF for kernels."""
    return 3 if payload == 1024 else 1


@kernel(forceinline=True)
def store(target: Address, source: Address, payload: int) -> None:
    """Copy a payload. (In words: a slice assignment would copy byte by byte.)"""
    a, b = u32_at(target, payload // 4), u32_at(source, payload // 4)
    for i in range(payload // 4):
        a[i] = b[i]


@kernel(forceinline=True)
def add(wire: int, sums: Address, values: Address, payload: int) -> int:
    """sums += values, over `payload` bytes of lanes of type `wire`. Returns whether a lane overflowed."""
    if wire == wire_format.WIRE_INT32:
        return add_int32(sums, values, payload // 4)
    if wire == wire_format.WIRE_INT16:
        return add_int16(sums, values, payload // 2)
    return add_int8(sums, values, payload)


@kernel
def _combine(op: int, words: Address, others: Address, payload: int) -> None:
    """words = op(words, others), over `payload` bytes; maxima are of big-endian unsigned integers."""
    a, b = u32_at(words, payload // 4), u32_at(others, payload // 4)
    if op == wire_format.OP_OR:
        for i in range(payload // 4):
            a[i] |= b[i]
    elif op == wire_format.OP_XOR:
        for i in range(payload // 4):
            a[i] ^= b[i]
    elif op == wire_format.OP_MAX32:
        for i in range(payload // 4):
            a[i] = bswap32(max(bswap32(a[i]), bswap32(b[i])))
    else:
        for i in range(0, payload // 4, 2):
            x, y = bswap32(a[i]), bswap32(b[i])
            if y > x or (y == x and bswap32(b[i + 1]) > bswap32(a[i + 1])):
                a[i], a[i + 1] = b[i], b[i + 1]


@kernel
def combine(op: int, wire: int, lanes: Address, others: Address, payload: int) -> int:
    """lanes = op(lanes, others), over `payload` bytes of lanes of type `wire`. Returns whether a sum overflowed."""
    if op == wire_format.OP_SUM:
        return add(wire, lanes, others, payload)
    _combine(op, lanes, others, payload)
    return int64(0)


@kernel
def keep_greatest_codes(codes: Address, others: Address) -> bool:
    """Store the maximum of each pair of the codes `ahead` and `need` of two large packets in `codes`. Returns whether
    their `used` codes are equal."""
    a, b = u8_at(codes, wire_format.CODES_BYTES), u8_at(others, wire_format.CODES_BYTES)
    differ = np.uint8(0)
    for i in range(2 * wire_format.MAX_BLOCKS):
        a[i] = np.uint8(max(a[i] ^ np.uint8(0x80), b[i] ^ np.uint8(0x80)) ^ np.uint8(0x80))
    for i in range(2 * wire_format.MAX_BLOCKS, wire_format.CODES_BYTES):
        differ |= np.uint8(a[i] ^ b[i])
    return bool(differ == 0)


@kernel
def keep_least_words(words: Address, others: Address, columns: int) -> None:
    """Store the minimum of each pair of big-endian words at two addresses in `words`."""
    a, b = u32_at(words, columns), u32_at(others, columns)
    for i in range(columns):
        if bswap32(b[i]) < bswap32(a[i]):
            a[i] = b[i]
