"""Packet trains: the frames that Linux delivers when segmentation and checksums are left to the hardware (GSO, GRO).
This module cuts trains into packets, removes packets from trains, and joins packets into trains.

A packet socket puts a struct virtio_net_hdr (linux/virtio_net.h, 10 bytes) before each frame: flags, segmentation type,
length of all headers, payload bytes of each packet (the last may be shorter), start of the checksummed range and offset
of the checksum from there. One set of headers is followed by the payloads of all packets. UDP and TCP over IPv4 and
IPv6 are supported, with or without VLAN tags; only UDP over IPv4 is joined. Addresses are int64.
"""

import numpy as np

from switchml.net.checksum import complete, fold, ones_sum, put_ipv4
from switchml.runtime.jit import Address, int64, kernel
from switchml.runtime.memory import be16, be32, copy_bytes, put_be16, put_be32, u8_at

VIRTIO_BYTES = 10
NEEDS_CHECKSUM = 1
"""A flag of the virtio header."""
UDP_SEGMENTS = 5
"""Segmentation type of UDP in the virtio header (VIRTIO_NET_HDR_GSO_UDP_L4, since Linux 6.2)."""
HEADER_BYTES = 14 + 20 + 8
"""Headers of packets that can be joined: Ethernet, IPv4 without options, UDP."""
MAX_HEADER_BYTES = 256
"""Ethernet, VLAN tags, IP with options or extensions, and TCP with options."""
MAX_JOINED = 60
"""Maximum packets of a joined train; every Linux version accepts 64 (UDP_MAX_SEGMENTS before 6.9)."""
GRO_PACKETS = 64
"""Maximum packets that Linux itself joins into one UDP train on reception (UDP_GRO_CNT_MAX)."""
MAX_JOINED_BYTES = 65000
MAX_PACKETS = 4096
"""Maximum packets that one train is cut into; longer trains are unsupported."""
MAX_CUT_BYTES = 8 << 20
"""Maximum total bytes of the packets of one train."""

_IPV4, _IPV6, _VLAN, _QINQ = 0x0800, 0x86DD, 0x8100, 0x88A8
_UDP, _TCP, _UDP_CHECKSUM_AT, _TCP_CHECKSUM_AT = 17, 6, 6, 16
_FIN_PSH, _CWR = 0x09, 0x80
_ECN = 0x80
"""A flag in the segmentation type, not a type."""


@kernel
def le16(data: np.ndarray, at: int) -> int:
    """Return the number that Linux wrote to data[at:at+2] in the machine's byte order (little-endian)."""
    return int64(data[at]) | (int64(data[at + 1]) << 8)


@kernel
def virtio_fields(at: Address) -> tuple[int, int, int, int, int]:
    """Return the fields of the virtio header at an address: (flags, segmentation type or 0, payload bytes of each
    packet, start of the checksummed range in the frame, offset of the checksum from there)."""
    data = u8_at(at, VIRTIO_BYTES)
    return int64(data[0]), int64(data[1]) & ~_ECN, le16(data, 4), le16(data, 6), le16(data, 8)


@kernel
def _network_at(frame: np.ndarray, length: int) -> tuple[int, int]:
    """Return (offset of the IP header, its version), or (0, 0) if there is none."""
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
def layout(at: Address, length: int, size: int, start: int, offset: int) -> tuple[int, int, int, int]:
    """Return (offset of the IP header, its version, bytes of all headers, packets) of the train at an address, with
    `size`, `start` and `offset` from its virtio header; all 0 if unsupported."""
    frame = u8_at(at, length)
    network, version = _network_at(frame, length)
    is_udp = offset == _UDP_CHECKSUM_AT
    least = start + (8 if is_udp else 20)
    if network == 0 or size == 0 or start < network + 20 or least > length:
        return 0, 0, 0, 0
    if not is_udp and offset != _TCP_CHECKSUM_AT:
        return 0, 0, 0, 0
    if version == 4 and frame[network + 9] != (_UDP if is_udp else _TCP):
        return 0, 0, 0, 0
    header = least if is_udp else start + 4 * (int64(frame[start + 12]) >> 4)
    packets = (length - header + size - 1) // size
    if header < least or header >= length or header > MAX_HEADER_BYTES or packets > MAX_PACKETS:
        return 0, 0, 0, 0
    return network, version, header, packets


@kernel
def _describe(
    frame: np.ndarray,
    end: int,
    length: int,
    network: int,
    version: int,
    size: int,
    start: int,
    offset: int,
    first: int,
    is_last: bool,
) -> None:
    """Rewrite the headers of a train of `length` bytes, copied to `frame`, for its present `end` bytes: packets from
    number `first` on, up to the train's last one or not. The checksum remains that of the pseudo header."""
    if version == 4:
        put_ipv4(frame, network, end - network, be16(frame, network + 4) + first)
    else:
        put_be16(frame, network + 4, end - network - 40)
    if offset == _UDP_CHECKSUM_AT:
        put_be16(frame, start + 4, end - start)
    else:
        put_be32(frame, start + 4, (be32(frame, start + 4) + first * size) & 0xFFFFFFFF)
        if not is_last:
            frame[start + 13] &= 0xFF - _FIN_PSH
        if first:
            frame[start + 13] &= 0xFF - _CWR
    # RFC 1624: the pseudo header's length is part of the sum.
    put_be16(frame, start + offset, fold(be16(frame, start + offset) + (~(length - start) & 0xFFFF) + end - start))


