"""Tags of packets: SipHash-2-4 beside a slow one and its authors' test vectors, and what a tag covers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchml.protocol import authentication
from switchml.protocol.authentication import (
    EVERYBODY,
    TAG_BYTES,
    TO_AGGREGATOR,
    TO_RANKS,
    key_words,
    new_batch,
    packet_rows,
    siphash,
)
from switchml.runtime.lanes import LANES

KEY = bytes(range(16))
PUBLISHED = {
    8: "6224939a79f5f593", 9: "b0e4a90bdf82009e", 10: "f3b9dd94c5bb5d7a", 11: "a7ad6b22462fb3f4",
    12: "fbe50e86bc8f1e75", 13: "903d84c02756ea14", 14: "eef27a8e90ca23f7", 15: "e545be4961ca29a1",
    63: "724506eb4c328a95",
}  # fmt: skip
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
    before = np.uint64(int.from_bytes(message[:8], "little"))
    return int(siphash(words[0], words[1], before, rest.ctypes.data, len(message) - 8)).to_bytes(8, "little")


@pytest.mark.parametrize("length", PUBLISHED)
def test_published_vectors(length):
    message = bytes(range(length))
    assert reference(KEY, message).hex() == compiled(KEY, message).hex() == PUBLISHED[length]


@given(st.binary(min_size=16, max_size=16), st.binary(min_size=8, max_size=1100))
def test_the_kernel_and_the_slow_one_agree(key, message):
    assert compiled(key, message) == reference(key, message)


def sign(*packets: tuple[bytes, bytes, tuple[int, int, int]]) -> list[bytes]:
    """The tags of (key, packet, (direction, rank, number))s that are signed together; each is right, and no other."""
    rows = [np.frombuffer(packet + bytes(TAG_BYTES), np.uint8).copy() for _, packet, _ in packets]
    batch = new_batch(len(packets))

    def add_all() -> None:
        for i, ((key, packet, about), row) in enumerate(zip(packets, rows, strict=True)):
            words = key_words(key)
            assert authentication.add(batch, i, i, *words, *about, np.uint64(row.ctypes.data), len(packet)) == i + 1

    add_all()
    authentication.sign(batch, len(packets))
    tags = [row[-TAG_BYTES:].tobytes() for row in rows]
    wrong = range(0, len(rows), 3)
    for i in wrong:
        rows[i][-1] ^= 1
    lengths = np.array([len(row) for row in rows], np.int32)
    add_all()
    authentication.check(batch, len(packets), lengths)
    assert lengths.tolist() == [~len(row) if i in wrong else len(row) - TAG_BYTES for i, row in enumerate(rows)]
    return tags


def tag_of(packet: bytes, *about: int, key: bytes = KEY) -> bytes:
    [_, tag] = sign((key, b"", about), (key, packet, about))
    return tag


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


@given(st.lists(st.tuples(st.sampled_from((10, 11, 42, 266, 1034)), st.integers(1, 2 * LANES + 1)), max_size=4))
def test_packets_side_by_side(runs):
    """Runs of one length, with keys and rounds of their own, as long as there are lanes, longer and shorter."""
    generator = np.random.default_rng(len(runs))
    packets = [
        (generator.bytes(16), generator.bytes(length), (TO_AGGREGATOR, int(generator.integers(256)), k << 32))
        for length, count in runs
        for k in range(count)
    ]
    expected = [
        reference(key, bytes((0, 0)) + rank.to_bytes(2, "big") + (number >> 32).to_bytes(4, "big") + packet)
        for key, packet, (_, rank, number) in packets
    ]
    assert sign(*packets) == expected


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
