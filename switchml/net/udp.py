"""Datagrams in batches over a UDP socket: recvmmsg and sendmmsg, with segmentation and receive offload where the kernel
has them.

With UDP_SEGMENT one system call hands the kernel up to 60 equal packets for one destination as one buffer; with UDP_GRO
it hands back such a train in one. That saves the walk through the network stack that otherwise costs more than all else
together. Packets are not copied on the way out: each message gathers them from where they lie.

A packet list (`Packets`) is filled by `receive_batch` and consumed by `send_batch`; an endpoint is an integer, IPv4 <<
16 | port, both in host order.
"""

import socket
from typing import NamedTuple

import numpy as np

from switchml.net import libc
from switchml.runtime.jit import kernel
from switchml.runtime.memory import u8_at, u16_at

RECEIVE_MESSAGES = 16
"""Messages that one recvmmsg takes (each up to 64 kB with GRO)."""
_BUFFER_BYTES = 65536
_PER_BUFFER = 64
_SEGMENTS = 60
"""Packets in one UDP_SEGMENT message; the kernel takes 64 (UDP_MAX_SEGMENTS before Linux 6.9) and 65,507 bytes."""
_MESSAGE_BYTES = 65507
_SEND_MESSAGES = 64
_CONTROL_WORDS = 8
_MSG_DONTWAIT = 0x40
RECEIVE_PACKETS = RECEIVE_MESSAGES * _PER_BUFFER


class Packets(NamedTuple):
    """A list of packets: addresses uint64[k], lengths int32[k], endpoints uint64[k] (who sent it, or whom it goes
    to)."""

    address: np.ndarray
    length: np.ndarray
    endpoint: np.ndarray


class UdpIO(NamedTuple):
    """What the kernels below need of one socket. `config` int64[2]: file descriptor, 1 if UDP_SEGMENT works."""

    config: np.ndarray
    buffers: np.ndarray
    rx_headers: np.ndarray
    rx_iovecs: np.ndarray
    rx_names: np.ndarray
    rx_control: np.ndarray
    tx_headers: np.ndarray
    tx_iovecs: np.ndarray
    tx_names: np.ndarray
    tx_control: np.ndarray
    scratch: np.ndarray


def new_packets(count: int) -> Packets:
    return Packets(np.zeros(count, np.uint64), np.zeros(count, np.int32), np.zeros(count, np.uint64))


def endpoint(ip: str, port: int) -> int:
    """An IPv4 address and port as the integer that packet lists use."""
    return int.from_bytes(socket.inet_aton(ip), "big") << 16 | port


def endpoint_text(value: int) -> tuple[str, int]:
    """The reverse of `endpoint`."""
    return socket.inet_ntoa((int(value) >> 16).to_bytes(4, "big")), int(value) & 0xFFFF


def probe_offload(sock: socket.socket) -> tuple[bool, bool]:
    """(UDP_SEGMENT, UDP_GRO): what this kernel has for this socket. Turns GRO on where it can."""
    try:
        sock.setsockopt(libc.SOL_UDP, libc.UDP_SEGMENT, 0)
        segment = True
    except OSError:
        segment = False
    try:
        sock.setsockopt(libc.SOL_UDP, libc.UDP_GRO, 1)
        gro = True
    except OSError:
        gro = False
    return segment, gro


def new_udp_io(sock: socket.socket) -> UdpIO:
    """Buffers and message headers for a bound UDP socket. The caller keeps the socket open while kernels use this."""
    segment, _ = probe_offload(sock)
    n, m = RECEIVE_MESSAGES, _SEND_MESSAGES
    io = UdpIO(
        config=np.array([sock.fileno(), segment], np.int64),
        buffers=np.zeros((n, _BUFFER_BYTES), np.uint8),
        rx_headers=np.zeros((n, 8), np.uint64),
        rx_iovecs=np.zeros((n, 2), np.uint64),
        rx_names=np.zeros((n, 2), np.uint64),
        rx_control=np.zeros((n, _CONTROL_WORDS), np.uint64),
        tx_headers=np.zeros((m, 8), np.uint64),
        tx_iovecs=np.zeros((m * _SEGMENTS, 2), np.uint64),
        tx_names=np.zeros((m, 2), np.uint64),
        tx_control=np.zeros((m, _CONTROL_WORDS), np.uint64),
        scratch=np.zeros(8, np.int64),
    )
    for i in range(n):
        io.rx_iovecs[i] = (io.buffers[i].ctypes.data, _BUFFER_BYTES)
        io.rx_headers[i, 0] = io.rx_names[i].ctypes.data
        io.rx_headers[i, 2:5] = (io.rx_iovecs[i].ctypes.data, 1, io.rx_control[i].ctypes.data)
    return io


