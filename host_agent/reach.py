"""The path of an agent's packets to the aggregator: transport, address, and the registration with a P4 switch.

transport = choose("auto", client.wait_for(address), host)   # also opens the socket, which determines the address
session = client.join(…, data_address=transport.data_address, transport=transport.name, mac=transport.mac)
transport.follow(session.info)                               # sets the destination of packets
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from host_agent import loop
from switchml.control.client import JobInfo
from switchml.control.v2_pb2 import StatusReply
from switchml.errors import ConfigError
from switchml.net import frames, ports, sockets
from switchml.net.trains import HEADER_BYTES as FRAME_HEADER_BYTES
from switchml.protocol.packet import HEADER_BYTES, MAX_SPARSE_BYTES

TRANSPORTS = ("auto", "udp", "shm", "zmq", "frames", "raw")
_SIOCGIFADDR, _SIOCGIFBRDADDR, _SIOCGIFHWADDR = 0x8915, 0x8919, 0x8927
"""From linux/sockios.h; after entering a network namespace, /sys would still show the interfaces of the previous one.
"""
_EXPERIMENTAL = 0x88B5
"""An Ethernet type that nobody answers (IEEE 802, local experiments)."""
_DISCARD = 9

Socket = socket.socket
"""Alias, since a class below has a field of that name."""


@dataclass
class Transport:
    """Transport of a rank's packets. `name`: one of TRANSPORTS. `kind`: loop.PLAIN, FRAMED or RAW. `aggregator`:
    destination of UDP datagrams. `socket` is bound; with a raw interface it only reserves the port."""

    name: str
    socket: Socket
    mac: int = 0
    interface: str = ""
    kind: int = loop.PLAIN
    aggregator: tuple[str, int] = ("", 0)
    raw: Socket | None = None
    ends: frames.Ends | None = None

    @property
    def data_address(self) -> tuple[str, int]:
        address: tuple[str, int] = self.socket.getsockname()
        return address

    def another(self) -> Transport:
        """Another transport with the same address and a different port, for UDP. Raises ConfigError."""
        return Transport(self.name, bound(self.data_address[0]))

    def announce(self) -> None:
        """Send a frame from which the switch learns this rank's port. Raises ConfigError."""
        if self.name == "raw":
            self.raw = frames.open_interface(self.interface, self.data_address[1])
            hello = b"\xff" * 6 + self.mac.to_bytes(6, "big") + struct.pack(">H", _EXPERIMENTAL) + bytes(46)
            os.writev(self.raw.fileno(), (bytes(10), hello))
        elif self.interface:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            self.socket.sendto(b"", (address_of(self.interface, _SIOCGIFBRDADDR), _DISCARD))

    def follow(self, info: JobInfo) -> None:
        """Set the destination of packets from the `info` of the started job. Raises ConfigError."""
        self.aggregator = info.data_address
        if info.link is None or self.name == "udp":
            return
        self.ends = frames.Ends(info.link.mac, *self.data_address, info.link.switch_mac, *info.data_address)
        kind, _, where = info.link.where.partition(":")
        if kind == "udp":
            host, _, port = where.rpartition(":")
            self.kind, self.aggregator = loop.FRAMED, (host, int(port))
            return
        self.kind = loop.RAW
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)  # it receives the frames, too; nobody reads them
        if self.raw is None:
            self.raw = frames.open_interface(where, self.data_address[1])

    def packet_rows(self, slots: int, payload_bytes: int) -> np.ndarray | None:
        """Rows in which a worker builds its packets, if they need frame headers: uint8[2 slots, …]; else None."""
        if self.ends is None:
            return None
        packet_bytes = HEADER_BYTES + payload_bytes
        rows = np.zeros((2 * slots, FRAME_HEADER_BYTES + packet_bytes), np.uint8)
        rows[:, :FRAME_HEADER_BYTES] = np.frombuffer(frames.headers(self.ends, packet_bytes), np.uint8)
        return rows

    def sparse_rows(self, slots: int) -> np.ndarray | None:
        """Such rows for packets of sparse streams, which differ in length: the loop prepends the headers."""
        return None if self.ends is None else np.zeros((2 * slots, FRAME_HEADER_BYTES + MAX_SPARSE_BYTES), np.uint8)

    def close(self) -> None:
        self.socket.close()
        if self.raw is not None:
            self.raw.close()


