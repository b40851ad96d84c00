"""Tags of packets: SipHash-2-4 beside a slow one and its authors' test vectors, and what a tag covers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchml.protocol.authentication import (
    EVERYBODY,
    TAG_BYTES,
    TO_AGGREGATOR,
    TO_RANKS,
    is_genuine,
    key_words,
    packet_rows,
    sign,
    siphash,
)

KEY = bytes(range(16))
PUBLISHED = {
    8: "6224939a79f5f593",
    9: "b0e4a90bdf82009e",
    10: "f3b9dd94c5bb5d7a",
    11: "a7ad6b22462fb3f4",
    12: "fbe50e86bc8f1e75",
    13: "903d84c02756ea14",
    14: "eef27a8e90ca23f7",
    15: "e545be4961ca29a1",
    63: "724506eb4c328a95",
}
"""vectors.h of github.com/veorq/SipHash, `vectors_sip64`: the key is KEY, the message as many bytes 0, 1, 2, …"""


def reference(key: bytes, message: bytes) -> bytes:
    """SipHash-2-4 as the paper's section 2 has it, in whole numbers."""
    k0, k1 = (int.from_bytes(key[i : i + 8], "little") for i in (0, 8))
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def rotate(x: int, bits: int) -> int:
        return (x << bits | x >> (64 - bits)) % 2**64

    def rounds(count: int) -> None:
        for _ in range(count):
            for a, b, bits, turned in ((0, 1, 13, True), (2, 3, 16, False), (0, 3, 21, False), (2, 1, 17, True)):
                v[a] = (v[a] + v[b]) % 2**64
                v[b] = rotate(v[b], bits) ^ v[a]
                if turned:
                    v[a] = rotate(v[a], 32)

    padded = message + bytes(-(len(message) + 1) % 8) + bytes([len(message) % 256])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xFF
    rounds(4)
    return (v[0] ^ v[1] ^ v[2] ^ v[3]).to_bytes(8, "little")


def compiled(key: bytes, message: bytes) -> bytes:
    words = key_words(key)
    rest = np.frombuffer(message[8:] or b"\0", np.uint8)
    start = int.from_bytes(message[:8], "little", signed=True)
    return int(siphash(words[0], words[1], start, rest.ctypes.data, len(message) - 8)).to_bytes(8, "little")


@pytest.mark.parametrize("length", PUBLISHED)
def test_published_vectors(length):
    message = bytes(range(length))
    assert reference(KEY, message).hex() == compiled(KEY, message).hex() == PUBLISHED[length]


@given(st.binary(min_size=16, max_size=16), st.binary(min_size=8, max_size=1100))
def test_the_kernel_and_the_slow_one_agree(key, message):
    assert compiled(key, message) == reference(key, message)


def tag_of(packet: bytes, *about: int, key: bytes = KEY) -> bytes:
    row = packet_rows(1, len(packet), TAG_BYTES)
    row[0, : len(packet)] = np.frombuffer(packet, np.uint8)
    words = key_words(key)
    sign(words[0], words[1], *about, row.ctypes.data, len(packet))
    assert is_genuine(words[0], words[1], *about, row.ctypes.data, len(packet))
    return row[0, len(packet) :].tobytes()


@given(
    st.binary(min_size=10, max_size=1066),
    st.sampled_from((TO_AGGREGATOR, TO_RANKS)),
    st.integers(0, 255) | st.just(EVERYBODY),
    st.integers(-(2**20), 2**48),
)
def test_what_is_signed(packet, direction, rank, number):
    """docs/protocol.md, section 10: direction, 0, rank, epoch; then the packet."""
    ends = bytes((direction, 0)) + rank.to_bytes(2, "big") + (number >> 32 & 0xFFFFFFFF).to_bytes(4, "big")
    assert tag_of(packet, direction, rank, number) == reference(KEY, ends + packet)


def test_the_documents_example():
    packet = bytes.fromhex("817f000000051234807d")
    assert tag_of(packet, TO_AGGREGATOR, 3, 2**32 + 5).hex(" ") == "39 b0 dc 6d 80 20 f2 c6"


def test_everything_counts():
    """Another packet, direction, rank, key, or a number 2^32 further gives another tag."""
    packet = bytes(range(42))
    number = 5
    tags = {
        tag_of(packet, TO_AGGREGATOR, 3, number),
        tag_of(packet[:-1] + b"\0", TO_AGGREGATOR, 3, number),
        tag_of(packet + b"\0", TO_AGGREGATOR, 3, number),
        tag_of(packet, TO_RANKS, 3, number),
        tag_of(packet, TO_AGGREGATOR, 4, number),
        tag_of(packet, TO_AGGREGATOR, 3, number + 2**32),
        tag_of(packet, TO_AGGREGATOR, 3, number, key=bytes(16)),
    }
    assert len(tags) == 7


def test_packets_with_tags_lie_next_to_each_other():
    rows = packet_rows(3, 42, TAG_BYTES)
    assert rows.shape == (3, 50) and rows.strides == (50, 1)
    end_of_last = rows.ctypes.data + rows.size + TAG_BYTES
    assert rows.base is not None and end_of_last <= rows.base.ctypes.data + rows.base.nbytes
