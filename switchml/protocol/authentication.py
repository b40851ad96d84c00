"""The tags of authenticated packets (docs/protocol.md, section 10): who signed a packet, for whom, and in which round.

A tag is SipHash-2-4 (Aumasson, Bernstein: SipHash: a fast short-input PRF, 2012) over who sends and receives, the upper
half of the round's 64-bit number, and the packet. Its key is drawn for one job, and the round is part of what is
signed, so a packet that is sent again later, or in another job, is refused. Packets through shared memory have none.
"""

from __future__ import annotations

import numpy as np

from switchml.runtime.jit import Address, int64, kernel
from switchml.runtime.memory import bswap16, bswap32, u8_at, u64_at

TAG_BYTES = 8
TO_AGGREGATOR, TO_RANKS = 0, 1
"""Directions."""
EVERYBODY = 0xFFFF
"""In place of a rank: what the aggregator sends to all of them."""

_INITIAL = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
"""SipHash's own: "somepseudorandomlygeneratedbytes"."""


def key_words(key: bytes) -> np.ndarray:
    """A key as the kernels take it: uint64[2], or uint64[0] for no key."""
    return np.frombuffer(key, "<u8").astype(np.uint64)


def packet_rows(rows: int, packet_bytes: int, room: int) -> np.ndarray:
    """uint8[rows, packet_bytes + room], zeros. A packet that ends its row has `room` bytes behind it, where the next
    row begins: with its tag it reaches up to the next packet, so they travel as one piece."""
    width = packet_bytes + room
    return np.zeros(rows * width + room, np.uint8)[: rows * width].reshape(rows, width)


@kernel(forceinline=True)
def _rotated(x: np.uint64, bits: int) -> np.uint64:
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


@kernel(forceinline=True)
def _mix(
    v0: np.uint64, v1: np.uint64, v2: np.uint64, v3: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    """One SipRound."""
    v0, v2 = v0 + v1, v2 + v3
    v1, v3 = _rotated(v1, 13) ^ v0, _rotated(v3, 16) ^ v2
    v0 = _rotated(v0, 32)
    v2, v0 = v2 + v1, v0 + v3
    v1, v3 = _rotated(v1, 17) ^ v2, _rotated(v3, 21) ^ v0
    return v0, v1, _rotated(v2, 32), v3


@kernel
def siphash(key0: np.uint64, key1: np.uint64, start: int, address: Address, length: int) -> np.uint64:
    """SipHash-2-4 of eight bytes (the number `start`, little-endian) and the `length` bytes at an address."""
    v0, v1 = key0 ^ np.uint64(_INITIAL[0]), key1 ^ np.uint64(_INITIAL[1])
    v2, v3 = key0 ^ np.uint64(_INITIAL[2]), key1 ^ np.uint64(_INITIAL[3])
    words = length >> 3
    data = u64_at(address, words)
    word = np.uint64(start)
    for i in range(words + 1):
        v3 ^= word
        v0, v1, v2, v3 = _mix(v0, v1, v2, v3)
        v0, v1, v2, v3 = _mix(v0, v1, v2, v3)
        v0 ^= word
        if i < words:
            word = data[i]
    rest = u8_at(address + np.uint64(8 * words), length & 7)
    last = np.uint64((length + 8) & 0xFF) << np.uint64(56)
    for i in range(length & 7):
        last |= np.uint64(rest[i]) << np.uint64(8 * i)
    v3 ^= last
    v0, v1, v2, v3 = _mix(v0, v1, v2, v3)
    v0, v1, v2, v3 = _mix(v0, v1, v2, v3)
    v0 ^= last
    v2 ^= np.uint64(0xFF)
    for _ in range(4):
        v0, v1, v2, v3 = _mix(v0, v1, v2, v3)
    return v0 ^ v1 ^ v2 ^ v3


@kernel
def _tag(
    key0: np.uint64, key1: np.uint64, direction: int, rank: int, number: int, address: Address, length: int
) -> np.uint64:
    """The tag of a packet of the round with the 64-bit number `number`."""
    epoch = np.uint64(bswap32(np.uint32((number >> 32) & 0xFFFFFFFF)))
    ends = np.uint64(direction) | np.uint64(bswap16(np.uint16(rank))) << np.uint64(16)
    return siphash(key0, key1, int64(ends | epoch << np.uint64(32)), address, length)


@kernel
def sign(
    key0: np.uint64, key1: np.uint64, direction: int, rank: int, number: int, address: Address, length: int
) -> None:
    """Put a packet's tag behind it."""
    u64_at(address + np.uint64(length), 1)[0] = _tag(key0, key1, direction, rank, number, address, length)


@kernel
def is_genuine(
    key0: np.uint64, key1: np.uint64, direction: int, rank: int, number: int, address: Address, length: int
) -> bool:
    """Whether the tag behind a packet, whose `length` is that without the tag, is the right one."""
    given = u64_at(address + np.uint64(length), 1)[0]
    return bool(given == _tag(key0, key1, direction, rank, number, address, length))
