"""Messages of the tunnel (docs/protocol.md, section 7), and conversion between packet batches and messages."""

import struct

import numpy as np

from switchml.net import udp
from switchml.runtime.jit import Address, int64, kernel
from switchml.runtime.memory import be16, copy_bytes, put_be16, u8_at

VERSION = 1
HELLO, WELCOME, REFUSED, PACKETS, GOODBYE, STRANGER, PROBE = range(1, 8)
"""Message types, in the first byte; the second is VERSION."""
_HEAD_BYTES = 4
_RUN_BYTES = 4
WELCOME_BODY = struct.Struct("!BBH4sI")
MESSAGE_BYTES = _HEAD_BYTES + _RUN_BYTES * udp.RECEIVE_PACKETS + (udp.RECEIVE_MESSAGES << 16)
"""Maximum message size: a whole batch of `udp.receive_batch`."""
TURN = 32
"""Messages processed before the UDP sockets are served again."""


def plain(kind: int, text: str = "") -> bytes:
    """Return a message other than PACKETS."""
    return bytes((kind, VERSION)) + text.encode()


@kernel
def gather(io: udp.UdpIO, packets: udp.Packets, message: np.ndarray) -> int:
    """Receive the pending packets of a socket and encode them as one message in uint8 `message`; return its size in
    bytes, 0 if nothing was pending.
    """
    count = udp.receive_batch(io, packets)
    if count == 0:
        return 0
    message[0], message[1] = PACKETS, VERSION
    runs = i = 0
    while i < count:
        first, length = i, packets.length[i]
        while i < count and packets.length[i] == length:
            i += 1
        put_be16(message, _HEAD_BYTES + _RUN_BYTES * runs, length)
        put_be16(message, _HEAD_BYTES + _RUN_BYTES * runs + 2, i - first)
        runs += 1
    put_be16(message, 2, runs)
    size = _HEAD_BYTES + _RUN_BYTES * runs
    for i in range(count):
        copy_bytes(message.ctypes.data + np.uint64(size), packets.address[i], int64(packets.length[i]))
        size += packets.length[i]
    return size


@kernel
def scatter(io: udp.UdpIO, packets: udp.Packets, address: Address, size: int, to: int) -> int:
    """Send the packets of the message at `address` to the endpoint `to`; return their number, -1 if the message is
    invalid.
    """
    data = u8_at(address, size)
    if size < _HEAD_BYTES or data[0] != PACKETS or data[1] != VERSION:
        return -1
    runs = be16(data, 2)
    at = _HEAD_BYTES + _RUN_BYTES * runs
    if at > size:
        return -1
    count = 0
    for run in range(runs):
        length = be16(data, _HEAD_BYTES + _RUN_BYTES * run)
        more = be16(data, _HEAD_BYTES + _RUN_BYTES * run + 2)
        if count + more > packets.address.size or at + more * length > size:
            return -1
        for i in range(count, count + more):
            packets.address[i], packets.length[i], packets.endpoint[i] = np.uint64(address + at), length, np.uint64(to)
            at += length
        count += more
    if at != size:
        return -1
    udp.send_batch(io, packets, count)
    return count
