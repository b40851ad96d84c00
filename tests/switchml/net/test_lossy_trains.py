"""Packets removed from trains: what is left must be what the kernel would have made of the train, without them."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchml.net.trains import VIRTIO_BYTES, count_packets, without
from tests.support.p4_frames import ones_complement_sum as ones_sum

TCP, UDP = 6, 17
NEEDS_CSUM = 1
GSO_TCPV4, GSO_UDP_L4 = 1, 5
IP_AT = VIRTIO_BYTES + 14


def train(protocol: int, payload: bytes, size: int, seq: int = 1000, ident: int = 7, options: int = 12) -> bytearray:
    """What the kernel hands over: virtio header, Ethernet, IPv4, TCP or UDP with a partial checksum, all payloads."""
    transport_length = (8 if protocol == UDP else 20 + options) + len(payload)
    source, target = bytes([10, 77, 1, 1]), bytes([10, 77, 0, 1])
    partial = ones_sum(source + target + struct.pack("!HH", protocol, transport_length))
    if protocol == UDP:
        transport = struct.pack("!HHHH", 5000, 6000, transport_length, partial)
    else:
        flags = 0x19  # ACK, PSH, FIN
        transport = struct.pack("!HHIIBBHHH", 5000, 6000, seq, 99, (20 + options) << 2, flags, 500, partial, 0)
        transport += bytes(range(options))
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + transport_length, ident, 0, 64, protocol, 0, source, target)
    ip = ip[:10] + struct.pack("!H", ~ones_sum(ip) & 0xFFFF) + ip[12:]
    many = len(payload) > size
    gso_type = (GSO_UDP_L4 if protocol == UDP else GSO_TCPV4) if many else 0
    checksum_at = 6 if protocol == UDP else 16
    virtio = struct.pack("<BBHHHH", NEEDS_CSUM, gso_type, 54, size if many else 0, 34, checksum_at)
    return bytearray(virtio + bytes(12) + b"\x08\x00" + ip + transport + payload)


def packets_of(frame: bytes) -> list[tuple]:
    """What a frame becomes when it is cut: (sequence number or None, flags or None, payload) of each packet, after
    checking that lengths and checksums agree with each other.
    """
    gso_size = struct.unpack_from("<H", frame, 4)[0]
    ip = frame[IP_AT:]
    assert struct.unpack_from("!H", ip, 2)[0] == len(ip)
    assert ones_sum(bytes(ip[:20])) == 0xFFFF
    protocol, transport = ip[9], ip[20:]
    header = 8 if protocol == UDP else (transport[12] >> 4) * 4
    checksum_at = 6 if protocol == UDP else 16
    assert struct.unpack_from("!H", transport, checksum_at)[0] == ones_sum(
        bytes(ip[12:20]) + struct.pack("!HH", protocol, len(transport))
    )
    payload = bytes(transport[header:])
    if protocol == UDP:
        assert struct.unpack_from("!H", transport, 4)[0] == len(transport)
    size = gso_size or len(payload)
    assert (frame[1] != 0) == (gso_size != 0) == (len(payload) > size)
    cuts = range(0, len(payload), size)
    if protocol == UDP:
        return [(None, None, payload[cut : cut + size]) for cut in cuts]
    seq, flags = struct.unpack_from("!I", transport, 4)[0], transport[13]
    return [
        ((seq + cut) % 2**32, flags if cut + size >= len(payload) else flags & ~0x09, payload[cut : cut + size])
        for cut in cuts
    ]


def cut_out(frame: bytes, surviving: list[bool]) -> list[bytes]:
    array = np.frombuffer(bytes(frame), np.uint8)
    packets, header, _ = count_packets(array.ctypes.data, len(array))
    assert packets == len(surviving)
    out = np.zeros(len(array) + packets * header, np.uint8)
    lengths = np.zeros(packets, np.int64)
    count = without(array.ctypes.data, len(array), np.array(surviving), out.ctypes.data, lengths)
    edges = np.cumsum((0, *lengths[:count]))
    return [out[a:b].tobytes() for a, b in zip(edges[:-1], edges[1:], strict=True)]


@given(
    protocol=st.sampled_from([TCP, UDP]),
    size=st.integers(1, 300),
    last=st.integers(1, 300),
    surviving=st.lists(st.booleans(), min_size=2, max_size=60),
    seq=st.sampled_from([0, 1000, 2**32 - 300]),
    data=st.randoms(use_true_random=False),
)
def test_what_is_left_is_the_train_without_the_lost_packets(protocol, size, last, surviving, seq, data):
    payload = data.randbytes(size * (len(surviving) - 1) + min(last, size))
    frame = train(protocol, payload, size, seq)
    expected = [packet for packet, stays in zip(packets_of(frame), surviving, strict=True) if stays]
    left = cut_out(frame, surviving)
    assert [packet for part in left for packet in packets_of(part)] == expected
    if protocol == UDP:
        assert len(left) == (1 if any(surviving) else 0)


@pytest.mark.parametrize("protocol", [TCP, UDP])
def test_layout(protocol):
    header = IP_AT + 20 + (8 if protocol == UDP else 32)
    for payload, packets in ((2500, 3), (2000, 2)):
        frame = np.frombuffer(bytes(train(protocol, bytes(payload), 1000)), np.uint8)
        assert count_packets(frame.ctypes.data, len(frame)) == (packets, header, 1000)


def test_anything_else_is_one_packet():
    single = train(UDP, bytes(1000), 1000)
    arp = bytearray(train(UDP, bytes(3000), 1000))
    arp[VIRTIO_BYTES + 12 : VIRTIO_BYTES + 14] = b"\x08\x06"
    other = bytearray(train(UDP, bytes(3000), 1000))
    other[IP_AT + 9] = 47
    for data in (single, arp, other, train(TCP, bytes(3000), 1000)[:50], b"", b"12345"):
        frame = np.frombuffer(bytes(data) or b"\0", np.uint8)
        assert count_packets(frame.ctypes.data, len(data)) == (1, 0, 0)
