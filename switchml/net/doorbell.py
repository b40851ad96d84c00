"""Sleeping and waking between processes that share memory.

A doorbell is 16 bytes of shared memory: a uint32 that counts rings, and a uint32 that is set while its owner sleeps.
Only the owner waits at it; any process may ring. A ring between reading the counter and going to sleep is not lost,
because the kernel compares the counter again before it lets the owner sleep (futex(2), FUTEX_WAIT).
"""

import platform
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from switchml.net.libc import yield_cpu
from switchml.runtime.jit import Address, int64, kernel
from switchml.runtime.memory import instruction, pointer_to

_syscall: Any = types.ExternalFunction(
    "syscall", types.int64(types.int64, types.uintp, types.int64, types.int64, types.uintp, types.uintp, types.int64)
)
_SYS_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), 202)
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1
_SPINS = 32
"""Number of polls, yielding the CPU in between, before the owner sleeps."""

_ONE = ir.Constant(ir.IntType(32), 1)
_load = instruction(
    types.uint32(types.uintp),
    lambda builder, address: builder.load_atomic(pointer_to(builder, address, 32), "seq_cst", 4),
)
_increment = instruction(
    types.void(types.uintp),
    lambda builder, address: builder.atomic_rmw("add", pointer_to(builder, address, 32), _ONE, "seq_cst"),
)
_store = instruction(
    types.void(types.uintp, types.uint32),
    lambda builder, address, value: builder.store_atomic(value, pointer_to(builder, address, 32), "seq_cst", 4),
)


@kernel
def rings(bell: Address) -> int:
    """Return the number of rings of the doorbell at address `bell`, modulo 2^32. Read it before looking for work."""
    return int64(_load(np.uint64(bell)))


@kernel
def ring(bell: Address) -> None:
    """Wake the owner of the doorbell at address `bell`, or prevent it from going to sleep."""
    bell = np.uint64(bell)
    _increment(bell)
    if _load(bell + np.uint64(4)):
        _syscall(_SYS_FUTEX, bell, _FUTEX_WAKE, 1, np.uint64(0), np.uint64(0), 0)


@kernel
def wait(bell: Address, heard: int, timeout_ns: int, scratch: np.ndarray) -> None:
    """Sleep, as the owner, until the doorbell has rung more often than `heard`, or for `timeout_ns`; `scratch` int64[>=
    2]."""
    bell = np.uint64(bell)
    for _ in range(_SPINS):
        if int64(_load(bell)) != heard:
            return
        yield_cpu()
    scratch[0], scratch[1] = timeout_ns // 1_000_000_000, timeout_ns % 1_000_000_000
    _store(bell + np.uint64(4), np.uint32(1))
    _syscall(_SYS_FUTEX, bell, _FUTEX_WAIT, heard, np.uint64(scratch.ctypes.data), np.uint64(0), 0)
    _store(bell + np.uint64(4), np.uint32(0))
