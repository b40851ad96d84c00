"""Why a control connection ended: the peer closed it, or we did, after the peer had stopped answering.

gRPC reports to a server's handler only that its call was cancelled. The kernel knows more: a socket that our side
closed first is in FIN_WAIT, one that the peer closed first is in CLOSE_WAIT, LAST_ACK or removed, and one whose peer
cancelled the call is still open.
"""

import socket
import struct
from pathlib import Path
from urllib.parse import unquote

_CLOSED_BY_US = {"04", "05", "0B"}
"""FIN_WAIT1, FIN_WAIT2, CLOSING (include/net/tcp_states.h)."""
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")


def was_closed_by_us(peer: str) -> bool:
    """True if the TCP connection to gRPC peer `peer` ("ipv4:10.0.0.1:5555") was closed from this side. False if that
    is unknown.
    """
    family, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    try:
        if family == "ipv4":
            packed = socket.inet_pton(socket.AF_INET, host)
            # gRPC listens with IPv6 sockets where there are any; they show an IPv4 peer as ::ffff:a.b.c.d.
            addresses = {_hex_words(packed), _hex_words(bytes(10) + b"\xff\xff" + packed)}
        else:
            addresses = {_hex_words(socket.inet_pton(socket.AF_INET6, host.strip("[]")))}
        remotes = {f"{words}:{int(port):04X}" for words in addresses}
    except (OSError, ValueError):
        return False
    # Columns: number, local address, remote address, state (Documentation/networking/proc_net_tcp.rst).
    return any(fields[2] in remotes and fields[3] in _CLOSED_BY_US for table in _TABLES for fields in _rows(table))


def _rows(table: str) -> list[list[str]]:
    try:
        return [line.split() for line in Path(table).read_text().splitlines()[1:]]
    except OSError:
        return []


def _hex_words(address: bytes) -> str:
    """The kernel prints an address as 32-bit words of its own byte order."""
    return "".join(f"{word:08X}" for word in struct.unpack(f"={len(address) // 4}I", address))
