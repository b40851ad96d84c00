"""UDP ports of this machine, free ports, and interfaces without transmit offloads."""

import ctypes
import fcntl
import socket
import struct

from switchml.errors import ConfigError

_SIOCETHTOOL, _STXCSUM, _SSG = 0x8946, 0x17, 0x19
"""linux/sockios.h, linux/ethtool.h."""


def free_port(kind: int = socket.SOCK_STREAM) -> int:
    """Return a port of the loopback interface that is currently free. `kind`: SOCK_STREAM (TCP) or SOCK_DGRAM (UDP)."""
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def bound(ip: str, port: int, what: str, advice: str) -> socket.socket:
    """Return a UDP socket bound to `port` (0: any) of an address. Raises ConfigError, whose text is `what`, the reason
    and `advice`."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sock.bind((ip, port))
    except OSError as error:
        sock.close()
        raise ConfigError(f"{what}: {error.strerror or error}; {advice}") from None
    return sock


def data_port(ip: str, port: int) -> socket.socket:
    """Return the socket of an aggregator's data port. Raises ConfigError."""
    return bound(ip, port, f"data port {ip}:{port}", "choose another with --data-port, or 0 for any free one")


def finish_packets(interface: str) -> None:
    """Disable transmit offloads (checksums, segmentation) of an interface in this namespace, as `ethtool --offload
    INTERFACE tx off sg off` does. Readers of packets at its veth peer depend on it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for feature in (_STXCSUM, _SSG):
            value = ctypes.create_string_buffer(struct.pack("II", feature, 0))
            request = struct.pack("16sQ16x", interface.encode(), ctypes.addressof(value))
            fcntl.ioctl(any_socket, _SIOCETHTOOL, request)
