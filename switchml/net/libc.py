"""System calls made by compiled loops, without the GIL.

Symbols are resolved by name when a kernel is loaded (numba ExternalFunction), so that kernels that use them can be
cached on disk; a ctypes pointer would be an address in one process. Structures are laid out by hand as uint64 arrays,
for x86-64 and AArch64 Linux: iovec is 2 words, mmsghdr 8, sockaddr_in 2.
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
    """Return errno of this thread's last failed call."""
    return _load_i32(_errno_location())


@kernel
def now_ns(scratch: np.ndarray) -> Any:
    """Return CLOCK_MONOTONIC in nanoseconds; `scratch` int64[>= 2]."""
    _clock_gettime(CLOCK_MONOTONIC, scratch.ctypes.data)
    return scratch[0] * 1_000_000_000 + scratch[1]


@kernel
def recvmmsg(fd: int, headers: np.ndarray, count: int, flags: int) -> Any:
    """Call recvmmsg(2); return the number of messages received, or -1. `headers` uint64[count, 8]."""
    return _recvmmsg(fd, headers.ctypes.data, count, flags, 0)


@kernel
def sendmmsg(fd: int, headers: np.ndarray, first: int, count: int, flags: int) -> Any:
    """Call sendmmsg(2) for headers[first:first+count]; return the number sent, or -1."""
    return _sendmmsg(fd, headers.ctypes.data + np.uint64(first * 64), count, flags)


@kernel
def poll(polls: np.ndarray, count: int, timeout_ns: int) -> Any:
    """Call ppoll(2): sleep until one of `count` descriptors is readable or until `timeout_ns` has passed (negative: no
    limit).

    `polls` int64[>= count + 2]: the descriptors as `poll_entry` values (the two entries after them are overwritten).
    Returns the number of readable descriptors; `is_ready` tells which.
    """
    polls[count], polls[count + 1] = timeout_ns // 1_000_000_000, timeout_ns % 1_000_000_000
    limit = np.uint64(0) if timeout_ns < 0 else np.uint64(polls[count:].ctypes.data)
    return _poll(polls.ctypes.data, count, limit, 0)


@kernel
def poll_entry(fd: int) -> int:
    """Return the `poll` entry of a descriptor; -1 is never readable."""
    return (int64(fd) & 0xFFFFFFFF) | (POLLIN << 32)


@kernel
def is_ready(entry: int) -> bool:
    """Return whether `poll` found the descriptor of an entry readable."""
    return entry >> 48 != 0


@kernel
def wait_readable(fd_a: int, fd_b: int, timeout_ns: int, scratch: np.ndarray) -> int:
    """Poll two descriptors; `scratch` int64[>= 4]. Returns a bit set: 1 = fd_a, 2 = fd_b."""
    scratch[0], scratch[1] = poll_entry(fd_a), poll_entry(fd_b)
    if poll(scratch, 2, timeout_ns) <= 0:
        return 0
    return (1 if is_ready(scratch[0]) else 0) | (2 if is_ready(scratch[1]) else 0)


@kernel
def yield_cpu() -> None:
    """Let another runnable thread run on this core (sched_yield)."""
    _sched_yield()


_COMPUTES_NS, _PAUSE_NS = 1_000_000, 100_000_000


@kernel
def may_spin(spin_after: np.ndarray, now: int) -> bool:
    """Return whether to busy-poll, with `yield_with_backoff` between polls, at `now`, rather than sleep. `spin_after`
    int64[1]: backoff state of the caller, initially 0."""
    return bool(now >= spin_after[0])


@kernel
def yield_with_backoff(spin_after: np.ndarray, now: int, clock: np.ndarray) -> None:
    """Call `yield_cpu`. If a compute-bound thread then holds the core for longer than `_COMPUTES_NS`, disable yielding
    for `_PAUSE_NS`: the scheduler serves a woken sleeper sooner than a thread that yields."""
    _sched_yield()
    after = now_ns(clock)
    if after - now > _COMPUTES_NS:
        spin_after[0] = after + _PAUSE_NS
