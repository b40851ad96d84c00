"""Ethernet frames as hosts build and read them, with `struct` and nothing of `switchml/`."""

import struct
from typing import NamedTuple

SWITCH_MAC = 0x02_00_00_00_00_FE
SWITCH_ADDRESS = "10.0.0.254"


class Datagram(NamedTuple):
    """A UDP datagram and how it travels; addresses as (MAC, IPv4 number, UDP port)."""

    src: tuple[int, int, int]
    dst: tuple[int, int, int]
    payload: bytes


def ones_complement_sum(data: bytes) -> int:
    """Of 16-bit words, not complemented (RFC 1071)."""
    total = sum(struct.unpack(f">{(len(data) + 1) // 2}H", data + b"\0" * (len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def ethernet(dst: int, src: int, kind: int, payload: bytes) -> bytes:
    return dst.to_bytes(6, "big") + src.to_bytes(6, "big") + struct.pack(">H", kind) + payload


def ipv4(src: int, dst: int, protocol: int, payload: bytes) -> bytes:
    header = struct.pack(">BBHHHBBHII", 0x45, 0, 20 + len(payload), 7, 0x4000, 61, protocol, 0, src, dst)
    return header[:10] + struct.pack(">H", ones_complement_sum(header) ^ 0xFFFF) + header[12:] + payload


def udp(datagram: Datagram) -> bytes:
    """The frame. (Its UDP checksum is that of a host that leaves it to its network card: anything.)"""
    (src_mac, src, src_port), (dst_mac, dst, dst_port), payload = datagram
    segment = struct.pack(">HHHH", src_port, dst_port, 8 + len(payload), 0xABCD) + payload
    return ethernet(dst_mac, src_mac, 0x0800, ipv4(src, dst, 17, segment))


def read_udp(frame: bytes) -> Datagram:
    """What a host reads of a frame from the switch; AssertionError if it would drop it."""
    dst_mac, src_mac, kind = frame[:6], frame[6:12], frame[12:14]
    assert kind == b"\x08\x00" and frame[14] == 0x45
    assert ones_complement_sum(frame[14:34]) == 0xFFFF, "IPv4 checksum"
    _, tos, length, identity, fragment, ttl, protocol, _, src, dst = struct.unpack(">BBHHHBBHII", frame[14:34])
    assert (tos, identity, fragment, ttl, protocol) == (0, 0, 0, 64, 17)
    src_port, dst_port, udp_length, checksum = struct.unpack(">HHHH", frame[34:42])
    assert length == 20 + udp_length == len(frame) - 14
    assert checksum == 0
    return Datagram(
        (int.from_bytes(src_mac, "big"), src, src_port), (int.from_bytes(dst_mac, "big"), dst, dst_port), frame[42:]
    )
