"""Batched datagrams over a UDP socket: recvmmsg and sendmmsg, with segmentation and receive offload where the kernel
supports them.

With UDP_SEGMENT one system call passes up to 60 packets of equal size for one destination to the kernel as one buffer;
with UDP_GRO it returns such a train as one. This saves most of the cost of the network stack, which otherwise
dominates. Packets are not copied on sending: each message gathers them in place.

A packet list (`Packets`) is filled by `receive_batch` and consumed by `send_batch`; an endpoint is an integer, IPv4 <<
16 | port, both in host order.
"""

import mmap
import socket
from typing import NamedTuple

import numpy as np

from switchml.net import libc
from switchml.net.messages import (
    Messages,
    bytes_of,
    clear_control,
    control_at,
    new_messages,
    new_receive_messages,
    put_control,
    receive_messages,
    send_messages,
)
from switchml.net.trains import GRO_PACKETS, MAX_JOINED
from switchml.runtime.jit import int64, kernel
from switchml.runtime.memory import be16, be32, put_be16, put_be32, u8_at

RECEIVE_MESSAGES = 16
"""Messages per recvmmsg (each up to 64 kB with GRO)."""
_BUFFER_BYTES = 65536
_MESSAGE_BYTES = 65507
"""Maximum payload of one message over IPv4."""
_SEND_MESSAGES = 64
RECEIVE_PACKETS = RECEIVE_MESSAGES * GRO_PACKETS


class Packets(NamedTuple):
    """A list of packets: addresses uint64[k], lengths int32[k], endpoints uint64[k] (source or destination)."""

    address: np.ndarray
    length: np.ndarray
    endpoint: np.ndarray


class UdpIO(NamedTuple):
    """Per-socket state of the kernels below. `config` int64[2]: file descriptor, 1 if UDP_SEGMENT works."""

    config: np.ndarray
    buffers: np.ndarray
    incoming: Messages
    outgoing: Messages


def new_packets(count: int) -> Packets:
    return Packets(np.zeros(count, np.uint64), np.zeros(count, np.int32), np.zeros(count, np.uint64))


def endpoint(ip: str, port: int) -> int:
    """Return an IPv4 address and port as the integer used in packet lists."""
    return int.from_bytes(socket.inet_aton(ip), "big") << 16 | port


def endpoint_text(value: int) -> tuple[str, int]:
    """Return the inverse of `endpoint`."""
    return socket.inet_ntoa((int(value) >> 16).to_bytes(4, "big")), int(value) & 0xFFFF


def probe_offload(sock: socket.socket) -> tuple[bool, bool]:
    """Return (UDP_SEGMENT, UDP_GRO): whether the kernel supports them for this socket. Enables GRO where supported."""
    return _takes_option(sock, libc.UDP_SEGMENT, 0), _takes_option(sock, libc.UDP_GRO, 1)


def _takes_option(sock: socket.socket, option: int, value: int) -> bool:
    try:
        sock.setsockopt(libc.SOL_UDP, option, value)
        return True
    except OSError:
        return False


def new_udp_io(sock: socket.socket) -> UdpIO:
    """Return buffers and message headers for a bound UDP socket. The caller keeps the socket open while kernels use
    them."""
    segment, _ = probe_offload(sock)
    # Page-aligned: for addresses that aren't multiples of 32 (NumPy's are 16 bytes after a page's start), `rep movsb`,
    # which Linux uses for copying, takes 2.4 times as long on AMD's Zen 3.
    buffers = np.frombuffer(mmap.mmap(-1, RECEIVE_MESSAGES * _BUFFER_BYTES), np.uint8).reshape(RECEIVE_MESSAGES, -1)
    return UdpIO(
        config=np.array([sock.fileno(), segment], np.int64),
        buffers=buffers,
        incoming=new_receive_messages(buffers, named=True),
        outgoing=new_messages(_SEND_MESSAGES, MAX_JOINED, named=True),
    )


@kernel
def _sender(name: np.ndarray) -> np.uint64:
    """Return the endpoint of a sockaddr_in: family (2 bytes), port and address in network order."""
    data = name.view(np.uint8)
    return np.uint64(be32(data, 4) << 16 | be16(data, 2))


@kernel
def receive_batch(io: UdpIO, packets: Packets) -> int:
    """Receive without blocking. Fills `packets`, which stay valid until the next call; returns the number of packets.
    Empty datagrams are returned as packets of length 0.
    """
    count = 0
    for i in range(receive_messages(io.config[0], io.incoming, 0, RECEIVE_MESSAGES)):
        total = bytes_of(io.incoming, i)
        segment = max(total, 1)
        gro = control_at(io.incoming, i, libc.SOL_UDP, libc.UDP_GRO, 4)
        if gro:
            data = u8_at(gro, 2)
            segment = max(int64(data[0]) | (int64(data[1]) << 8), 1)
        sender = _sender(io.incoming.names[i])
        at = io.buffers[i].ctypes.data
        offset = 0
        while True:
            if count == packets.address.size:
                break
            packets.address[count] = at + np.uint64(offset)
            packets.length[count] = min(segment, total - offset)
            packets.endpoint[count] = sender
            count += 1
            offset += segment
            if offset >= total:
                break
    return count


@kernel
def _put_receiver(name: np.ndarray, to: np.uint64) -> None:
    """Write an endpoint as a sockaddr_in."""
    data = name.view(np.uint8)
    data[0], data[1] = 2, 0
    put_be16(data, 2, int64(to))
    put_be32(data, 4, int64(to) >> 16)


@kernel
def _flush(io: UdpIO, messages: int) -> int:
    """Send the prepared messages; return the number that failed: lost like any datagram, and handled by the sender's or
    the peer's timer."""
    failed = send_messages(io.config[0], io.outgoing, messages, 0)
    if failed:
        for error in io.outgoing.errors[:messages]:
            if error == libc.EIO:  # the device on this path lacks the checksum offload that segmentation needs
                io.config[1] = 0
    return failed


@kernel
def send_batch(io: UdpIO, packets: Packets, count: int) -> int:
    """Send packets[:count]. Consecutive packets of equal length for one endpoint are sent as one message. Returns the
    number of messages that failed."""
    messages = failed = 0
    i = 0
    while i < count:
        if messages == _SEND_MESSAGES:
            failed += _flush(io, messages)
            messages = 0
        to, length = packets.endpoint[i], int64(packets.length[i])
        limit = 1
        if io.config[1] and length:  # a segment size of 0 means none: several empty datagrams would become one
            limit = max(min(MAX_JOINED, _MESSAGE_BYTES // length), 1)
        pieces = io.outgoing.iovecs[messages]
        train = words = 0
        end = np.uint64(0)
        while i < count and train < limit and packets.endpoint[i] == to and packets.length[i] == length:
            if packets.address[i] == end:  # contiguous with the previous one: the kernel copies one long piece faster
                pieces[words - 1] += np.uint64(length)
            else:
                pieces[words], pieces[words + 1] = packets.address[i], length
                words += 2
            end = packets.address[i] + np.uint64(length)
            train += 1
            i += 1
        _put_receiver(io.outgoing.names[messages], to)
        io.outgoing.headers[messages, 3] = words // 2
        if train > 1:
            put_control(io.outgoing, messages, libc.SOL_UDP, libc.UDP_SEGMENT, length)
        else:
            clear_control(io.outgoing, messages)
        messages += 1
    return failed + (_flush(io, messages) if messages else 0)


def payload_of(packets: Packets, index: int) -> bytes:
    """Return a copy of a packet's bytes (for tests and slow paths)."""
    return u8_at(int(packets.address[index]), int(packets.length[index])).tobytes()
