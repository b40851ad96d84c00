"""The system calls that compiled loops make themselves, without the GIL.

Symbols are resolved by name when a kernel is loaded (numba ExternalFunction), so kernels that use them can be cached on
disk; a ctypes pointer would be an address of one process. Structures are built by hand as arrays of uint64, x86-64 and
AArch64 Linux layout: iovec is 2 words, mmsghdr 8, sockaddr_in 2.
"""

import socket

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from switchml.runtime.jit import kernel

_recvmmsg = types.ExternalFunction(
    "recvmmsg", types.int32(types.int32, types.uintp, types.uint32, types.int32, types.uintp)
)
_sendmmsg = types.ExternalFunction("sendmmsg", types.int32(types.int32, types.uintp, types.uint32, types.int32))
_poll = types.ExternalFunction("ppoll", types.int32(types.uintp, types.uint64, types.uintp, types.uintp))
_clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.uintp))
_sched_yield = types.ExternalFunction("sched_yield", types.int32())
_errno_location = types.ExternalFunction("__errno_location", types.uintp())

CLOCK_MONOTONIC = 1
POLLIN = 1
EAGAIN = 11
EINTR = 4
EIO = 5

SOL_UDP = 17
UDP_SEGMENT = 103
UDP_GRO = 104
"""linux/udp.h; UDP_SEGMENT since Linux 4.18, UDP_GRO since 5.0."""
SO_RCVBUFFORCE, SO_SNDBUFFORCE = 33, 32


@intrinsic
def _load_i32(typingctx, address):
    def codegen(context, builder, signature, args):
        return builder.load(builder.inttoptr(args[0], ir.IntType(32).as_pointer()))

    return types.int32(types.uintp), codegen


@kernel
def errno():
    """errno of this thread's last failed call."""
    return _load_i32(_errno_location())


@kernel
def now_ns(scratch):
    """CLOCK_MONOTONIC in nanoseconds; `scratch` int64[>= 2]."""
    _clock_gettime(CLOCK_MONOTONIC, scratch.ctypes.data)
    return scratch[0] * 1_000_000_000 + scratch[1]


@kernel
def recvmmsg(fd, headers, count, flags):
    """recvmmsg(2): how many messages came, or -1. `headers` uint64[count, 8]."""
    return _recvmmsg(fd, headers.ctypes.data, count, flags, 0)


@kernel
def sendmmsg(fd, headers, first, count, flags):
    """sendmmsg(2) of headers[first:first+count]: how many were sent, or -1."""
    return _sendmmsg(fd, headers.ctypes.data + np.uint64(first * 64), count, flags)


@kernel
def wait_readable(fd_a, fd_b, timeout_ns, scratch):
    """Sleep until one of two descriptors is readable or `timeout_ns` is over (negative: no limit).

    `scratch` int64[>= 6]. Returns a bit set: 1 = fd_a, 2 = fd_b.
    """
    scratch[0] = np.int64(fd_a) | (np.int64(POLLIN) << 32)
    scratch[1] = np.int64(fd_b) | (np.int64(POLLIN) << 32)
    scratch[2] = timeout_ns // 1_000_000_000
    scratch[3] = timeout_ns % 1_000_000_000
    limit = np.uint64(0) if timeout_ns < 0 else np.uint64(scratch.ctypes.data + 16)
    if _poll(scratch.ctypes.data, 2, limit, 0) <= 0:
        return 0
    return (1 if scratch[0] >> 48 else 0) | (2 if scratch[1] >> 48 else 0)


@kernel
def give_way():
    """Let another process that is ready run on this core (sched_yield)."""
    _sched_yield()


def grow_buffers(sock: socket.socket, size_bytes: int) -> int:
    """Ask for socket buffers of `size_bytes`, beyond rmem_max where the process may; returns the receive buffer's real
    size."""
    for force, plain in ((SO_RCVBUFFORCE, socket.SO_RCVBUF), (SO_SNDBUFFORCE, socket.SO_SNDBUF)):
        try:
            sock.setsockopt(socket.SOL_SOCKET, force, size_bytes)
        except OSError:  # not root: as much as net.core.rmem_max and wmem_max allow
            sock.setsockopt(socket.SOL_SOCKET, plain, size_bytes)
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
