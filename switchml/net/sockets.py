"""Socket setup: large buffers, and packet sockets on a network interface (AF_PACKET, packet(7)), which carry whole
Ethernet frames, each after a virtio header (trains.py)."""

import ctypes
import errno
import fcntl
import socket
import struct

from switchml.errors import ConfigError

BUFFER_BYTES = 16 << 20
"""Size of the receive and send buffers of a packet socket."""
ETH_P_IP, ETH_P_ALL = 0x0800, 0x0003
SOL_PACKET = 263
ADD_MEMBERSHIP, RX_RING, COPY_THRESHOLD, AUXDATA, VERSION, VNET_HDR, IGNORE_OUTGOING = 1, 5, 7, 8, 10, 15, 23
"""linux/if_packet.h."""

_PROMISCUOUS = 1
_SIOCGIFFLAGS, _SIOCGIFINDEX, _NAME_BYTES, _IFF_RUNNING = 0x8913, 0x8933, 16, 0x40
"""netdevice(7): requests, size of a name in struct ifreq, and a flag."""
_RTMGRP_LINK = 1
"""linux/rtnetlink.h."""
_SO_RCVBUFFORCE, _SO_SNDBUFFORCE, _SO_ATTACH_FILTER = 33, 32, 26
_LDH, _LDB, _JEQ, _AND, _RET = 0x28, 0x30, 0x15, 0x54, 0x06
"""linux/filter.h: load 16 or 8 bits of the frame, jump if equal, mask, return the number of bytes to keep."""


def grow_buffers(sock: socket.socket, size_bytes: int) -> int:
    """Request socket buffers of `size_bytes`, beyond rmem_max if the process is privileged; return the actual receive
    buffer size."""
    for force, plain in ((_SO_RCVBUFFORCE, socket.SO_RCVBUF), (_SO_SNDBUFFORCE, socket.SO_SNDBUF)):
        try:
            sock.setsockopt(socket.SOL_SOCKET, force, size_bytes)
        except OSError:  # not root: limited by net.core.rmem_max and wmem_max
            sock.setsockopt(socket.SOL_SOCKET, plain, size_bytes)
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)


def new_packet_socket(interface: str, *, buffer_bytes: int = BUFFER_BYTES) -> socket.socket:
    """Return a packet socket for an interface, which receives nothing before `attach`. Raises ConfigError."""
    try:
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    except PermissionError:
        raise ConfigError(
            f"interface {interface}: only root may open packet sockets; anybody may use UDP (a switch's port "
            "udp:ADDRESS:PORT, an agent's transport udp or frames)"
        ) from None
    sock.setsockopt(SOL_PACKET, VNET_HDR, 1)
    sock.setsockopt(SOL_PACKET, IGNORE_OUTGOING, 1)
    grow_buffers(sock, buffer_bytes)
    return sock


def attach(sock: socket.socket, interface: str, protocol: int = ETH_P_ALL, *, promiscuous: bool = False) -> None:
    """Bind a packet socket to an interface, to receive (`protocol` 0: nothing) and to send. Raises ConfigError, after
    closing the socket."""
    try:
        reattach(sock, interface, protocol, promiscuous=promiscuous)
    except OSError as error:
        sock.close()
        raise ConfigError(f"can't open interface {interface!r}: {error.strerror or error}") from error


def reattach(sock: socket.socket, interface: str, protocol: int = ETH_P_ALL, *, promiscuous: bool = False) -> None:
    """Call `attach` for a socket whose interface was removed and recreated; the socket stays open if the interface is
    missing. Raises OSError."""
    sock.bind((interface, protocol))
    if promiscuous:
        index = struct.unpack_from("i", _ask(sock, _SIOCGIFINDEX, interface), _NAME_BYTES)[0]
        sock.setsockopt(SOL_PACKET, ADD_MEMBERSHIP, struct.pack("iHH8s", index, _PROMISCUOUS, 0, b""))


def interface_of(sock: socket.socket) -> str:
    """Return the current name of the interface that a packet socket is attached to; "" if it has been removed. Raises
    OSError if the socket is closed."""
    return str(sock.getsockname()[0])


def is_running(sock: socket.socket) -> bool:
    """Return whether the interface of a packet socket is up and has a carrier."""
    try:
        flags = struct.unpack_from("H", _ask(sock, _SIOCGIFFLAGS, interface_of(sock)), _NAME_BYTES)[0]
    except OSError:
        return False
    return bool(flags & _IFF_RUNNING)


def _ask(sock: socket.socket, request: int, interface: str) -> bytes:
    """Call an ioctl of netdevice(7), in the socket's network namespace."""
    return fcntl.ioctl(sock, request, struct.pack("16s24x", interface.encode()))


def take_error(sock: socket.socket) -> int:
    """Return and clear the socket's pending error: until it is read, poll() returns at once, and sending the next frame
    fails with it. An interface that goes down sets one."""
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


def watch_links() -> socket.socket:
    """Return a socket that receives a message when an interface of this thread's network namespace changes
    (rtnetlink(7)). Raises OSError."""
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE)
    sock.bind((0, _RTMGRP_LINK))
    return sock


def drain(sock: socket.socket) -> None:
    """Read and drop all pending messages of a nonblocking socket."""
    while True:
        try:
            sock.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.ENOBUFS:  # messages were lost: others follow
                raise


def receive_only_udp(sock: socket.socket, port: int, mask: int = 0xFFFF) -> None:
    """Attach a kernel filter that drops all but UDP over IPv4 for this port, or for ports equal to it in the bits of
    `mask`."""
    program = b"".join(
        struct.pack("HBBI", *instruction)
        for instruction in (
            (_LDH, 0, 0, 12),
            (_JEQ, 0, 6, ETH_P_IP),
            (_LDB, 0, 0, 23),
            (_JEQ, 0, 4, socket.IPPROTO_UDP),
            (_LDH, 0, 0, 36),
            (_AND, 0, 0, mask),
            (_JEQ, 0, 1, port),
            (_RET, 0, 0, 0xFFFFFFFF),
            (_RET, 0, 0, 0),
        )
    )
    code = ctypes.create_string_buffer(program, len(program))
    about = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(code))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, about)
