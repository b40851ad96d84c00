"""The tags of authenticated packets (docs/protocol.md, section 10), which prove the sender, the receiver and the round.

A tag is SipHash-2-4 (Aumasson, Bernstein: SipHash: a fast short-input PRF, 2012) over the direction and the rank, the
upper half of the round's 64-bit number, and the packet. Its key is generated per job, and the round is part of the
signed data, so a packet that is replayed later, or in another job, is refused. Packets through shared memory have no
tags.

One SipHash is a chain of dependent operations, and leaves most of a processor idle. So the packets of a batch are
hashed in parallel (`Batch`), eight at a time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from switchml.runtime.jit import Address, kernel
from switchml.runtime.lanes import LANES, byte_at, each, eight_at, put_eight, rotated, word_at
from switchml.runtime.memory import bswap16, bswap32, record, u64_at

TAG_BYTES = 8
TO_AGGREGATOR, TO_RANKS = 0, 1
"""Directions of packets."""
EVERYBODY = 0xFFFF
"""Placeholder for a rank: packets of the aggregator to all of them."""

_INITIAL = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
"""SipHash's constants: "somepseudorandomlygeneratedbytes"."""


def key_words(key: bytes) -> np.ndarray:
    """Convert a key for the kernels: uint64[2], or uint64[0] for no key."""
    return np.frombuffer(key, "<u8").astype(np.uint64)


def packet_rows(rows: int, packet_bytes: int, trailer_bytes: int) -> np.ndarray:
    """uint8[rows, packet_bytes + trailer_bytes], zeros. A packet that ends at the end of its row is followed by
    `trailer_bytes` bytes of the next row: with its tag it extends to the next packet, so that they are sent as one
    piece."""
    width = packet_bytes + trailer_bytes
    return np.zeros(rows * width + trailer_bytes, np.uint8)[: rows * width].reshape(rows, width)


_FEWEST = 3
"""With fewer packets than this, hashing one after the other is faster than in parallel, on four lanes (AVX2)."""
MESSAGE = record("u8 key0 key1 before address", "i8 length place", "u8 auth_tag")
"""A packet of a batch: both words of its key; the data hashed before it (`before`); its address, and its length without
the tag; its index in a list of packets; its tag."""


class Batch(NamedTuple):
    """Packets whose tags are computed together: MESSAGE[most]. `lanes` uint64[5, LANES]: inputs and outputs of
    siphash."""

    messages: np.ndarray
    lanes: np.ndarray


def new_batch(most: int) -> Batch:
    """A batch of up to `most` packets."""
    return Batch(np.zeros(most, MESSAGE), np.zeros((5, LANES), np.uint64))


@kernel(forceinline=True)
def _mix(v0: Any, v1: Any, v2: Any, v3: Any) -> Any:
    """One SipRound."""
    v0, v2 = v0 + v1, v2 + v3
    v1, v3 = rotated(v1, 13) ^ v0, rotated(v3, 16) ^ v2
    v0 = rotated(v0, 32)
    v2, v0 = v2 + v1, v0 + v3
    v1, v3 = rotated(v1, 17) ^ v2, rotated(v3, 21) ^ v0
    return v0, v1, rotated(v2, 32), v3


@kernel(forceinline=True)
def _absorb(v0: Any, v1: Any, v2: Any, v3: Any, word: Any) -> Any:
    """Absorb eight bytes of the message."""
    v0, v1, v2, v3 = _mix(v0, v1, v2, v3 ^ word)
    v0, v1, v2, v3 = _mix(v0, v1, v2, v3)
    return v0 ^ word, v1, v2, v3