@kernel
def _sender(name):
    """Endpoint of a sockaddr_in: family (2 bytes), port and address in network order."""
    data = name.view(np.uint8)
    ip = (np.uint64(data[4]) << 24) | (np.uint64(data[5]) << 16) | (np.uint64(data[6]) << 8) | np.uint64(data[7])
    return np.uint64((ip << 16) | (np.uint64(data[2]) << 8) | np.uint64(data[3]))


@kernel
def receive_batch(io, packets):
    """Take what has arrived, without waiting. Fills `packets`, which stay valid until the next call; returns how many.

    Empty datagrams come as packets of length 0.
    """
    for i in range(RECEIVE_MESSAGES):
        io.rx_headers[i, 1] = 16
        io.rx_headers[i, 5] = _CONTROL_WORDS * 8
        io.rx_headers[i, 6] = 0
    messages = libc.recvmmsg(io.config[0], io.rx_headers, RECEIVE_MESSAGES, _MSG_DONTWAIT)
    count = 0
    for i in range(messages):
        total = np.int64(io.rx_headers[i, 7] & np.uint64(0xFFFFFFFF))
        segment = max(total, 1)
        if io.rx_headers[i, 5] >= 20:  # cmsghdr: length (8), level (4), type (4), then the segment size
            control = io.rx_control[i]
            if control[1] == np.uint64(libc.SOL_UDP | (libc.UDP_GRO << 32)):
                segment = max(np.int64(control[2] & np.uint64(0xFFFF)), 1)
        sender = _sender(io.rx_names[i])
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
def _add_message(io, message, first_iovec, iovecs, to, segment):
    """Prepare one message. `segment`: bytes of each packet in it, 0 if it is one packet."""
    name = io.tx_names[message].view(np.uint8)
    name[0], name[1] = 2, 0
    name[2], name[3] = (to >> np.uint64(8)) & np.uint64(0xFF), to & np.uint64(0xFF)
    for b in range(4):
        name[4 + b] = (to >> np.uint64(40 - 8 * b)) & np.uint64(0xFF)
    header = io.tx_headers[message]
    header[0], header[1] = io.tx_names[message].ctypes.data, 16
    header[2], header[3] = io.tx_iovecs[first_iovec].ctypes.data, iovecs
    header[4] = header[5] = 0
    if segment:
        control = io.tx_control[message]
        control[0] = 18
        control[1] = np.uint64(libc.SOL_UDP | (libc.UDP_SEGMENT << 32))
        u16_at(io.tx_control[message].ctypes.data + 16, 1)[0] = segment
        header[4], header[5] = io.tx_control[message].ctypes.data, 24


@kernel
def _flush(io, messages):
    """Send the prepared messages; returns how many failed."""
    sent = failed = 0
    while sent < messages:
        result = libc.sendmmsg(io.config[0], io.tx_headers, sent, messages - sent, 0)
        if result > 0:
            sent += result
        elif libc.errno() != libc.EINTR:
            if libc.errno() == libc.EIO:  # the device on this path can't do checksums, which segmentation needs
                io.config[1] = 0
            sent += 1  # lost like any datagram: the sender's timer or the peer's covers it
            failed += 1
    return failed


@kernel
def send_batch(io, packets, count):
    """Send packets[:count]. Neighbours of one length for one endpoint travel as one message. Returns how many messages
    failed."""
    messages = iovecs = failed = 0
    i = 0
    while i < count:
        if messages == _SEND_MESSAGES:
            failed += _flush(io, messages)
            messages = iovecs = 0
        first = iovecs
        to, length = packets.endpoint[i], packets.length[i]
        limit = 1
        if (
            io.config[1] and length
        ):  # a segment size of 0 means no segmentation: several empty datagrams would become one
            limit = max(min(_SEGMENTS, _MESSAGE_BYTES // length), 1)
        train = 0
        end = np.uint64(0)
        while i < count and train < limit and packets.endpoint[i] == to and packets.length[i] == length:
            if packets.address[i] == end:  # lies behind the last one: the kernel copies one long piece faster than two
                io.tx_iovecs[iovecs - 1, 1] += np.uint64(length)
            else:
                io.tx_iovecs[iovecs, 0], io.tx_iovecs[iovecs, 1] = packets.address[i], length
                iovecs += 1
            end = packets.address[i] + np.uint64(length)
            train += 1
            i += 1
        _add_message(io, messages, first, iovecs - first, to, length if train > 1 else 0)
        messages += 1
    if messages:
        failed += _flush(io, messages)
    return failed


def payload_of(packets: Packets, index: int) -> bytes:
    """A packet's bytes, copied (for tests and slow paths)."""
    return u8_at(int(packets.address[index]), int(packets.length[index])).tobytes()
