"""Trains of packets: what the kernel hands over as one frame when it leaves the cutting to the hardware (GSO), and how
single packets are taken out of one.

A frame here is what an AF_PACKET socket with PACKET_VNET_HDR reads and writes: struct virtio_net_hdr (10 bytes, linux/
virtio_net.h), then Ethernet. If gso_type is not 0, the frame is a train: one set of headers, then the payloads of many
packets of gso_size bytes each (the last may be shorter). UDP over IPv4 and TCP over IPv4 are understood, anything else
counts as a single packet. Checksums of trains are partial: they cover the pseudo header only, so lengths must agree.
"""

from __future__ import annotations

import numpy as np

from switchml.runtime.jit import kernel
from switchml.runtime.memory import be16, be32, copy_bytes, put_be16, put_be32, u8_at

VIRTIO_BYTES = 10
FRAME_BYTES = VIRTIO_BYTES + 14 + 4 + 65535
"""The largest frame: a virtio header, Ethernet with a VLAN tag, and as much as IPv4 can say."""
MOST_PACKETS = 1024
"""In a train; one that has more counts as a single packet."""

_IP = VIRTIO_BYTES + 14
_TCP, _UDP = 6, 17
_FIN_PSH = 0x09
_ECN = 0x80
"""In gso_type: not a type but a mark."""


@kernel
def layout(at, length):
    """(bytes of virtio and all other headers, payload bytes of each packet, packets) of a frame at an address."""
    if length < _IP + 20:
        return 0, 0, 1
    frame = u8_at(at, length)
    size = np.int64(frame[4]) | (np.int64(frame[5]) << 8)
    if frame[1] & ~_ECN == 0 or size == 0 or be16(frame, VIRTIO_BYTES + 12) != 0x0800:
        return 0, 0, 1
    transport = _IP + 4 * (np.int64(frame[_IP]) & 15)
    header = 0
    if frame[_IP + 9] == _UDP:
        header = transport + 8
    elif frame[_IP + 9] == _TCP and transport + 20 <= length:
        header = transport + 4 * (np.int64(frame[transport + 12]) >> 4)
    packets = (length - header + size - 1) // size
    if header == 0 or header >= length or packets > MOST_PACKETS:
        return 0, 0, 1
    return header, size, packets


@kernel
def _write(at, length, header, size, first, kept, out):
    """One frame at address `out` from a train's packets that `kept` names, `first` the lowest; returns its length."""
    copy_bytes(out, at, header)
    end = header
    count = 0
    for i in range(kept.size):
        if kept[i]:
            start = header + (first + i) * size
            piece = min(size, length - start)
            copy_bytes(out + np.uint64(end), at + np.uint64(start), piece)
            end += piece
            count += 1
    frame = u8_at(out, end)
    if count == 1:  # no train any more
        frame[1] = frame[4] = frame[5] = 0
    transport = _IP + 4 * (np.int64(frame[_IP]) & 15)
    put_be16(frame, _IP + 2, end - _IP)
    put_be16(frame, _IP + 4, (be16(frame, _IP + 4) + first) & 0xFFFF)
    checksum_at = transport + 16
    if frame[_IP + 9] == _UDP:
        checksum_at = transport + 6
        put_be16(frame, transport + 4, end - transport)
    else:
        put_be32(frame, transport + 4, (be32(frame, transport + 4) + first * size) & 0xFFFFFFFF)
        if header + (first + kept.size) * size < length:
            frame[transport + 13] &= ~np.uint8(_FIN_PSH)
    # RFC 1624: the pseudo header's length is part of the sum, which is not complemented yet.
    total = be16(frame, checksum_at) + (~(length - transport) & 0xFFFF) + (end - transport)
    total = (total & 0xFFFF) + (total >> 16)
    put_be16(frame, checksum_at, (total & 0xFFFF) + (total >> 16))
    put_be16(frame, _IP + 10, 0)
    total = 0
    for word in range(_IP, transport, 2):
        total += be16(frame, word)
    total = (total & 0xFFFF) + (total >> 16)
    put_be16(frame, _IP + 10, ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF)
    return end


@kernel
def without(at, length, header, size, kept, out, lengths):
    """What is left of a train at address `at` when only the packets that `kept` (bool[packets]) names go on.

    Writes frames one behind another from address `out` on, their lengths to `lengths`, and returns how many: one of
    UDP, whose packets stand alone; for TCP one for each run of neighbours, since a gap must show in the sequence.
    There must be room for `length + packets * header` bytes.
    """
    frames = 0
    n = kept.size
    is_udp = u8_at(at, header)[_IP + 9] == _UDP
    first = 0
    while first < n:
        if not kept[first]:
            first += 1
            continue
        last = first + 1
        while last < n and (is_udp or kept[last]):
            last += 1
        lengths[frames] = _write(at, length, header, size, first, kept[first:last], out)
        out += np.uint64(lengths[frames])
        frames += 1
        first = last
    return frames


__all__ = ["FRAME_BYTES", "MOST_PACKETS", "VIRTIO_BYTES", "layout", "without"]