@kernel
def siphash(key0: Any, key1: Any, before: Any, address: Any, length: int) -> Any:
    """SipHash-2-4 of eight bytes (the uint64 `before`, little-endian) and the `length` bytes at an address. Of eight
    messages of one length, if all other arguments are Lanes (switchml/runtime/lanes.py)."""
    v0, v1 = key0 ^ each(np.uint64(_INITIAL[0]), key0), key1 ^ each(np.uint64(_INITIAL[1]), key1)
    v2, v3 = key0 ^ each(np.uint64(_INITIAL[2]), key0), key1 ^ each(np.uint64(_INITIAL[3]), key1)
    v0, v1, v2, v3 = _absorb(v0, v1, v2, v3, before)
    rest = length & ~7
    for offset in range(0, rest, 8):
        v0, v1, v2, v3 = _absorb(v0, v1, v2, v3, word_at(address, offset))
    last = each(np.uint64((length + 8) & 0xFF) << np.uint64(56), before)
    for i in range(length - rest):
        last = last ^ rotated(byte_at(address, rest + i), 8 * i)
    v0, v1, v2, v3 = _absorb(v0, v1, v2, v3, last)
    v2 = v2 ^ each(np.uint64(0xFF), before)
    for _ in range(4):
        v0, v1, v2, v3 = _mix(v0, v1, v2, v3)
    return v0 ^ v1 ^ v2 ^ v3


@kernel
def _hash(batch: Batch, n: int) -> None:
    """Compute the tags of the first `n` packets; consecutive ones of the same length together."""
    messages, lanes = batch.messages, batch.lanes
    at = np.uint64(lanes.ctypes.data)
    first = 0
    while first < n:
        message, last = messages[first], first + 1
        while last < n and last < first + LANES and messages[last].length == message.length:
            last += 1
        if last < first + _FEWEST:
            last = first + 1
            message.auth_tag = siphash(message.key0, message.key1, message.before, message.address, message.length)
        else:
            for lane in range(LANES):  # the last one is repeated if there are fewer
                one = messages[min(first + lane, last - 1)]
                lanes[0, lane], lanes[1, lane], lanes[2, lane] = one.key0, one.key1, one.before
                lanes[3, lane] = one.address
            row = np.uint64(8 * LANES)
            key0, key1, before = eight_at(at), eight_at(at + row), eight_at(at + np.uint64(2) * row)
            addresses = eight_at(at + np.uint64(3) * row)
            put_eight(at + np.uint64(4) * row, siphash(key0, key1, before, addresses, message.length))
            for lane in range(last - first):
                messages[first + lane].auth_tag = lanes[4, lane]
        first = last


@kernel
def add(
    batch: Batch,
    n: int,
    place: int,
    key0: np.uint64,
    key1: np.uint64,
    direction: int,
    rank: int,
    number: int,
    address: Address,
    length: int,
) -> int:
    """Add a packet of the round with the 64-bit number `number` as the batch's `n`-th; returns n + 1. `length`: without
    the tag. `place`: index of the packet's length for `check`."""
    epoch = np.uint64(bswap32(np.uint32((number >> 32) & 0xFFFFFFFF)))
    ends = np.uint64(direction) | np.uint64(bswap16(np.uint16(rank))) << np.uint64(16)
    message = batch.messages[n]
    message.key0, message.key1, message.before = key0, key1, ends | epoch << np.uint64(32)
    message.address, message.length, message.place = address, length, place
    return n + 1


@kernel
def sign(batch: Batch, n: int) -> None:
    """Append the tags to the batch's first `n` packets."""
    _hash(batch, n)
    for i in range(n):
        message = batch.messages[i]
        u64_at(message.address + np.uint64(message.length), 1)[0] = message.auth_tag


@kernel
def check(batch: Batch, n: int, lengths: np.ndarray) -> None:
    """Verify the tags of the batch's first `n` packets. A packet's length in `lengths` is replaced by that without its
    tag, or, if the tag is wrong, by the complement of its previous value, which is negative."""
    _hash(batch, n)
    for i in range(n):
        message = batch.messages[i]
        is_genuine = u64_at(message.address + np.uint64(message.length), 1)[0] == message.auth_tag
        lengths[message.place] = message.length if is_genuine else ~lengths[message.place]
