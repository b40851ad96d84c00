"""Frames from a network interface through a ring of memory that Linux fills as they arrive (packet(7), TPACKET_V2), so
that taking one costs no system call and no copy.

A frame that is too long for its slot comes whole through the socket, and its slot says so: superframes do, and frames
beyond SLOT_BYTES. Order is that of the slots. Version 2, not 3, because it tells of each frame when it comes; version 3
waits until a block is full or some milliseconds are over.
"""

from __future__ import annotations

import logging
import mmap
import socket
import struct
from typing import NamedTuple

import numpy as np

from emulator.p4switch.ports import packet_io
from emulator.p4switch.ports.superframes import VIRTIO_BYTES
from switchml.runtime.jit import kernel
from switchml.runtime.memory import load_acquire, store_release, u8_at

log = logging.getLogger("switchml.bmv2")

SLOTS = 2048
"""Frames that can wait."""
SLOT_BYTES = 2048
"""Room for one, with what Linux tells about it."""

_BLOCK_BYTES = 1 << 16
_RX_RING, _COPY_THRESHOLD, _VERSION = 5, 7, 10
_TPACKET_V2 = 1
WITH_KERNEL, WITH_US, IS_IN_QUEUE = 0, 1, 2
"""Bits of a slot's status."""
# struct tpacket2_hdr: status (4), length (4), captured (4), offset of the frame (2), … VLAN tag at 24, its kind at 26
_CAPTURED, _FRAME_AT, TAG, TAG_KIND = 8, 12, 24, 26


class Ring(NamedTuple):
    """`memory` uint8[SLOTS * SLOT_BYTES], shared with Linux; `place` int64[2]: the next slot to look at, and how many
    before it are ours still."""

    memory: np.ndarray
    place: np.ndarray


def new_ring(sock: socket.socket) -> Ring | None:
    """A ring for a socket that is not attached yet; None where Linux has no memory for one."""
    size = SLOTS * SLOT_BYTES
    try:
        sock.setsockopt(packet_io.SOL_PACKET, _VERSION, _TPACKET_V2)
        sock.setsockopt(packet_io.SOL_PACKET, _COPY_THRESHOLD, 1)
        request = struct.pack("IIII", _BLOCK_BYTES, size // _BLOCK_BYTES, SLOT_BYTES, SLOTS)
        sock.setsockopt(packet_io.SOL_PACKET, _RX_RING, request)
        memory = np.frombuffer(mmap.mmap(sock.fileno(), size), np.uint8)
    except OSError as error:
        log.debug("No ring of %d bytes for a port: %s", size, error.strerror)
        return None
    return Ring(memory, np.zeros(2, np.int64))


@kernel
def _give_back(ring):
    """Give the slots of the batch before back to Linux."""
    base, following = ring.memory.ctypes.data, ring.place[0]
    for slot in range(following - ring.place[1], following):
        store_release(np.uintp(base + slot % SLOTS * SLOT_BYTES), np.uint64(WITH_KERNEL))
    ring.place[1] = 0


@kernel
def receive_ring(io, ring, fd, port, batch):
    """As packet_io.receive_frames, from a ring."""
    _give_back(ring)
    count, used, messages = 0, 0, 0
    base = ring.memory.ctypes.data
    for _ in range(packet_io.MESSAGES):
        at = np.int64(base + ring.place[0] % SLOTS * SLOT_BYTES)
        first = np.int64(load_acquire(np.uintp(at)))  # status and length
        status, length = first & 0xFFFFFFFF, first >> 32
        if not status & WITH_US:
            break
        ring.place[0] += 1
        ring.place[1] += 1
        header = u8_at(at, SLOT_BYTES)
        if status & IS_IN_QUEUE:
            if packet_io.receive_messages(io, fd, messages, 1) == 1:
                count, used = packet_io.take_message(io, messages, port, batch, count, used)
                messages += 1
            continue
        if packet_io.u16(header, _CAPTURED) | packet_io.u16(header, _CAPTURED + 2) << 16 < length:
            io.counts[packet_io.OVERRUN] += 1
            continue
        frame = packet_io.u16(header, _FRAME_AT)
        virtio = io.rx_virtio[messages]
        for i in range(VIRTIO_BYTES):  # a tag that is put back would lie over it
            virtio[i] = header[frame - VIRTIO_BYTES + i]
        grown = 0
        if status & packet_io.VLAN_VALID:
            kind = packet_io.u16(header, TAG_KIND) if status & packet_io.VLAN_KIND_VALID else packet_io.VLAN
            packet_io.put_tag(at + frame, kind, packet_io.u16(header, TAG))
            grown = 4
        count, used = packet_io.take_frame(
            io, virtio, at + frame - grown, length + grown, grown, port, batch, count, used
        )
    return count
