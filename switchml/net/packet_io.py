"""Batched frame I/O over a packet socket (sockets.py): recvmmsg and sendmmsg, splitting and joining of packet trains
(trains.py), and reinsertion of VLAN tags, which Linux delivers apart from the frame. packet_ring.py receives without
system calls. A frame is represented by the address of its bytes."""

from typing import NamedTuple

import numpy as np

from switchml.net import checksum, libc, trains
from switchml.net.messages import (
    Messages,
    bytes_of,
    control_at,
    new_messages,
    new_receive_messages,
    receive_messages,
    send_messages,
)
from switchml.net.sockets import AUXDATA, SOL_PACKET
from switchml.net.trains import HEADER_BYTES, MAX_CUT_BYTES, MAX_JOINED, MAX_JOINED_BYTES, VIRTIO_BYTES
from switchml.runtime.jit import int64, kernel
from switchml.runtime.memory import put_be16, u8_at

MESSAGES = 128
"""Frames per system call."""
FRAME_BYTES = 1 << 17
"""Buffer size of a frame: a train can be slightly longer than 64 KiB."""
APART, JOIN, JOIN_FLOW = range(3)
"""How `send_frames` treats consecutive frames: send each separately; join those that are compatible into a train; join
without checks, since all are known to be UDP packets of one flow."""

_HEADROOM = 32 - VIRTIO_BYTES
_SLACK = 64  # readers may read slightly past a frame's end
_VLAN_VALID, _VLAN_KIND_VALID = 0x10, 0x40
"""Status bits: a VLAN tag is present; its TPID is present."""
_VLAN = 0x8100
_AUXDATA_BYTES = 20


class Batch(NamedTuple):
    """Received frames: int64[n] each."""

    port: np.ndarray
    address: np.ndarray
    length: np.ndarray


def new_batch() -> Batch:
    """Return a batch large enough for one call of `receive_frames`."""
    return Batch(*(np.zeros(2 * trains.MAX_PACKETS, np.int64) for _ in Batch._fields))


class PacketIO(NamedTuple):
    """State of the kernels below; one instance serves all sockets of a thread, one at a time.

    `counts` int64[3], indexed by the names below. Received frames are in `buffers`, packets cut from trains in `arena`;
    both are reused by the next call. `heads` uint8[n, 64]: virtio header, and generated headers, of each message to be
    sent. A message to be sent consists of its head, and a frame or up to MAX_JOINED payloads."""

    counts: np.ndarray
    buffers: np.ndarray
    arena: np.ndarray
    heads: np.ndarray
    incoming: Messages
    outgoing: Messages


TRAINS, FAILED, REFUSED = range(3)
"""Indices of PacketIO.counts: trains received; messages that the kernel did not accept; trains rejected as unsupported,
after which none are sent."""


def new_packet_io(messages: int = MESSAGES) -> PacketIO:
    """Return buffers for the sockets of one thread. `messages`: 0 if no socket will be served."""
    buffers = np.zeros((messages, FRAME_BYTES), np.uint8)
    return PacketIO(
        counts=np.zeros(3, np.int64),
        buffers=buffers,
        arena=np.zeros(MAX_CUT_BYTES + _SLACK if messages else 0, np.uint8),
        heads=np.zeros((messages, 64), np.uint8),
        incoming=new_receive_messages(buffers[:, :-_SLACK], _HEADROOM),
        outgoing=new_messages(messages, MAX_JOINED + 1),
    )


@kernel
def _put_tag(at: int, kind: int, tag: int) -> None:
    """Insert a VLAN tag that was delivered apart from a frame; the frame then begins 4 bytes earlier."""
    frame = u8_at(at - 4, 18)
    for i in range(12):
        frame[i] = frame[i + 4]
    put_be16(frame, 12, kind)
    put_be16(frame, 14, tag)


