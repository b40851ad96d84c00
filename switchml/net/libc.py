"""The system calls that compiled loops make themselves, without the GIL.

Symbols are resolved by name when a kernel is loaded (numba ExternalFunction), so kernels that use them can be cached on
disk; a ctypes pointer would be an address of one process. Structures are built by hand as arrays of uint64, x86-64 and
AArch64 Linux layout: iovec is 2 words, mmsghdr 8, sockaddr_in 2.
"""

from typing import Any

import numpy as np
from numba.core import types

from switchml.runtime.jit import int64, kernel
from switchml.runtime.memory import instruction, pointer_to

_recvmmsg: Any = types.ExternalFunction(
    "recvmmsg", types.int32(types.int32, types.uintp, types.uint32, types.int32, types.uintp)
)
_sendmmsg: Any = types.ExternalFunction("sendmmsg", types.int32(types.int32, types.uintp, types.uint32, types.int32))
_poll: Any = types.ExternalFunction("ppoll", types.int32(types.uintp, types.uint64, types.uintp, types.uintp))
_clock_gettime: Any = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.uintp))
_sched_yield: Any = types.ExternalFunction("sched_yield", types.int32())
_errno_location: Any = types.ExternalFunction("__errno_location", types.uintp())

CLOCK_MONOTONIC = 1
POLLIN = 1
EINTR = 4
EINVAL = 22
EIO = 5
MSG_DONTWAIT = 0x40

SOL_UDP = 17
UDP_SEGMENT = 103
UDP_GRO = 104
"""linux/udp.h; UDP_SEGMENT since Linux 4.18, UDP_GRO since 5.0."""


_load_i32 = instruction(
    types.int32(types.uintp), lambda builder, address: builder.load(pointer_to(builder, address, 32))
)


@kernel
def errno() -> Any:
    """errno of this thread's last failed call."""
    return _load_i32(_errno_location())


@kernel
def now_ns(scratch: np.ndarray) -> Any:
    """CLOCK_MONOTONIC in nanoseconds; `scratch` int64[>= 2]."""
    _clock_gettime(CLOCK_MONOTONIC, scratch.ctypes.data)
    return scratch[0] * 1_000_000_000 + scratch[1]


@kernel
def recvmmsg(fd: int, headers: np.ndarray, count: int, flags: int) -> Any:
    """recvmmsg(2): how many messages came, or -1. `headers` uint64[count, 8]."""
    return _recvmmsg(fd, headers.ctypes.data, count, flags, 0)


@kernel
def sendmmsg(fd: int, headers: np.ndarray, first: int, count: int, flags: int) -> Any:
    """sendmmsg(2) of headers[first:first+count]: how many were sent, or -1."""
    return _sendmmsg(fd, headers.ctypes.data + np.uint64(first * 64), count, flags)


@kernel
def poll(polls: np.ndarray, count: int, timeout_ns: int) -> Any:
    """ppoll(2): sleep until one of `count` descriptors is readable or `timeout_ns` is over (negative: no limit).

    `polls` int64[>= count + 2]: each descriptor as `poll_entry` has it (those behind them are overwritten). Returns how
    many are readable; `is_ready` says which.
    """
    polls[count], polls[count + 1] = timeout_ns // 1_000_000_000, timeout_ns % 1_000_000_000
    limit = np.uint64(0) if timeout_ns < 0 else np.uint64(polls[count:].ctypes.data)
    return _poll(polls.ctypes.data, count, limit, 0)


@kernel
def poll_entry(fd: int) -> int:
    """A descriptor for `poll`; -1 is never readable."""
    return (int64(fd) & 0xFFFFFFFF) | (POLLIN << 32)


@kernel
def is_ready(entry: int) -> bool:
    """Whether `poll` found the descriptor of an entry readable."""
    return entry >> 48 != 0


@kernel
def wait_readable(fd_a: int, fd_b: int, timeout_ns: int, scratch: np.ndarray) -> int:
    """`poll` for two descriptors; `scratch` int64[>= 4]. Returns a bit set: 1 = fd_a, 2 = fd_b."""
    scratch[0], scratch[1] = poll_entry(fd_a), poll_entry(fd_b)
    if poll(scratch, 2, timeout_ns) <= 0:
        return 0
    return (1 if is_ready(scratch[0]) else 0) | (2 if is_ready(scratch[1]) else 0)


@kernel
def yield_cpu() -> None:
    """Let another thread that is ready run on this core (sched_yield)."""
    _sched_yield()


_COMPUTES_NS, _PAUSE_NS = 1_000_000, 100_000_000


@kernel
def may_yield(patience: np.ndarray, now: int) -> bool:
    """Whether to look for packets again and again with `give_way` in between, at `now`; else sleep. `patience`:
    int64[1] of the caller's, 0 at first."""
    return bool(now >= patience[0])


@kernel
def give_way(patience: np.ndarray, now: int, clock: np.ndarray) -> None:
    """`yield_cpu`. If somebody who computes takes the core for so long that a sleeper would have been woken several
    times, do not give way for a while: a sleeper is served before whoever used up his time."""
    _sched_yield()
    after = now_ns(clock)
    if after - now > _COMPUTES_NS:
        patience[0] = after + _PAUSE_NS
