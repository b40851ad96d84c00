"""Ethernet frames that a worker builds itself, for a switch that isn't reached through the kernel's UDP stack: one
frame per datagram (without privileges), or through a network interface (packet_io.py; root).

All packets of a worker belong to one flow, so the 42 bytes of headers (Ethernet, IPv4, UDP without checksum) differ
only in their length fields. They are written once, in front of the packet buffers, and `fit` updates the lengths when
the packet size in a buffer changes. Received GSO trains are not copied: their packets are listed in place.
"""

import socket
import struct
from typing import NamedTuple

import numpy as np

from switchml.net import sockets, trains, udp
from switchml.net.checksum import put_ipv4
from switchml.net.messages import bytes_of, receive_messages
from switchml.net.packet_io import JOIN_FLOW, MESSAGES, PacketIO, new_packet_io, send_frames
from switchml.net.sockets import ETH_P_IP
from switchml.net.trains import GRO_PACKETS, HEADER_BYTES, VIRTIO_BYTES
from switchml.runtime.jit import Address, int64, kernel
from switchml.runtime.memory import be16, be32, put_be16, u8_at

RECEIVE_PACKETS = MESSAGES * GRO_PACKETS


class Ends(NamedTuple):
    """Both endpoints of a flow: MAC addresses as integers, IPv4 addresses as text, UDP ports."""

    mac: int
    ip: str
    port: int
    switch_mac: int
    switch_ip: str
    switch_port: int


def headers(ends: Ends, payload_bytes: int) -> bytes:
    """Return the 42 header bytes in front of each packet of `payload_bytes`."""
    ethernet = ends.switch_mac.to_bytes(6, "big") + ends.mac.to_bytes(6, "big") + struct.pack(">H", ETH_P_IP)
    addresses = socket.inet_aton(ends.ip) + socket.inet_aton(ends.switch_ip)
    ip = struct.pack(">BBHHHBBH", 0x45, 0, 0, 0, 0x4000, 64, socket.IPPROTO_UDP, 0) + addresses
    header = np.frombuffer(bytearray(ethernet + ip + struct.pack(">HHHH", ends.port, ends.switch_port, 0, 0)), np.uint8)
    fit(header.ctypes.data, HEADER_BYTES + payload_bytes)
    return header.tobytes()


class Flow(NamedTuple):
    """Addresses of one worker's frames. `ours` int64[2]: the worker's IPv4 address as an integer, its UDP port.
    `switch_mac` int64[1]."""

    ours: np.ndarray
    switch_mac: np.ndarray


def new_flow(ends: Ends | None) -> Flow:
    """Return the flow between both endpoints, or an unused placeholder for None."""
    address, mac = (udp.endpoint(ends.ip, ends.port), ends.switch_mac) if ends is not None else (0, 0)
    return Flow(np.array([address >> 16, address & 0xFFFF], np.int64), np.array([mac], np.int64))


@kernel
def _sender(at: Address, flow: Flow) -> np.uint64:
    """Return the endpoint that sent a frame; 0 if the source isn't the switch's MAC address."""
    frame = u8_at(at, HEADER_BYTES)
    if be16(frame, 6) << 32 | be32(frame, 8) != flow.switch_mac[0]:
        return np.uint64(0)
    return np.uint64(be32(frame, 26) << 16 | be16(frame, 34))


@kernel
def _payload(at: Address, length: int, flow: Flow) -> int:
    """Return the UDP payload size, in bytes, of a frame for this worker's address and port; -1 for other frames."""
    if length < HEADER_BYTES:
        return -1
    frame = u8_at(at, HEADER_BYTES)
    if be16(frame, 12) != ETH_P_IP or frame[14] != 0x45 or frame[23] != 17 or be16(frame, 20) & 0x3FFF:
        return -1
    size = be16(frame, 38) - 8
    if be32(frame, 30) != flow.ours[0] or be16(frame, 36) != flow.ours[1] or size > length - HEADER_BYTES:
        return -1
    return size


@kernel
def strip(packets: udp.Packets, count: int, flow: Flow, switch_port: np.uint64) -> int:
    """Replace the frames packets[:count] by the payloads of those for this worker, and the endpoints by those in the
    frames: 0 for a datagram that isn't from `switch_port` (an endpoint), or a frame that isn't from the switch. Returns
    the number of payloads."""
    n = 0
    for i in range(count):
        size = _payload(packets.address[i], packets.length[i], flow)
        if size >= 0:
            is_switch = packets.endpoint[i] == switch_port
            packets.endpoint[n] = _sender(packets.address[i], flow) if is_switch else np.uint64(0)
            packets.address[n] = packets.address[i] + np.uint64(HEADER_BYTES)
            packets.length[n] = size
            n += 1
    return n


class FrameIO(NamedTuple):
    """Per-socket state of the kernels below. `config` int64[1]: file descriptor (-1: none)."""

    config: np.ndarray
    packets: PacketIO


def new_frame_io(sock: socket.socket | None) -> FrameIO:
    """Return buffers for a packet socket, or empty ones for None. The caller keeps the socket open."""
    descriptor = np.array([-1 if sock is None else sock.fileno()], np.int64)
    return FrameIO(descriptor, new_packet_io(0 if sock is None else MESSAGES))


def open_interface(name: str, udp_port: int) -> socket.socket:
    """Return a packet socket that receives the frames for a UDP port on an interface. Raises ConfigError."""
    sock = sockets.new_packet_socket(name)
    sockets.receive_only_udp(sock, udp_port)
    sockets.attach(sock, name, ETH_P_IP)
    return sock


@kernel
def receive_batch(io: FrameIO, packets: udp.Packets, flow: Flow) -> int:
    """Receive without blocking. `packets` lists the payloads of frames for this worker, valid until the next call, and
    their source endpoints: 0 if not from the switch's MAC address. Returns the number of payloads."""
    count = 0
    incoming = io.packets.incoming
    for i in range(receive_messages(io.config[0], incoming, 0, MESSAGES)):
        virtio = int64(incoming.iovecs[i, 0])
        at = virtio + VIRTIO_BYTES
        left = _payload(at, bytes_of(incoming, i) - VIRTIO_BYTES, flow)
        if left < 0:
            continue
        sender = _sender(at, flow)
        _, segmentation, size, _, _ = trains.virtio_fields(virtio)
        size = size if segmentation == trains.UDP_SEGMENTS else left
        at += HEADER_BYTES
        while count < packets.address.size:
            packets.address[count], packets.length[count], packets.endpoint[count] = at, min(size, left), sender
            count += 1
            at += size
            left -= size
            if left <= 0 or size <= 0:
                break
    return count


@kernel
def fit(at: Address, length: int) -> None:
    """Update the headers of the frame at `at` for a total size of `length` bytes."""
    header = u8_at(at, HEADER_BYTES)
    if be16(header, 38) != length - 34:
        put_ipv4(header, 14, length - 14, 0)
        put_be16(header, 38, length - 34)


@kernel
def send_batch(io: FrameIO, packets: udp.Packets, count: int) -> None:
    """Send the frames packets[:count], all of one flow."""
    send_frames(io.packets, io.config[0], packets.address[:count], packets.length[:count], JOIN_FLOW)
