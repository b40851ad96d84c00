"""Message batches for recvmmsg(2) and sendmmsg(2): headers, iovecs, addresses and control data, in arrays that point at
each other."""

from typing import NamedTuple

import numpy as np

from switchml.net import libc
from switchml.runtime.jit import int64, kernel

CONTROL_BYTES = 64
_NAME, _NAME_BYTES, _IOVECS, _PARTS, _CONTROL, _CONTROL_BYTES, _FLAGS, _RESULT = range(8)
"""Word indices in a struct mmsghdr."""


class Messages(NamedTuple):
    """n messages of up to k iovecs. `headers` uint64[n, 8]: struct mmsghdr. `iovecs` uint64[n, 2k]: address and length
    of each iovec. `names` uint64[n, 2]: struct sockaddr_in. `control` uint64[n, 8]. `errors` int64[n]: errno of each
    message after `send_messages`, 0 if it was sent."""

    headers: np.ndarray
    iovecs: np.ndarray
    names: np.ndarray
    control: np.ndarray
    errors: np.ndarray


def new_messages(count: int, parts: int = 1, *, named: bool = False) -> Messages:
    """Return messages whose headers point at their iovecs, control data and, if `named`, addresses."""
    messages = Messages(
        headers=np.zeros((count, 8), np.uint64),
        iovecs=np.zeros((count, 2 * parts), np.uint64),
        names=np.zeros((count, 2), np.uint64),
        control=np.zeros((count, CONTROL_BYTES // 8), np.uint64),
        errors=np.zeros(count, np.int64),
    )
    for i, header in enumerate(messages.headers):
        header[_NAME] = messages.names[i].ctypes.data if named else 0
        header[_NAME_BYTES] = 16 if named else 0
        header[_IOVECS], header[_PARTS] = messages.iovecs[i].ctypes.data, parts
    return messages


def new_receive_messages(buffers: np.ndarray, offset: int = 0, *, named: bool = False) -> Messages:
    """Return messages that are received into uint8 buffers[i, offset:], with control data."""
    messages = new_messages(len(buffers), named=named)
    for i, header in enumerate(messages.headers):
        messages.iovecs[i] = buffers[i].ctypes.data + offset, buffers.shape[1] - offset
        header[_CONTROL] = messages.control[i].ctypes.data
    return messages


@kernel
def receive_messages(fd: int, messages: Messages, first: int, most: int) -> int:
    """Receive up to `most` messages, into number `first` and following ones, without blocking; return the number
    received."""
    for i in range(first, first + most):
        messages.headers[i, _NAME_BYTES] = 16
        messages.headers[i, _CONTROL_BYTES] = CONTROL_BYTES
        messages.headers[i, _FLAGS] = 0
    count: int = libc.recvmmsg(fd, messages.headers[first:], most, libc.MSG_DONTWAIT)
    return max(count, 0)


@kernel
def bytes_of(messages: Messages, number: int) -> int:
    """Return the size of a received message in bytes."""
    return int64(messages.headers[number, _RESULT] & np.uint64(0xFFFFFFFF))


@kernel
def control_at(messages: Messages, number: int, level: int, kind: int, size_bytes: int) -> int:
    """Return the address of a received message's control data; 0 unless it has this level and kind, and at least
    `size_bytes`."""
    control = messages.control[number]
    is_there = messages.headers[number, _CONTROL_BYTES] >= np.uint64(16 + size_bytes)
    return int64(control[2:].ctypes.data) if is_there and control[1] == np.uint64(level | (kind << 32)) else 0


@kernel
def put_control(messages: Messages, number: int, level: int, kind: int, value: int) -> None:
    """Set a 16-bit option as control data of a message to be sent."""
    control = messages.control[number]
    control[0], control[1], control[2] = 18, level | (kind << 32), value
    header = messages.headers[number]
    header[_CONTROL], header[_CONTROL_BYTES] = control.ctypes.data, 24


@kernel
def clear_control(messages: Messages, number: int) -> None:
    """Remove the control data of a message to be sent."""
    messages.headers[number, _CONTROL] = messages.headers[number, _CONTROL_BYTES] = 0


@kernel
def send_messages(fd: int, messages: Messages, count: int, flags: int) -> int:
    """Send the first `count` messages; return the number that the kernel refused. Those are skipped, as if lost."""
    sent = failed = 0
    while sent < count:
        result = libc.sendmmsg(fd, messages.headers, sent, count - sent, flags)
        if result > 0:
            messages.errors[sent : sent + result] = 0
            sent += result
            continue
        error = libc.errno()
        if error != libc.EINTR:
            messages.errors[sent] = error
            sent += 1
            failed += 1
    return failed
