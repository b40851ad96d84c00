"""What packet_io, packet_ring and superframes do, frame by frame in plain Python: ports work this way until their
kernels are compiled, and tests compare."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

from emulator.p4switch.hashes import csum16
from emulator.p4switch.ports import packet_io, packet_ring
from emulator.p4switch.ports.packet_ring import SLOT_BYTES, SLOTS, Ring
from emulator.p4switch.ports.superframes import (
    MAX_CUT_BYTES,
    MOST_HEADER_BYTES,
    MOST_PACKETS,
    NEEDS_CHECKSUM,
    VIRTIO_BYTES,
)

MOST_BYTES = 1 << 17
"""The longest frame that is taken."""

_IPV4, _IPV6, _TAGS = 0x0800, 0x86DD, (0x8100, 0x88A8)
_TCP_CHECKSUM_AT, _UDP_CHECKSUM_AT = 16, 6


def _u16(data: bytes | bytearray, at: int) -> int:
    return int.from_bytes(data[at : at + 2], "big")


def _put_u16(data: bytearray, at: int, value: int) -> None:
    data[at : at + 2] = (value & 0xFFFF).to_bytes(2, "big")


def complete(frame: bytearray, start: int, offset: int) -> None:
    """As superframes.complete."""
    if start + offset + 2 <= len(frame):
        _put_u16(frame, start + offset, csum16(bytes(frame[start:])) or 0xFFFF)


def _network_at(frame: bytearray) -> tuple[int, int]:
    at = 14
    while at + 20 <= len(frame):
        kind = _u16(frame, at - 2)
        if kind in _TAGS:
            at += 4
        elif kind == _IPV4 or (kind == _IPV6 and at + 40 <= len(frame)):
            return at, 4 if kind == _IPV4 else 6
        else:
            break
    return 0, 0


def cut(frame: bytearray, size: int, start: int, offset: int) -> list[bytes]:
    """As superframes.cut: the packets of a superframe, none if it can't be cut."""
    network, version = _network_at(frame)
    is_udp = offset == _UDP_CHECKSUM_AT
    if not network or not size or start < network + 20 or start + (8 if is_udp else 20) > len(frame):
        return []
    if offset not in (_UDP_CHECKSUM_AT, _TCP_CHECKSUM_AT):
        return []
    header = start + (8 if is_udp else 4 * (frame[start + 12] >> 4))
    n = -(-(len(frame) - header) // size)
    if header >= len(frame) or header > MOST_HEADER_BYTES or n > MOST_PACKETS:
        return []
    if len(frame) + n * header > MAX_CUT_BYTES:
        return []
    partial, sequence = _u16(frame, start + offset), int.from_bytes(frame[start + 4 : start + 8], "big")
    packets = []
    for i in range(n):
        packet = frame[:header] + frame[header + i * size : header + (i + 1) * size]
        if version == 4:
            _put_u16(packet, network + 2, len(packet) - network)
            _put_u16(packet, network + 4, _u16(frame, network + 4) + i)
            _put_u16(packet, network + 10, 0)
            words = bytes(packet[network : network + 4 * (packet[network] & 15)])
            _put_u16(packet, network + 10, csum16(words))
        else:
            _put_u16(packet, network + 4, len(packet) - network - 40)
        if is_udp:
            _put_u16(packet, start + 4, len(packet) - start)
        else:
            packet[start + 4 : start + 8] = ((sequence + i * size) & 0xFFFFFFFF).to_bytes(4, "big")
            packet[start + 13] &= 0xFF if i + 1 == n else 0xFF - 0x09  # FIN and PSH belong to the last one
            packet[start + 13] &= 0xFF if i == 0 else 0xFF - 0x80  # CWR to the first
        total = partial + (~(len(frame) - start) & 0xFFFF) + len(packet) - start  # the length in the pseudo header
        total = (total & 0xFFFF) + (total >> 16)
        _put_u16(packet, start + offset, (total & 0xFFFF) + (total >> 16))
        complete(packet, start, offset)
        packets.append(bytes(packet))
    return packets


def packets_of(virtio: bytes, frame: bytearray, grown: int = 0) -> list[bytes]:
    """The packets of what Linux gave as one frame behind a virtio header; `grown` as for packet_io.take_frame."""
    if len(frame) < 14:
        return []
    flags, kind, _, size, start, offset = struct.unpack("=BBHHHH", virtio[:VIRTIO_BYTES])
    if kind:
        return cut(frame, size, start + grown, offset)
    if flags & NEEDS_CHECKSUM:
        complete(frame, start + grown, offset)
    return [bytes(frame)]


def _with_tag(frame: bytearray, status: int, tag: int, kind: int) -> tuple[bytearray, int]:
    """(the frame with its VLAN tag, bytes that it grew)."""
    if not status & packet_io.VLAN_VALID:
        return frame, 0
    kind = kind if status & packet_io.VLAN_KIND_VALID else packet_io.VLAN
    return frame[:12] + struct.pack(">HH", kind, tag) + frame[12:], 4


def receive_message(sock: socket.socket) -> list[bytes] | None:
    """The packets of the next frame of a socket that packet_io.new_socket made; None if nothing waits."""
    try:
        data, control, _, _ = sock.recvmsg(MOST_BYTES, 64, socket.MSG_DONTWAIT)
    except (BlockingIOError, InterruptedError):
        return None
    except OSError:  # the interface went down
        return None
    status = tag = kind = 0
    for level, sort, auxiliary in control:
        if (level, sort) == (packet_io.SOL_PACKET, packet_io.AUXDATA):
            status, tag, kind = struct.unpack_from("=I12xHH", auxiliary)
    frame, grown = _with_tag(bytearray(data[VIRTIO_BYTES:]), status, tag, kind)
    return packets_of(data, frame, grown)


def receive_ring(ring: Ring, sock: socket.socket) -> Iterator[bytes]:
    """What has arrived, from a ring. A slot is Linux's again as soon as its packets were taken."""
    for _ in range(packet_io.MESSAGES):
        at = int(ring.place[0]) % SLOTS * SLOT_BYTES
        slot = ring.memory[at : at + SLOT_BYTES]
        status, length, captured, frame_at = struct.unpack_from("=IIIH", slot)
        if not status & packet_ring.WITH_US:
            return
        ring.place[0] += 1
        if status & packet_ring.IS_IN_QUEUE:
            packets = receive_message(sock) or []
        elif captured < length:
            packets = []
        else:
            tag, kind = struct.unpack_from("=HH", slot, packet_ring.TAG)
            frame, grown = _with_tag(bytearray(slot[frame_at : frame_at + length]), status, tag, kind)
            packets = packets_of(bytes(slot[frame_at - VIRTIO_BYTES : frame_at]), frame, grown)
        slot[:4] = 0
        yield from packets