@kernel
def take_frame(
    io: PacketIO, at: int, length: int, status: int, tag: int, kind: int, batch: Batch, count: int, used: int
) -> tuple[int, int]:
    """Append the frame after the virtio header at an address, or the packets of a train, to `batch` from `count` on;
    cut packets are written to the arena from `used` on. `length`: total bytes including the virtio header. `status`,
    `tag`, `kind`: of the VLAN tag. Returns the new (count, used)."""
    if length < VIRTIO_BYTES + 14 or count == len(batch.address):
        return count, used
    flags, segmentation, size, start, offset = trains.virtio_fields(at)  # read before a reinserted tag overwrites it
    at, length = at + VIRTIO_BYTES, length - VIRTIO_BYTES
    if status & _VLAN_VALID:
        _put_tag(at, kind if status & _VLAN_KIND_VALID else _VLAN, tag)
        at, length, start = at - 4, length + 4, start + 4
    if segmentation:
        io.counts[TRAINS] += 1
        cut, written = trains.cut(
            at, length, size, start, offset, int64(io.arena.ctypes.data) + used, MAX_CUT_BYTES - used,
            batch.address[count:], batch.length[count:],
        )  # fmt: skip
        return count + cut, used + written
    if flags & trains.NEEDS_CHECKSUM:
        checksum.complete(at, length, start, offset)
    batch.address[count], batch.length[count] = at, length
    return count + 1, used


@kernel
def take_message(io: PacketIO, number: int, batch: Batch, count: int, used: int) -> tuple[int, int]:
    """Call `take_frame` for the message in a buffer."""
    status, tag, kind = 0, 0, 0
    auxiliary = control_at(io.incoming, number, SOL_PACKET, AUXDATA, _AUXDATA_BYTES)
    if auxiliary:
        data = u8_at(auxiliary, _AUXDATA_BYTES)  # struct tpacket_auxdata
        status, tag, kind = trains.le16(data, 0), trains.le16(data, 16), trains.le16(data, 18)
    at = int64(io.buffers[number].ctypes.data) + _HEADROOM
    return take_frame(io, at, bytes_of(io.incoming, number), status, tag, kind, batch, count, used)


@kernel
def receive_frames(io: PacketIO, fd: int, batch: Batch) -> int:
    """Receive from a socket without blocking. Fills `batch`, whose addresses stay valid until the next call; returns
    the number of frames."""
    count, used = 0, 0
    for number in range(receive_messages(fd, io.incoming, 0, MESSAGES)):
        count, used = take_message(io, number, batch, count, used)
    return count


@kernel
def _flush(io: PacketIO, fd: int, messages: int) -> None:
    if send_messages(fd, io.outgoing, messages, 0) == 0:
        return
    for i in range(messages):
        if io.outgoing.errors[i] == libc.EINVAL and io.outgoing.headers[i, 3] > 2:
            io.counts[REFUSED] += 1
        elif io.outgoing.errors[i]:
            io.counts[FAILED] += 1


@kernel
def send_frames(io: PacketIO, fd: int, addresses: np.ndarray, lengths: np.ndarray, joining: int) -> None:
    """Send frames (addresses and lengths: integers[n] each) in order. `joining`: APART, JOIN or JOIN_FLOW."""
    messages = 0
    i = 0
    while i < len(addresses):
        if messages == MESSAGES:
            _flush(io, fd, messages)
            messages = 0
        first, size = int64(addresses[i]), int64(lengths[i]) - HEADER_BYTES
        i += 1
        head = int64(io.heads[messages].ctypes.data)
        pieces = io.outgoing.iovecs[messages]
        packets, payload, last = 1, size, size
        if joining and size > 0 and io.counts[REFUSED] == 0:
            is_train = joining == JOIN_FLOW or trains.is_joinable(first, size + HEADER_BYTES)
            while is_train and i < len(addresses) and packets < MAX_JOINED and last == size:
                at, more = int64(addresses[i]), int64(lengths[i]) - HEADER_BYTES
                if more > size or more <= 0 or payload + more > MAX_JOINED_BYTES:
                    break
                if joining == JOIN and not (
                    trains.is_joinable(at, more + HEADER_BYTES) and trains.follows(first, packets, at)
                ):
                    break
                pieces[2 + 2 * packets], pieces[3 + 2 * packets] = at + HEADER_BYTES, more
                payload += more
                last = more
                packets += 1
                i += 1
        if packets > 1:
            trains.join_headers(head, first, size, payload)
            pieces[0], pieces[1] = head, VIRTIO_BYTES + HEADER_BYTES
            pieces[2], pieces[3] = first + HEADER_BYTES, size
        else:
            u8_at(head, VIRTIO_BYTES)[:] = 0
            pieces[0], pieces[1] = head, VIRTIO_BYTES
            pieces[2], pieces[3] = first, size + HEADER_BYTES
        io.outgoing.headers[messages, 3] = 1 + packets
        messages += 1
    _flush(io, fd, messages)
