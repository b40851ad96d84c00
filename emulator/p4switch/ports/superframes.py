"""Superframes: what Linux hands over as one frame when it leaves the cutting into packets to the hardware (GSO), with
the checksum left out. A P4 program sees the packets, so they are cut here and their checksums completed, and equal
packets that leave one after another are joined again.

A socket with PACKET_VNET_HDR puts a struct virtio_net_hdr (linux/virtio_net.h, 10 bytes) before each frame: flags,
type of segmentation, length of all headers, payload bytes of each packet, where the checksum starts and its offset
from there. Frames below are addresses and lengths without that header. UDP and TCP over IPv4 and IPv6 are cut, with
VLAN tags or without; UDP over IPv4 is joined."""

from __future__ import annotations

from switchml.runtime.jit import kernel
from switchml.runtime.memory import be16, be32, copy_bytes, put_be16, put_be32, u8_at, u32_at

VIRTIO_BYTES = 10
NEEDS_CHECKSUM = 1
"""A flag of the virtio header."""
UDP_SEGMENTS = 5
"""Its type of segmentation for UDP (VIRTIO_NET_HDR_GSO_UDP_L4, since Linux 6.2)."""
MOST_HEADER_BYTES = 256
"""Ethernet, VLAN tags, IP with options or extensions, and TCP with options."""
MOST_JOINED = 64
"""Packets that one superframe is made of: what Linux takes in one piece everywhere (UDP_MAX_SEGMENTS)."""
MOST_JOINED_BYTES = 65000
MOST_PACKETS = 4096
"""Packets that one superframe is cut into; one that has more is dropped."""
MAX_CUT_BYTES = 8 << 20
"""What the packets of one superframe can come to in all."""

_IPV4, _IPV6, _VLAN, _QINQ = 0x0800, 0x86DD, 0x8100, 0x88A8
_UDP, _TCP_CHECKSUM_AT, _UDP_CHECKSUM_AT = 17, 16, 6
_FIN_PSH, _CWR = 0x09, 0x80


