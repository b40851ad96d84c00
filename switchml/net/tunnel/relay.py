"""Common parts of both ends of a tunnel: a UDP socket whose packets become messages, and the ZeroMQ socket that carries
them."""

from __future__ import annotations

import socket

import numpy as np
import zmq

from switchml.net import sockets, udp
from switchml.net.tunnel.messages import MESSAGE_BYTES, gather, scatter
from switchml.runtime.jit import compile_once

QUEUE_MESSAGES = 64
"""High-water mark of each queue, which limits the memory for a peer that receives nothing to 64 messages."""
SOCKET_BUFFER_BYTES = 4 << 20
PROBE_S = 2.0
"""Interval of client heartbeats and of server probes."""
CONNECTION_TIMEOUT_S = 10.0
"""A connection on which these are unanswered for this long is closed. libzmq's threads and the kernel answer,
independently of Python."""
LINGER_S = 0.2
"""Maximum time for sending a client's goodbye."""


class Relay:
    """A connected UDP socket that converts between messages and packets. Relays of one thread share their `Buffers`."""

    def __init__(self, peer: tuple[str, int], bind_ip: str | None, buffers: Buffers) -> None:
        self._buffers = buffers
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            if bind_ip:
                self.socket.bind((bind_ip, 0))
            self.socket.connect(peer)  # so that the kernel rejects packets from others
            self.socket.setblocking(False)
            self.receive_buffer_bytes = sockets.grow_buffers(self.socket, SOCKET_BUFFER_BYTES)
            self.address: tuple[str, int] = self.socket.getsockname()
            self._to = udp.endpoint(*peer)
            self._io = buffers.io_of(self.socket)
        except BaseException:
            self.socket.close()
            raise

    def turn_to(self, peer: tuple[str, int]) -> None:
        """Exchange packets with another peer from now on."""
        self.socket.connect(peer)
        self._to = udp.endpoint(*peer)

    def fetch(self) -> memoryview | None:
        """Return the pending packets as a message that is valid until the next call; None if there are none."""
        size = gather(self._io, self._buffers.packets, self._buffers.message)
        return self._buffers.view[:size] if size else None

    def deliver(self, frame: zmq.Frame) -> bool:
        """Send the packets of a message; return False if it is invalid."""
        data = np.frombuffer(frame.buffer, np.uint8)
        return bool(scatter(self._io, self._buffers.packets, data.ctypes.data, data.size, self._to) >= 0)

    def close(self) -> None:
        self.socket.close()


class Buffers:
    """Memory for one batch, and the compiled kernels that use it."""

    def __init__(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            self._io = udp.new_udp_io(sock)
        self.packets = udp.new_packets(udp.RECEIVE_PACKETS)
        self.message = np.zeros(MESSAGE_BYTES, np.uint8)
        self.view = self.message.data
        compile_once(gather, self._io, self.packets, self.message)
        compile_once(scatter, self._io, self.packets, 0, 0, 0)

    def io_of(self, sock: socket.socket) -> udp.UdpIO:
        segment, _ = udp.probe_offload(sock)
        return self._io._replace(config=np.array([sock.fileno(), segment], np.int64))


def new_socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    """Return a ZeroMQ socket with bounded queues."""
    zmq_socket = context.socket(kind)
    zmq_socket.linger = int(LINGER_S * 1000)
    zmq_socket.set_hwm(QUEUE_MESSAGES)
    zmq_socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES)
    return zmq_socket
