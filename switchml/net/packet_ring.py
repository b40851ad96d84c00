"""Reception from a packet socket through a memory-mapped ring that Linux fills (packet(7), TPACKET_V2), without a
system call or a copy per frame.

A frame that does not fit its slot (trains, and frames beyond SLOT_BYTES) is received whole from the socket, and its
slot is marked accordingly. The order is that of the slots. Version 2 rather than 3, because it exposes each frame on
arrival; version 3 waits until a block is full or a timeout expires.
"""

import mmap
import socket
import struct
from typing import NamedTuple

import numpy as np

from switchml import logs
from switchml.net import packet_io
from switchml.net.messages import receive_messages
from switchml.net.sockets import COPY_THRESHOLD, RX_RING, SOL_PACKET, VERSION
from switchml.net.trains import VIRTIO_BYTES, le16
from switchml.runtime.jit import int64, kernel
from switchml.runtime.memory import load_acquire, store_release, u8_at

log = logs.of("switchml.net")

SLOTS = 2048
"""Number of slots: frames that can be queued."""
SLOT_BYTES = 2048
"""Size of a slot, including the metadata that Linux writes."""

_BLOCK_BYTES = 1 << 16
_TPACKET_V2 = 1
_WITH_KERNEL, _WITH_US, _IS_IN_QUEUE = 0, 1, 2
"""Bits of a slot's status."""
# struct tpacket2_hdr: status (4), length (4), captured (4), offset of the frame (2), … VLAN tag at 24, its TPID at 26
_CAPTURED, _FRAME_AT, _TAG, _TAG_KIND = 8, 12, 24, 26


class Ring(NamedTuple):
    """`memory` uint8[SLOTS * SLOT_BYTES], shared with Linux, or empty without a ring. `place` int64[2]: the next slot
    to read, and the number of slots before it not yet returned to Linux."""

    memory: np.ndarray
    place: np.ndarray


def no_ring() -> Ring:
    """Return the placeholder for a socket without a ring."""
    return Ring(np.zeros(0, np.uint8), np.zeros(2, np.int64))


def new_ring(sock: socket.socket) -> Ring:
    """Return a ring for a socket that is not attached yet; an empty one if Linux can't allocate it."""
    size = SLOTS * SLOT_BYTES
    try:
        sock.setsockopt(SOL_PACKET, VERSION, _TPACKET_V2)
        sock.setsockopt(SOL_PACKET, COPY_THRESHOLD, 1)
        request = struct.pack("IIII", _BLOCK_BYTES, size // _BLOCK_BYTES, SLOT_BYTES, SLOTS)
        sock.setsockopt(SOL_PACKET, RX_RING, request)
        return no_ring()._replace(memory=np.frombuffer(mmap.mmap(sock.fileno(), size), np.uint8))
    except OSError as error:
        log.debug("no ring of %d bytes for a packet socket: %s", size, error.strerror)
        return no_ring()


@kernel
def _return_slots(base: int, ring: Ring) -> None:
    """Return the slots of the previous batch to Linux."""
    following = ring.place[0]
    for slot in range(following - ring.place[1], following):
        store_release(np.uintp(base + slot % SLOTS * SLOT_BYTES), np.uint64(_WITH_KERNEL))
    ring.place[1] = 0


@kernel
def receive_ring(io: packet_io.PacketIO, ring: Ring, fd: int, batch: packet_io.Batch) -> int:
    """Receive like `packet_io.receive_frames`, from the ring if there is one."""
    if len(ring.memory) == 0:
        return packet_io.receive_frames(io, fd, batch)
    base = int64(ring.memory.ctypes.data)
    _return_slots(base, ring)
    count, used, messages = 0, 0, 0
    for _ in range(packet_io.MESSAGES):
        at = base + ring.place[0] % SLOTS * SLOT_BYTES
        first = int64(load_acquire(np.uintp(at)))  # status and length
        status, length = first & 0xFFFFFFFF, first >> 32
        if not status & _WITH_US:
            break
        ring.place[0] += 1
        ring.place[1] += 1
        slot = u8_at(at, SLOT_BYTES)
        if status & _IS_IN_QUEUE:
            if receive_messages(fd, io.incoming, messages, 1) == 1:
                count, used = packet_io.take_message(io, messages, batch, count, used)
                messages += 1
        elif le16(slot, _CAPTURED) | le16(slot, _CAPTURED + 2) << 16 == length:  # otherwise the frame was truncated
            frame_at = at + le16(slot, _FRAME_AT) - VIRTIO_BYTES
            tag, kind = le16(slot, _TAG), le16(slot, _TAG_KIND)
            count, used = packet_io.take_frame(
                io, frame_at, length + VIRTIO_BYTES, status, tag, kind, batch, count, used
            )
    return count