@kernel
def checksum(at, count, start):
    """The Internet checksum's sum (RFC 1071, not complemented) of `count` bytes and of the number `start`."""
    total = start
    words = u32_at(at, count // 4)
    little = 0
    for i in range(count // 4):
        little += words[i]
    little = (little & 0xFFFF) + ((little >> 16) & 0xFFFF) + (little >> 32)
    while little >> 16:
        little = (little & 0xFFFF) + (little >> 16)
    total += ((little & 0xFF) << 8) | (little >> 8)
    data = u8_at(at, count)
    for i in range(count // 4 * 4, count):
        total += data[i] if i & 1 else data[i] << 8
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


@kernel
def complete(at, length, start, offset):
    """Fill in a checksum that was left out: its field holds the sum of the pseudo header."""
    if start + offset + 2 > length:
        return
    value = ~checksum(at + start, length - start, 0) & 0xFFFF
    put_be16(u8_at(at, length), start + offset, value if value else 0xFFFF)


@kernel
def network_at(frame, length):
    """(offset of the IP header, its version), or (0, 0) if there is none."""
    at = 14
    while at + 20 <= length:
        kind = be16(frame, at - 2)
        if kind in (_VLAN, _QINQ):
            at += 4
        elif kind == _IPV4:
            return at, 4
        elif kind == _IPV6 and at + 40 <= length:
            return at, 6
        else:
            break
    return 0, 0


@kernel
def _put_ipv4(frame, at, length, number):
    """Set total length and identification, and the header's checksum."""
    put_be16(frame, at + 2, length)
    put_be16(frame, at + 4, number & 0xFFFF)
    put_be16(frame, at + 10, 0)
    header = 4 * (frame[at] & 15)
    total = 0
    for word in range(at, at + header, 2):
        total += be16(frame, word)
    total = (total & 0xFFFF) + (total >> 16)
    put_be16(frame, at + 10, ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF)


@kernel
def cut(at, length, size, start, offset, out, room, addresses, lengths):
    """Cut the superframe at an address into packets with `size` bytes of payload (the last may have fewer). `start`
    and `offset`: of its checksum. Packets are written one behind another from address `out` on, where there are `room`
    bytes; `addresses` and `lengths` tell where. Returns (packets, bytes written), (0, 0) if it can't be cut."""
    frame = u8_at(at, length)
    network, version = network_at(frame, length)
    is_udp = offset == _UDP_CHECKSUM_AT
    if network == 0 or size == 0 or start < network + 20 or start + (8 if is_udp else 20) > length:
        return 0, 0
    if not is_udp and offset != _TCP_CHECKSUM_AT:
        return 0, 0
    header = start + (8 if is_udp else 4 * (frame[start + 12] >> 4))
    count = (length - header + size - 1) // size
    if header >= length or header > MOST_HEADER_BYTES or count > min(len(addresses), MOST_PACKETS):
        return 0, 0
    if length + count * header > room:
        return 0, 0
    partial = be16(frame, start + offset)
    written = 0
    for i in range(count):
        payload = min(size, length - header - i * size)
        here = out + written
        end = header + payload
        copy_bytes(here, at, header)
        copy_bytes(here + header, at + header + i * size, payload)
        packet = u8_at(here, end)
        if version == 4:
            _put_ipv4(packet, network, end - network, be16(frame, network + 4) + i)
        else:
            put_be16(packet, network + 4, end - network - 40)
        if is_udp:
            put_be16(packet, start + 4, end - start)
        else:
            put_be32(packet, start + 4, (be32(frame, start + 4) + i * size) & 0xFFFFFFFF)
            if i + 1 < count:
                packet[start + 13] &= 0xFF - _FIN_PSH
            if i:
                packet[start + 13] &= 0xFF - _CWR
        # RFC 1624: the pseudo header's length is part of the sum.
        total = partial + (~(length - start) & 0xFFFF) + (end - start)
        total = (total & 0xFFFF) + (total >> 16)
        put_be16(packet, start + offset, (total & 0xFFFF) + (total >> 16))
        complete(here, end, start, offset)
        addresses[i] = here
        lengths[i] = end
        written += end
    return count, written


@kernel
def is_joinable(at, length):
    """Whether a packet may be part of a superframe: UDP over IPv4, whole, with right checksums (or none)."""
    if length < 42:
        return False
    frame = u8_at(at, length)
    if be16(frame, 12) != _IPV4 or frame[14] != 0x45 or frame[23] != _UDP or be16(frame, 20) & 0x3FFF:
        return False
    if be16(frame, 16) != length - 14 or be16(frame, 38) != length - 34 or length == 42:
        return False
    if checksum(at + 14, 20, 0) != 0xFFFF:
        return False
    return be16(frame, 40) == 0 or checksum(at + 26, length - 26, _UDP + length - 34) == 0xFFFF


@kernel
def follows(first, first_length, number, at, length):
    """Whether a joinable packet can come `number` packets after the joinable packet `first`: the same headers, with the
    next identification."""
    if length > first_length:
        return False
    one, two = u8_at(first, 42), u8_at(at, 42)
    for i in range(40):
        if one[i] != two[i] and i not in (16, 17, 18, 19, 24, 25, 38, 39):  # lengths, identification, checksum
            return False
    return be16(two, 18) == (be16(one, 18) + number) & 0xFFFF and (be16(one, 40) == 0) == (be16(two, 40) == 0)


@kernel
def join_headers(virtio, header, first, first_length, payload):
    """Write the virtio header and the 42 bytes of headers of a superframe with `payload` bytes in all, of which the
    packet `first` is the first."""
    for i in range(VIRTIO_BYTES):
        virtio[i] = 0
    size = first_length - 42
    virtio[0], virtio[1], virtio[2] = NEEDS_CHECKSUM, UDP_SEGMENTS, 42
    virtio[4], virtio[5] = size & 0xFF, size >> 8
    virtio[6], virtio[8] = 34, _UDP_CHECKSUM_AT
    source = u8_at(first, 42)
    for i in range(42):
        header[i] = source[i]
    _put_ipv4(header, 14, 28 + payload, be16(header, 18))
    put_be16(header, 38, 8 + payload)
    put_be16(header, 40, checksum(first + 26, 8, _UDP + 8 + payload))
