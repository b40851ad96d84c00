"""The kernel's information about control connections: the identity of the peer, and the side that closed a connection.

gRPC only reports to a server's handler that its call was cancelled. The kernel's states are more specific: a socket
that this side closed first is in FIN_WAIT, one that the peer closed first is in CLOSE_WAIT, LAST_ACK or removed, and
one whose peer cancelled the call is still open.
"""

import ipaddress
import os
import socket
import stat
import struct
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

from switchml.control.dataplane import Address

_CLOSED_BY_US = {"04", "05", "0B"}
"""FIN_WAIT1, FIN_WAIT2, CLOSING (include/net/tcp_states.h)."""
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST = 4, 20, 1
"""linux/netlink.h, linux/sock_diag.h."""
_UID_AT = 16 + 64
"""Offset of idiag_uid in a reply: after the header of the message and the preceding fields (linux/inet_diag.h)."""


def address_of(peer: str) -> Address | None:
    """(IP, port) of a gRPC peer, "ipv4:10.0.0.1:5555"; None if it is of another kind."""
    family, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    if family not in ("ipv4", "ipv6") or not port.isdigit():
        return None
    return host.strip("[]").removeprefix("::ffff:"), int(port)


def client_of(peer: Address | None, server: Address) -> str:
    """Client to which limits attribute the TCP connection from `peer` to the `server` address: its IP, and on loopback,
    where all users of the machine share addresses, the user.
    """
    if peer is None:
        return "an unknown address"
    ip, _ = peer
    if not ip.startswith("127."):
        return ip
    user = _user_at(peer, server if server[0].startswith("127.") else ("127.0.0.1", server[1]))
    return "this machine" if user is None else f"user {user} of this machine"


def _user_at(end: Address, other_end: Address) -> int | None:
    """User ID of the socket at `end` of a TCP connection of this machine; None if unknown."""
    ends = b"".join(struct.pack("!H", port) for _, port in (end, other_end))
    ips = b"".join(socket.inet_aton(ip) + bytes(12) for ip, _ in (end, other_end))
    any_interface_and_cookie = struct.pack("=I", 0) + b"\xff" * 8
    # struct inet_diag_req_v2: without NLM_F_DUMP it queries this one socket, without a search.
    request = struct.pack("=BBBxI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0xFFFFFFFF)
    request += ends + ips + any_interface_and_cookie
    header = struct.pack("=IHHII", 16 + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
    with suppress(OSError), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as netlink:
        netlink.settimeout(1.0)
        netlink.send(header + request)
        reply = netlink.recv(4096)
        if len(reply) >= _UID_AT + 4 and struct.unpack_from("=H", reply, 4)[0] == _SOCK_DIAG_BY_FAMILY:
            return int(struct.unpack_from("=I", reply, _UID_AT)[0])
    return None


def own_connections(port: int) -> Iterator[tuple[Address, socket.socket]]:
    """TCP connections that this process has accepted at `port`: the peer's address, and a socket for the same
    connection, which is closed afterwards.
    """
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed in the meantime, or a listening socket
            number = int(name)
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            with socket.socket(fileno=os.dup(number)) as connection:
                is_tcp = (
                    connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM
                )
                if is_tcp and connection.getsockname()[1] == port:
                    ip, peer_port = connection.getpeername()[:2]
                    yield (ip.removeprefix("::ffff:"), peer_port), connection


class IdleConnections:
    """Control connections that no rank uses to follow its job. A client that has more than `quota` of them loses the
    oldest ones, so that no client exhausts the process's descriptors.
    """

    def __init__(self, quota: int):
        self._quota = quota
        self._seen: dict[Address, None] = {}
        """Connections in the order in which they were accepted."""

    def trim(self, server: Address, of_ranks: Collection[Address]) -> None:
        """Close excess connections; call it about once a second. `server`: address of the control port."""
        if len(os.listdir("/proc/self/fd")) <= self._quota:
            return
        connections = {peer for peer, _ in own_connections(server[1])} - set(of_ranks)
        self._seen = {peer: None for peer in [*self._seen, *sorted(connections)] if peer in connections}
        if len(connections) <= self._quota:
            return
        by_client: dict[str, list[Address]] = defaultdict(list)
        for peer in self._seen:
            by_client[client_of(peer, server)].append(peer)
        too_many = {peer for peers in by_client.values() for peer in peers[: -self._quota]}
        for peer, connection in own_connections(server[1]):
            if peer in too_many:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


def is_reached_at(address: Address, own: Collection[Address]) -> bool:
    """Whether packets to `address` (port 0: any port) reach one of the `own` sockets, which may listen on 0.0.0.0."""
    ip, port = address
    return any(
        port in (0, own_port) and (ip == own_ip or (own_ip == "0.0.0.0" and _is_local(ip))) for own_ip, own_port in own
    )


def _is_local(ip: str) -> bool:
    """Whether an IPv4 address belongs to this machine: then a socket can be bound to it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((ip, 0))
        except OSError:
            return False
    return True


def closed_by_us(peers: Collection[str]) -> set[str]:
    """Those gRPC peers ("ipv4:10.0.0.1:5555") whose TCP connection was closed from this side; excludes unknown ones.
    Reads the kernel's table of all connections: with thousands of them, this takes a while.
    """
    remotes = {words: peer for peer in peers for words in _remote_words(peer)}
    # Columns: number, local address, remote address, state (Documentation/networking/proc_net_tcp.rst).
    rows = (fields for table in _TABLES for fields in _rows(table)) if remotes else ()
    return {remotes[fields[2]] for fields in rows if fields[2] in remotes and fields[3] in _CLOSED_BY_US}


def _remote_words(peer: str) -> list[str]:
    """Notations of a peer's address in the kernel's tables."""
    at = address_of(peer)
    try:
        if at is None:
            return []
        packed = ipaddress.ip_address(at[0]).packed
        # gRPC listens with IPv6 sockets if available; they show an IPv4 peer as ::ffff:a.b.c.d.
        written = [packed, bytes(10) + b"\xff\xff" + packed] if len(packed) == 4 else [packed]
        return [f"{_hex_words(address)}:{at[1]:04X}" for address in written]
    except ValueError:
        return []


def _rows(table: str) -> list[list[str]]:
    try:
        return [line.split() for line in Path(table).read_text().splitlines()[1:]]
    except OSError:
        return []


def _hex_words(address: bytes) -> str:
    """An address in the kernel's notation, as 32-bit words in host byte order."""
    return "".join(f"{word:08X}" for word in struct.unpack(f"={len(address) // 4}I", address))
