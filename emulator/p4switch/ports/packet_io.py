"""Frames in batches over a network interface: AF_PACKET with recvmmsg and sendmmsg, or a ring that Linux fills in place
of recvmmsg (packet_ring.py); and superframes where there are any (superframes.py).

What arrives has VLAN tags back in their place, which Linux keeps beside the frame. Frames are told as addresses of
their bytes: those received in a `Batch`, those to be sent in records, rows of (port, address, length, …)."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

import numpy as np

from emulator.p4switch.ports import superframes
from emulator.p4switch.ports.superframes import (
    MOST_JOINED,
    MOST_JOINED_BYTES,
    MOST_PACKETS,
    NEEDS_CHECKSUM,
    VIRTIO_BYTES,
)
from switchml.errors import ConfigError
from switchml.net import libc
from switchml.runtime.jit import kernel
from switchml.runtime.memory import put_be16, u8_at

MESSAGES = 128
"""Frames that one system call takes."""
FRAME_BYTES = 1 << 17
"""Room for one: a superframe can be a little longer than 64 KiB."""
ARENA_BYTES = superframes.MAX_CUT_BYTES
"""Room for the packets of superframes of one batch."""
SOCKET_BYTES = 16 << 20

_HEADROOM = 16
_SLACK = 64  # readers may load a little beyond a frame's end
SOL_PACKET = 263
_MSG_DONTWAIT = 0x40
_ADD_MEMBERSHIP, AUXDATA, _VNET_HDR, _IGNORE_OUTGOING = 1, 8, 15, 23
_PROMISCUOUS = 1
_ETH_P_ALL = 3
VLAN_VALID, VLAN_KIND_VALID = 0x10, 0x40
"""Bits of a status: there was a VLAN tag; it tells what kind of."""
VLAN = 0x8100


def new_socket(name: str) -> socket.socket:
    """A socket for an interface, at which nothing arrives yet. Raises ConfigError."""
    try:
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    except PermissionError:
        raise ConfigError(f"port on {name}: only root may open interfaces; use udp:ADDRESS:PORT without") from None
    sock.setsockopt(SOL_PACKET, _VNET_HDR, 1)
    sock.setsockopt(SOL_PACKET, AUXDATA, 1)
    sock.setsockopt(SOL_PACKET, _IGNORE_OUTGOING, 1)
    libc.grow_buffers(sock, SOCKET_BYTES)
    return sock


def attach(sock: socket.socket, name: str, *, receive: bool = True) -> None:
    """Have everything arrive at a socket that arrives at an interface (or nothing, unless `receive`), and what is sent
    leave there. Raises ConfigError, having closed the socket."""
    try:
        sock.bind((name, _ETH_P_ALL if receive else 0))
        member = struct.pack("iHH8s", socket.if_nametoindex(name), _PROMISCUOUS, 0, b"")
        sock.setsockopt(SOL_PACKET, _ADD_MEMBERSHIP, member)
    except OSError as error:
        sock.close()
        raise ConfigError(f"can't open interface {name!r}: {error.strerror or error}") from error


class Batch(NamedTuple):
    """Frames that came: int64[n] each."""

    port: np.ndarray
    address: np.ndarray
    length: np.ndarray


def new_batch() -> Batch:
    """Room for what one call of `receive_frames` gives, at least."""
    return Batch(*(np.zeros(2 * MOST_PACKETS, np.int64) for _ in Batch._fields))


class PacketIO(NamedTuple):
    """What the kernels below need; one serves all ports of a thread, one port at a time.

    `counts` int64[5] by COUNTS. Received frames lie in `buffers`, packets cut from superframes in `arena`; both are
    used again by the next call. The rest are message headers as io/libc.py describes them, with two parts to a
    received frame (virtio header, frame) and up to MOST_JOINED + 2 to a sent one."""

    counts: np.ndarray
    buffers: np.ndarray
    arena: np.ndarray
    rx_virtio: np.ndarray
    rx_headers: np.ndarray
    rx_iovecs: np.ndarray
    rx_control: np.ndarray
    tx_virtio: np.ndarray
    tx_starts: np.ndarray
    tx_headers: np.ndarray
    tx_iovecs: np.ndarray


COUNTS = ("superframes", "uncut", "failed", "refused_superframes", "overrun")
"""What PacketIO counts: superframes received; those that could not be cut, and are lost; packets that the kernel did
not take; superframes that it did not take; long frames for which there was no room at arrival."""
SUPERFRAMES, UNCUT, FAILED, REFUSED, OVERRUN = range(len(COUNTS))


def new_packet_io() -> PacketIO:
    """Buffers for the ports of one thread."""
    n, parts = MESSAGES, MOST_JOINED + 2
    io = PacketIO(
        counts=np.zeros(len(COUNTS), np.int64),
        buffers=np.zeros((n, FRAME_BYTES), np.uint8),
        arena=np.zeros(ARENA_BYTES + _SLACK, np.uint8),
        rx_virtio=np.zeros((n, 16), np.uint8),
        rx_headers=np.zeros((n, 8), np.uint64),
        rx_iovecs=np.zeros((n, 4), np.uint64),
        rx_control=np.zeros((n, 8), np.uint64),
        tx_virtio=np.zeros((n, 16), np.uint8),
        tx_starts=np.zeros((n, 64), np.uint8),
        tx_headers=np.zeros((n, 8), np.uint64),
        tx_iovecs=np.zeros((n, 2 * parts), np.uint64),
    )
    for i in range(n):
        frame = io.buffers[i].ctypes.data + _HEADROOM
        io.rx_iovecs[i] = (io.rx_virtio[i].ctypes.data, VIRTIO_BYTES, frame, FRAME_BYTES - _HEADROOM - _SLACK)
        io.rx_headers[i, 2:5] = (io.rx_iovecs[i].ctypes.data, 2, io.rx_control[i].ctypes.data)
        io.tx_headers[i, 2] = io.tx_iovecs[i].ctypes.data
    return io


@kernel
def u16(data, at):
    """A number in the byte order of the machine."""
    return np.int64(data[at]) | (np.int64(data[at + 1]) << 8)


@kernel
def put_tag(at, kind, tag):
    """Put a VLAN tag that came beside a frame back into it, which begins 4 bytes earlier then."""
    frame = u8_at(at - 4, 18)
    for i in range(12):
        frame[i] = frame[i + 4]
    put_be16(frame, 12, kind)
    put_be16(frame, 14, tag)


@kernel
def _with_tag(control, at):
    """Put a VLAN tag that came as a control message back into its frame; returns the bytes that it grew at its
    start."""
    data = control.view(np.uint8)  # cmsghdr: length (8), level (4), type (4); struct tpacket_auxdata
    status = u16(data, 16)
    if control[0] < 36 or control[1] != np.uint64(SOL_PACKET | (AUXDATA << 32)) or not status & VLAN_VALID:
        return 0
    put_tag(at, u16(data, 34) if status & VLAN_KIND_VALID else VLAN, u16(data, 32))
    return 4


@kernel
def take_frame(io, virtio, at, length, grown, port, batch, count, used):
    """Put a frame, or the packets of a superframe, into `batch` from `count` on, cut packets into the arena from `used`
    on. `grown`: bytes by which the frame begins before the place that its virtio header counts from. Returns (count,
    used) behind it."""
    start, offset = u16(virtio, 6) + grown, u16(virtio, 8)
    if length < 14 or count == len(batch.address):
        return count, used
    if virtio[1]:
        io.counts[SUPERFRAMES] += 1
        cut, written = superframes.cut(
            at, length, u16(virtio, 4), start, offset, np.int64(io.arena.ctypes.data) + used, ARENA_BYTES - used,
            batch.address[count:], batch.length[count:],
        )  # fmt: skip
        io.counts[UNCUT] += cut == 0
        batch.port[count : count + cut] = port
        return count + cut, used + written
    if virtio[0] & NEEDS_CHECKSUM:
        superframes.complete(at, length, start, offset)
    batch.port[count], batch.address[count], batch.length[count] = port, at, length
    return count + 1, used


@kernel
def receive_messages(io, fd, first, most):
    """recvmmsg of up to `most` messages into the buffers from number `first` on; how many came, without waiting."""
    for i in range(first, first + most):
        io.rx_headers[i, 5] = 64
        io.rx_headers[i, 6] = 0
        io.rx_control[i, 0] = 0
    return libc.recvmmsg(fd, io.rx_headers[first:], most, _MSG_DONTWAIT)


@kernel
def take_message(io, number, port, batch, count, used):
    """As `take_frame`, for the message in a buffer."""
    length = np.int64(io.rx_headers[number, 7] & np.uint64(0xFFFFFFFF)) - VIRTIO_BYTES
    at = np.int64(io.buffers[number].ctypes.data) + _HEADROOM
    grown = _with_tag(io.rx_control[number], at)
    return take_frame(io, io.rx_virtio[number], at - grown, length + grown, grown, port, batch, count, used)


@kernel
def receive_frames(io, fd, port, batch):
    """Take what has arrived at a port, without waiting. Fills `batch`, which stays valid until the next call; returns
    how many frames it has."""
    count, used = 0, 0
    for number in range(receive_messages(io, fd, 0, MESSAGES)):
        count, used = take_message(io, number, port, batch, count, used)
    return count


@kernel
def _flush(io, fd, messages):
    """Send the prepared messages."""
    sent = 0
    while sent < messages:
        result = libc.sendmmsg(fd, io.tx_headers, sent, messages - sent, 0)
        if result > 0:
            sent += result
        elif libc.errno() != libc.EINTR:
            joined = io.tx_headers[sent, 3] > 2
            io.counts[REFUSED if joined else FAILED] += 1
            sent += 1


@kernel
def send_frames(io, fd, port, records, join):
    """Send those of `records` (int64[n, ≥ 3]: port, address, length) that are for `port`, in order; with `join`,
    neighbours that belong together as one superframe."""
    messages = 0
    i = 0
    while i < len(records):
        if records[i, 0] != port:
            i += 1
            continue
        if messages == MESSAGES:
            _flush(io, fd, messages)
            messages = 0
        first, first_length = records[i, 1], records[i, 2]
        iovecs = io.tx_iovecs[messages]
        i += 1
        parts, payload = 1, first_length - 42
        if join and superframes.is_joinable(first, first_length):
            last_length = first_length
            while i < len(records) and parts < MOST_JOINED and last_length == first_length:
                if records[i, 0] == port:
                    at, length = records[i, 1], records[i, 2]
                    if (
                        payload + length - 42 > MOST_JOINED_BYTES
                        or not superframes.is_joinable(at, length)
                        or not superframes.follows(first, first_length, parts, at, length)
                    ):
                        break
                    iovecs[4 + 2 * parts], iovecs[5 + 2 * parts] = at + 42, length - 42
                    payload += length - 42
                    last_length = length
                    parts += 1
                i += 1
        virtio = io.tx_virtio[messages]
        if parts > 1:
            header = io.tx_starts[messages]
            superframes.join_headers(virtio, header, first, first_length, payload)
            iovecs[2], iovecs[3] = header.ctypes.data, 42
            iovecs[4], iovecs[5] = first + 42, first_length - 42
            io.tx_headers[messages, 3] = 2 + parts
        else:
            virtio[:VIRTIO_BYTES] = 0
            iovecs[2], iovecs[3] = first, first_length
            io.tx_headers[messages, 3] = 2
        iovecs[0], iovecs[1] = virtio.ctypes.data, VIRTIO_BYTES
        messages += 1
    _flush(io, fd, messages)
