"""How an agent's packets get to what sums them: which transport, from which address, and for a P4 switch what it has to
know of this rank.

    way = choose("auto", client.wait_for(address), host)     # how, and the socket that decides this rank's address
    session = client.join(…, data_address=way.data_address, transport=way.name, mac=way.mac)
    way.follow(session.info)                                 # where packets go from here
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from host_agent import loop
from switchml.errors import ConfigError
from switchml.net import frames, libc
from switchml.protocol.packet import HEADER_BYTES, MAX_SPARSE_BYTES

TRANSPORTS = ("auto", "udp", "shm", "zmq", "frames", "raw")
_SIOCGIFADDR, _SIOCGIFBRDADDR, _SIOCGIFHWADDR = 0x8915, 0x8919, 0x8927
"""linux/sockios.h; /sys would show another network namespace's interfaces to who has entered one."""
_EXPERIMENTAL = 0x88B5
"""An Ethernet type that nobody answers (IEEE 802, local experiments)."""
_DISCARD = 9


@dataclass
class Way:
    """A rank's way. `name`: one of TRANSPORTS but auto. `kind`: loop.PLAIN, FRAMED or RAW. `aggregator`: where UDP
    datagrams go. `socket` is bound; with an interface of its own it only keeps the port."""

    name: str
    socket: socket.socket
    mac: int = 0
    interface: str = ""
    kind: int = loop.PLAIN
    aggregator: tuple[str, int] = ("", 0)
    raw: socket.socket | None = None
    ends: frames.Ends | None = None

    @property
    def data_address(self) -> tuple[str, int]:
        return self.socket.getsockname()

    def announce(self) -> None:
        """Let the switch see where this rank is: it learns from whom frames come at which port. Raises ConfigError."""
        if self.name == "raw":
            self.raw = frames.open_interface(self.interface, self.data_address[1])
            hello = b"\xff" * 6 + self.mac.to_bytes(6, "big") + struct.pack(">H", _EXPERIMENTAL) + bytes(46)
            os.writev(self.raw.fileno(), (bytes(10), hello))
        elif self.interface:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            self.socket.sendto(b"", (_address_of(self.interface, _SIOCGIFBRDADDR), _DISCARD))

    def follow(self, info) -> None:
        """The job has started: take from its `info` (client.JobInfo) where packets go. Raises ConfigError."""
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
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)  # frames come to it, too, and nobody reads them
        if self.raw is None:
            self.raw = frames.open_interface(where, self.data_address[1])

    def packet_rows(self, slots: int, payload_bytes: int) -> np.ndarray | None:
        """Where a worker is to build its packets if they need headers in front: uint8[slots, …]."""
        if self.ends is None:
            return None
        packet_bytes = HEADER_BYTES + payload_bytes
        rows = np.zeros((slots, frames.HEADER_BYTES + packet_bytes), np.uint8)
        rows[:, : frames.HEADER_BYTES] = np.frombuffer(frames.headers(self.ends, packet_bytes), np.uint8)
        return rows

    def sparse_rows(self, slots: int) -> np.ndarray | None:
        """The same for packets of sparse streams, which differ in length: the loop puts the headers in front."""
        return None if self.ends is None else np.zeros((slots, frames.HEADER_BYTES + MAX_SPARSE_BYTES), np.uint8)

    def close(self) -> None:
        self.socket.close()
        if self.raw is not None:
            self.raw.close()


def choose(transport: str, status, host: str, job: str, rank: int, bind_ip: str | None) -> Way:
    """The way to the aggregator whose `status` (StatusReply, None if it did not answer) is given and whose control port
    is at `host`. Raises ConfigError if it can't be reached that way."""
    plane = status.dataplane if status is not None else None
    if plane is None or not plane.mac:
        if transport in ("frames", "raw"):
            raise ConfigError(f"transport {transport} leads to a P4 switch; the aggregator at {host} is none")
        return Way(transport, bound(bind_ip or own_address("127.0.0.1" if transport == "zmq" else host, job, rank)))
    offered = tuple(plane.transports)
    switch = plane.address.ip
    found = os.environ.get("SWITCHML_INTERFACE") or interface_to(switch)
    if transport == "auto":
        transport = next((name for name in offered if name == "frames" or found), "")
    if transport not in offered:
        ways = " or ".join(name for name in offered if name == "frames" or found) or (
            f"an interface that leads to {switch}: none does here"
        )
        raise ConfigError(f"the P4 switch at {plane.switch} is reached by {ways}, not by {transport or 'another way'}")
    if transport == "frames":
        return Way(transport, bound(bind_ip or own_address(host, job, rank)))
    if not found:
        raise ConfigError(f"transport {transport}: no interface leads to the switch {switch}; set SWITCHML_INTERFACE")
    way = Way(transport, bound(bind_ip or _address_of(found, _SIOCGIFADDR)), mac=_mac_of(found), interface=found)
    try:
        way.announce()
    except BaseException as error:
        way.close()
        if isinstance(error, OSError):
            raise ConfigError(f"interface {found}: {error.strerror or error}") from None
        raise
    return way


def bound(ip: str) -> socket.socket:
    """A UDP socket at any port of an address. Raises ConfigError."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sock.bind((ip, 0))
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"can't receive on {ip}: {error.strerror or error}; bind_ip is to be an address of this machine"
        ) from None
    return sock


def buffer_bytes(way: Way) -> int:
    """Grow the receive buffer as far as it goes, and return its size."""
    return libc.grow_buffers(way.raw if way.raw is not None else way.socket, 4 << 20)


def own_address(host: str, job: str, rank: int) -> str:
    """Where this rank receives: on loopback an address of its own, else the local address that routes to `host`."""
    try:
        remote = socket.gethostbyname(host)
    except OSError as error:
        raise ConfigError(f"aggregator host {host!r}: {error.strerror or error}") from None
    if remote.startswith("127."):
        return f"127.0.{1 + sum(job.encode()) % 254}.{rank % 254 + 1}"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((remote, 9))
        return probe.getsockname()[0]


def interface_to(ip: str) -> str:
    """The interface on whose link an IPv4 address is, as the kernel's routes have it; "" if there is none."""
    wanted, best, name = int(ipaddress.IPv4Address(ip)), -1, ""
    try:
        lines = Path("/proc/net/route").read_text().splitlines()[1:]
    except OSError:
        return ""
    for interface, *columns in (line.split() for line in lines):
        destination, gateway, mask = (
            int.from_bytes(bytes.fromhex(columns[i])[::-1], "big") for i in (0, 1, 6)
        )  # printed as the machine's words, of addresses in network order
        if not gateway and mask > best and mask and wanted & mask == destination:
            best, name = mask, interface
    return name


def _ask(interface: str, request: int) -> bytes:
    """What the kernel says of an interface: a struct sockaddr."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            return fcntl.ioctl(any_socket, request, struct.pack("256s", interface.encode()[:15]))[16:32]
        except OSError as error:
            raise ConfigError(f"interface {interface}: {error.strerror or error}") from None


def _address_of(interface: str, request: int) -> str:
    return socket.inet_ntoa(_ask(interface, request)[4:8])


def _mac_of(interface: str) -> int:
    return int.from_bytes(_ask(interface, _SIOCGIFHWADDR)[2:8], "big")
