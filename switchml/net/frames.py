"""Ethernet frames that a worker makes itself, for a switch that it does not reach through the kernel's own UDP: one a
datagram (any user may), or right through a network interface (AF_PACKET, root).

All packets of a worker go the same way, so their frames have the same 42 bytes of headers (Ethernet, IPv4, UDP without
checksum) but for their length: these are written once, in front of where the packets are built, and `fit` corrects the
length where a packet is shorter or longer than the one before in its place. Through an interface trains of packets go
as one superframe where the kernel takes them (PACKET_VNET_HDR, VIRTIO_NET_HDR_GSO_UDP_L4 of linux/virtio_net.h), and
come as one: the packets in it are listed where they lie.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from typing import NamedTuple

import numpy as np

from switchml.errors import ConfigError
from switchml.net import libc
from switchml.runtime.jit import kernel
from switchml.runtime.memory import be16, be32, copy_bytes, put_be16, u8_at

HEADER_BYTES = 14 + 20 + 8
MESSAGES = 64
"""Frames that one system call takes."""
SOCKET_BYTES = 16 << 20

_VIRTIO_BYTES, _NEEDS_CHECKSUM, _UDP_SEGMENTS = 10, 1, 5
_FRAME_BYTES = 1 << 17
_SEGMENTS = 60
_TRAIN_BYTES = 65000
_PER_FRAME = 64
RECEIVE_PACKETS = MESSAGES * _PER_FRAME
_PARTS = _SEGMENTS + 2
_MSG_DONTWAIT = 0x40
_SOL_PACKET, _VNET_HDR, _IGNORE_OUTGOING = 263, 15, 23
_ETH_P_IP = 0x0800
_SO_ATTACH_FILTER = 26
_LDH, _LDB, _JEQ, _RET = 0x28, 0x30, 0x15, 0x06
"""linux/filter.h: load 16 or 8 bits of the frame, jump if equal, return how much of it to keep."""


class Ends(NamedTuple):
    """Both ends of a flow: MAC addresses as numbers, IPv4 addresses as text, UDP ports."""

    mac: int
    ip: str
    port: int
    switch_mac: int
    switch_ip: str
    switch_port: int


def headers(ends: Ends, payload_bytes: int) -> bytes:
    """The 42 bytes in front of each packet of `payload_bytes`."""
    ip = struct.pack(
        ">BBHHHBBH4s4s",
        0x45,
        0,
        28 + payload_bytes,
        0,
        0x4000,
        64,
        socket.IPPROTO_UDP,
        0,
        socket.inet_aton(ends.ip),
        socket.inet_aton(ends.switch_ip),
    )
    total = sum(struct.unpack(">10H", ip))
    total = (total & 0xFFFF) + (total >> 16)
    ip = ip[:10] + struct.pack(">H", ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF) + ip[12:]
    ethernet = ends.switch_mac.to_bytes(6, "big") + ends.mac.to_bytes(6, "big") + struct.pack(">H", _ETH_P_IP)
    return ethernet + ip + struct.pack(">HHHH", ends.port, ends.switch_port, 8 + payload_bytes, 0)


@kernel
def _payload(at, length, ip, port):
    """Bytes that a frame brings to UDP port `port` of the IPv4 address `ip` (a number); -1 if it is not for that."""
    if length < HEADER_BYTES:
        return -1
    frame = u8_at(at, HEADER_BYTES)
    if be16(frame, 12) != _ETH_P_IP or frame[14] != 0x45 or frame[23] != 17 or be16(frame, 20) & 0x3FFF:
        return -1
    size = be16(frame, 38) - 8
    if be32(frame, 30) != ip or be16(frame, 36) != port or size > length - HEADER_BYTES:
        return -1
    return size


@kernel
def strip(packets, count, ip, port):
    """Of the frames packets[:count], list what they bring to UDP port `port` of the IPv4 address `ip` (a number), in
    their place; returns how many."""
    kept = 0
    for i in range(count):
        size = _payload(packets.address[i], packets.length[i], ip, port)
        if size >= 0:
            packets.address[kept] = packets.address[i] + np.uint64(HEADER_BYTES)
            packets.length[kept] = size
            kept += 1
    return kept


class FrameIO(NamedTuple):
    """What the kernels below need of one packet socket. `config` int64[2]: file descriptor (-1: none), 1 as long as the
    kernel takes superframes. Message headers as io/libc.py describes them."""

    config: np.ndarray
    buffers: np.ndarray
    rx_virtio: np.ndarray
    rx_headers: np.ndarray
    rx_iovecs: np.ndarray
    tx_virtio: np.ndarray
    tx_starts: np.ndarray
    tx_headers: np.ndarray
    tx_iovecs: np.ndarray


def new_frame_io(sock: socket.socket | None) -> FrameIO:
    """Buffers for a packet socket; next to none for None. The caller keeps the socket open."""
    n = MESSAGES if sock is not None else 1
    io = FrameIO(
        config=np.array([sock.fileno() if sock is not None else -1, 1], np.int64),
        buffers=np.zeros((n, _FRAME_BYTES if sock is not None else 1), np.uint8),
        rx_virtio=np.zeros((n, 16), np.uint8),
        rx_headers=np.zeros((n, 8), np.uint64),
        rx_iovecs=np.zeros((n, 4), np.uint64),
        tx_virtio=np.zeros((n, 16), np.uint8),
        tx_starts=np.zeros((n, 64), np.uint8),
        tx_headers=np.zeros((n, 8), np.uint64),
        tx_iovecs=np.zeros((n, 2 * _PARTS), np.uint64),
    )
    for i in range(n):
        io.rx_iovecs[i] = (io.rx_virtio[i].ctypes.data, _VIRTIO_BYTES, io.buffers[i].ctypes.data, io.buffers.shape[1])
        io.rx_headers[i, 2], io.rx_headers[i, 3] = io.rx_iovecs[i].ctypes.data, 2
        io.tx_headers[i, 2] = io.tx_iovecs[i].ctypes.data
    return io


def open_interface(name: str, udp_port: int) -> socket.socket:
    """A packet socket that gets what an interface brings for a UDP port. Raises ConfigError."""
    try:
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)  # protocol 0: nothing arrives before bind
    except PermissionError:
        raise ConfigError(f"interface {name}: only root may send frames of its own") from None
    try:
        _keep_only(sock, udp_port)
        sock.setsockopt(_SOL_PACKET, _VNET_HDR, 1)
        sock.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
        libc.grow_buffers(sock, SOCKET_BYTES)
        sock.bind((name, _ETH_P_IP))
    except OSError as error:
        sock.close()
        raise ConfigError(f"can't open interface {name!r}: {error.strerror or error}") from error
    return sock


def _keep_only(sock: socket.socket, udp_port: int) -> None:
    """Have the kernel drop what is not UDP over IPv4 for this port."""
    program = b"".join(
        struct.pack("HBBI", *instruction)
        for instruction in (
            (_LDH, 0, 0, 12),
            (_JEQ, 0, 5, _ETH_P_IP),
            (_LDB, 0, 0, 23),
            (_JEQ, 0, 3, socket.IPPROTO_UDP),
            (_LDH, 0, 0, 36),
            (_JEQ, 0, 1, udp_port),
            (_RET, 0, 0, 0xFFFFFFFF),
            (_RET, 0, 0, 0),
        )
    )
    code = ctypes.create_string_buffer(program, len(program))
    about = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(code))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, about)


@kernel
def _little16(data, at):
    """A number in the byte order of the machine."""
    return np.int64(data[at]) | (np.int64(data[at + 1]) << 8)


@kernel
def receive_batch(io, packets, ip, port):
    """Take what has arrived, without waiting: `packets` lists what came to UDP port `port` of the IPv4 address `ip` (a
    number), without headers, and stays valid until the next call. Returns how many."""
    for i in range(MESSAGES):
        io.rx_headers[i, 6] = 0
    messages = libc.recvmmsg(io.config[0], io.rx_headers, MESSAGES, _MSG_DONTWAIT)
    count = 0
    for i in range(messages):
        at = np.uint64(io.buffers[i].ctypes.data)
        length = np.int64(io.rx_headers[i, 7] & np.uint64(0xFFFFFFFF)) - _VIRTIO_BYTES
        left = _payload(at, length, ip, port)
        if left < 0:
            continue
        virtio = io.rx_virtio[i]
        size = _little16(virtio, 4) if virtio[1] == _UDP_SEGMENTS else left
        at += np.uint64(HEADER_BYTES)
        while count < packets.address.size:
            packets.address[count], packets.length[count] = at, min(size, left)
            count += 1
            at += np.uint64(size)
            left -= size
            if left <= 0 or size <= 0:
                break
    return count


@kernel
def _flush(io, messages):
    """Send the prepared messages; returns how many frames the kernel did not take."""
    sent = failed = 0
    while sent < messages:
        result = libc.sendmmsg(io.config[0], io.tx_headers, sent, messages - sent, 0)
        if result > 0:
            sent += result
        elif libc.errno() != libc.EINTR:
            if io.tx_headers[sent, 3] > 2:
                io.config[1] = 0  # this kernel takes no superframes: from now on frame by frame
            sent += 1
            failed += 1
    return failed


@kernel
def _checksum_of_addresses(header, udp_bytes):
    """The sum of the pseudo header, which the kernel completes (RFC 768)."""
    total = np.int64(17) + udp_bytes
    for i in range(26, 34, 2):
        total += be16(header, i)
    total = (total & 0xFFFF) + (total >> 16)
    return (total & 0xFFFF) + (total >> 16)


@kernel
def _ip_checksum(header):
    total = np.int64(0)
    for i in range(14, 34, 2):
        if i != 24:
            total += be16(header, i)
    total = (total & 0xFFFF) + (total >> 16)
    return ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF


@kernel
def fit(at, length):
    """Have the headers of the frame at `at` tell of `length` bytes in all."""
    header = u8_at(at, HEADER_BYTES)
    if be16(header, 38) != length - 34:
        put_be16(header, 16, length - 14)
        put_be16(header, 24, _ip_checksum(header))
        put_be16(header, 38, length - 34)


@kernel
def send_batch(io, packets, count):
    """Send the frames packets[:count], all of one length and flow but for their payloads. Returns how many messages the
    kernel did not take."""
    messages = failed = 0
    i = 0
    while i < count:
        if messages == MESSAGES:
            failed += _flush(io, messages)
            messages = 0
        first, length = packets.address[i], np.int64(packets.length[i])
        payload = length - HEADER_BYTES
        train = 1
        if io.config[1] and payload > 0:
            train = min(count - i, _SEGMENTS, max(_TRAIN_BYTES // payload, 1))
            for k in range(1, train):
                if packets.length[i + k] != length:
                    train = k
                    break
        iovecs, virtio = io.tx_iovecs[messages], io.tx_virtio[messages]
        for b in range(_VIRTIO_BYTES):
            virtio[b] = 0
        iovecs[0], iovecs[1] = virtio.ctypes.data, _VIRTIO_BYTES
        if train == 1:
            iovecs[2], iovecs[3] = first, length
            io.tx_headers[messages, 3] = 2
        else:
            start = io.tx_starts[messages]
            copy_bytes(start.ctypes.data, first, HEADER_BYTES)
            put_be16(start, 16, 28 + train * payload)
            put_be16(start, 24, _ip_checksum(start))
            put_be16(start, 38, 8 + train * payload)
            put_be16(start, 40, _checksum_of_addresses(start, 8 + train * payload))
            virtio[0], virtio[1], virtio[2] = _NEEDS_CHECKSUM, _UDP_SEGMENTS, HEADER_BYTES
            virtio[4], virtio[5], virtio[6], virtio[8] = payload & 0xFF, payload >> 8, 34, 6
            iovecs[2], iovecs[3] = start.ctypes.data, HEADER_BYTES
            for k in range(train):
                iovecs[4 + 2 * k] = packets.address[i + k] + np.uint64(HEADER_BYTES)
                iovecs[5 + 2 * k] = payload
            io.tx_headers[messages, 3] = 2 + train
        i += train
        messages += 1
    return failed + _flush(io, messages)