@kernel
def cut(
    at: Address,
    length: int,
    size: int,
    start: int,
    offset: int,
    out: Address,
    out_bytes: int,
    addresses: np.ndarray,
    lengths: np.ndarray,
) -> tuple[int, int]:
    """Cut the train at an address into packets with complete checksums. They are written consecutively from address
    `out` on, where there are `out_bytes` bytes; `addresses` and `lengths` receive their positions. Returns (packets,
    bytes written), (0, 0) if the train can't be cut."""
    network, version, header, count = layout(at, length, size, start, offset)
    if count == 0 or count > len(addresses) or length + count * header > out_bytes:
        return 0, 0
    written = 0
    for i in range(count):
        payload = min(size, length - header - i * size)
        to, end = out + written, header + payload
        copy_bytes(to, at, header)
        copy_bytes(to + header, at + header + i * size, payload)
        _describe(u8_at(to, end), end, length, network, version, size, start, offset, i, i + 1 == count)
        complete(to, end, start, offset)
        addresses[i] = to
        lengths[i] = end
        written += end
    return count, written


@kernel
def count_packets(at: Address, length: int) -> tuple[int, int, int]:
    """Return (packets, bytes of the virtio and all other headers, payload bytes of each packet) of a frame after its
    virtio header; (1, 0, 0) for a frame that is no train, or unsupported."""
    if length < VIRTIO_BYTES:
        return 1, 0, 0
    _, segmentation, size, start, offset = virtio_fields(at)
    if segmentation == 0:
        return 1, 0, 0
    _, _, header, packets = layout(at + VIRTIO_BYTES, length - VIRTIO_BYTES, size, start, offset)
    if packets == 0:
        return 1, 0, 0
    return packets, VIRTIO_BYTES + header, size


@kernel
def without(at: Address, length: int, surviving: np.ndarray, out: Address, lengths: np.ndarray) -> int:
    """Copy a train at address `at`, after its virtio header, without the packets for which `surviving` (bool for each)
    is False.

    Frames are written consecutively from address `out` on, their lengths to `lengths`; returns their number: one for
    UDP, whose packets are independent; for TCP one per run of consecutive packets, since a gap must show in the
    sequence numbers. There must be room for `length + packets * header` bytes.
    """
    _, _, size, start, offset = virtio_fields(at)
    whole = length - VIRTIO_BYTES
    network, version, header, _ = layout(at + VIRTIO_BYTES, whole, size, start, offset)
    frames = first = 0
    n = len(surviving)
    while first < n:
        if not surviving[first]:
            first += 1
            continue
        last = first + 1
        while last < n and (offset == _UDP_CHECKSUM_AT or surviving[last]):
            last += 1
        copy_bytes(out, at, VIRTIO_BYTES + header)
        end = header
        packets = 0
        for i in range(first, last):
            if surviving[i]:
                piece = min(size, whole - header - i * size)
                copy_bytes(out + VIRTIO_BYTES + end, at + VIRTIO_BYTES + header + i * size, piece)
                end += piece
                packets += 1
        if packets == 1:  # no longer a train
            virtio = u8_at(out, VIRTIO_BYTES)
            virtio[1] = virtio[4] = virtio[5] = 0
        frame = u8_at(out + VIRTIO_BYTES, end)
        _describe(frame, end, whole, network, version, size, start, offset, first, last == n)
        lengths[frames] = VIRTIO_BYTES + end
        out += VIRTIO_BYTES + end
        frames += 1
        first = last
    return frames


@kernel
def is_joinable(at: Address, length: int) -> bool:
    """Return whether a packet may be part of a train: UDP over IPv4, unfragmented, with correct checksums (or none)."""
    if length <= HEADER_BYTES:
        return False
    frame = u8_at(at, length)
    if be16(frame, 12) != _IPV4 or frame[14] != 0x45 or frame[23] != _UDP or be16(frame, 20) & 0x3FFF:
        return False
    if be16(frame, 16) != length - 14 or be16(frame, 38) != length - 34:
        return False
    if ones_sum(at + 14, 20, 0) != 0xFFFF:
        return False
    return be16(frame, 40) == 0 or ones_sum(at + 26, length - 26, _UDP + length - 34) == 0xFFFF


@kernel
def follows(first: Address, number: int, at: Address) -> bool:
    """Return whether a joinable packet can be number `number` after the joinable packet `first`: the same headers, with
    the expected identification."""
    one, two = u8_at(first, HEADER_BYTES), u8_at(at, HEADER_BYTES)
    for i in range(40):
        if one[i] != two[i] and i not in (16, 17, 18, 19, 24, 25, 38, 39):  # lengths, identification, checksum
            return False
    return be16(two, 18) == (be16(one, 18) + number) & 0xFFFF and (be16(one, 40) == 0) == (be16(two, 40) == 0)


@kernel
def join_headers(out: Address, first: Address, size: int, payload: int) -> None:
    """Write the virtio header and the headers of a train to address `out`: `payload` bytes in total, `size` per packet,
    with the packet at address `first` as its first."""
    virtio = u8_at(out, VIRTIO_BYTES)
    virtio[:] = 0
    virtio[0], virtio[1], virtio[2] = NEEDS_CHECKSUM, UDP_SEGMENTS, HEADER_BYTES
    virtio[4], virtio[5] = size & 0xFF, size >> 8
    virtio[6], virtio[8] = 34, _UDP_CHECKSUM_AT
    copy_bytes(out + VIRTIO_BYTES, first, HEADER_BYTES)
    header = u8_at(out + VIRTIO_BYTES, HEADER_BYTES)
    put_ipv4(header, 14, HEADER_BYTES - 14 + payload, be16(header, 18))
    put_be16(header, 38, 8 + payload)
    put_be16(header, 40, ones_sum(first + 26, 8, _UDP + 8 + payload))