def choose(
    transport: str, status: StatusReply | None, host: str, job: str, rank: int, bind_ip: str | None
) -> Transport:
    """Choose the transport to the aggregator with this `status` (None if it did not answer), whose control port is at
    `host`. Raises ConfigError if the aggregator can't be reached with `transport`."""
    plane = status.dataplane if status is not None else None
    if plane is None or not plane.mac:
        if transport in ("frames", "raw"):
            raise ConfigError(f"transport {transport} requires a P4 switch; the aggregator at {host} is not one")
        return Transport(
            transport, bound(bind_ip or own_address("127.0.0.1" if transport == "zmq" else host, job, rank))
        )
    switch = plane.address.ip
    interface = os.environ.get("SWITCHML_INTERFACE") or interface_to(switch)
    usable = [name for name in plane.transports if name == "frames" or interface]
    if transport == "auto":
        transport = usable[0] if usable else ""
    if transport not in plane.transports:
        listed = " or ".join(usable) or f"an interface that leads to {switch}: none does here"
        raise ConfigError(
            f"the P4 switch at {plane.switch} is reached by {listed}, not by {transport or 'another way'}"
        )
    if transport == "frames":
        return Transport(transport, bound(bind_ip or own_address(host, job, rank)))
    if not interface:
        raise ConfigError(
            f"transport {transport}: no interface is connected to the switch {switch}; set SWITCHML_INTERFACE"
        )
    chosen = Transport(
        transport, bound(bind_ip or address_of(interface, _SIOCGIFADDR)), mac=_mac_of(interface), interface=interface
    )
    try:
        chosen.announce()
    except BaseException as error:
        chosen.close()
        if isinstance(error, OSError):
            raise ConfigError(f"interface {interface}: {error.strerror or error}") from None
        raise
    return chosen


def bound(ip: str, port: int = 0) -> socket.socket:
    """A UDP socket bound to an address and port, by default any port. Raises ConfigError."""
    where = f"{ip}:{port}" if port else ip
    return ports.bound(ip, port, f"can't receive on {where}", "bind_ip is to be an address of this machine")


def announce(sock: socket.socket) -> None:
    """Send an empty broadcast datagram to the network of a socket's address, if it has a broadcast address."""
    ip = sock.getsockname()[0]
    here = (item for each in psutil.net_if_addrs().values() for item in each if item.family == socket.AF_INET)
    network = next((item.broadcast for item in here if item.address == ip), None)
    if network:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        with suppress(OSError):
            sock.sendto(b"", (network, _DISCARD))


def buffer_bytes(transport: Transport) -> int:
    """Grow the receive buffer as far as possible, and return its size."""
    return sockets.grow_buffers(transport.raw if transport.raw is not None else transport.socket, 4 << 20)


def own_address(host: str, job: str, rank: int) -> str:
    """Address at which this rank receives: on loopback an address of its own, else the local address of the route to
    `host`."""
    try:
        remote = socket.gethostbyname(host)
    except OSError as error:
        raise ConfigError(f"aggregator host {host!r}: {error.strerror or error}") from None
    if remote.startswith("127."):
        digest = zlib.crc32(f"{job} {os.getpid()}".encode())  # jobs may use equal ports, so addresses must differ
        return f"127.{1 + digest % 254}.{digest >> 8 & 0xFF}.{rank % 254 + 1}"
    return address_towards(remote)


def address_towards(remote: str) -> str:
    """The local IPv4 address of the route to `remote`. Sends nothing. Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((remote, _DISCARD))
        return str(probe.getsockname()[0])


def interface_to(ip: str) -> str:
    """The interface directly connected to an IPv4 address, according to the kernel's routes; "" if there is none."""
    target, best, name = int(ipaddress.IPv4Address(ip)), -1, ""
    try:
        lines = Path("/proc/net/route").read_text().splitlines()[1:]
    except OSError:
        return ""
    for interface, *columns in (line.split() for line in lines):
        destination, gateway, mask = (
            int.from_bytes(bytes.fromhex(columns[i])[::-1], "big") for i in (0, 1, 6)
        )  # printed as words in host byte order, of addresses in network order
        if not gateway and mask > best and mask and target & mask == destination:
            best, name = mask, interface
    return name


def _ioctl(interface: str, request: int) -> bytes:
    """Query a property of an interface: a struct sockaddr."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            return fcntl.ioctl(any_socket, request, struct.pack("256s", interface.encode()[:15]))[16:32]
        except OSError as error:
            raise ConfigError(f"interface {interface}: {error.strerror or error}") from None


def address_of(interface: str, request: int = _SIOCGIFADDR) -> str:
    """IPv4 address of an interface. Raises ConfigError."""
    return socket.inet_ntoa(_ioctl(interface, request)[4:8])


def _mac_of(interface: str) -> int:
    return int.from_bytes(_ioctl(interface, _SIOCGIFHWADDR)[2:8], "big")
