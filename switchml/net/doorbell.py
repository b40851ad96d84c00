"""Sleeping and waking between processes that share memory.

A doorbell is 16 bytes of shared memory: a uint32 that counts rings, and a uint32 that says whether its owner sleeps.
Only the owner waits at it; anybody may ring. A ring between reading the counter and going to sleep is not lost, because
the kernel compares the counter again before it lets the owner sleep (futex(2), FUTEX_WAIT).
"""

import platform

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from switchml.net.libc import yield_cpu
from switchml.runtime.jit import kernel

DOORBELL_BYTES = 16

_syscall = types.ExternalFunction(
    "syscall",
    types.int64(types.int64, types.uintp, types.int64, types.int64, types.uintp, types.uintp, types.int64),
)
_SYS_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), 202)
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1
_SPINS = 32
"""How often the owner looks again, giving way in between, before it sleeps."""


def _u32_pointer(builder, address):
    return builder.inttoptr(address, ir.IntType(32).as_pointer())


@intrinsic
def _load(typingctx, address):
    def codegen(context, builder, signature, args):
        return builder.load_atomic(_u32_pointer(builder, args[0]), "seq_cst", 4)

    return types.uint32(types.uintp), codegen


@intrinsic
def _store(typingctx, address, value):
    def codegen(context, builder, signature, args):
        builder.store_atomic(args[1], _u32_pointer(builder, args[0]), "seq_cst", 4)
        return context.get_dummy_value()

    return types.void(types.uintp, types.uint32), codegen


@intrinsic
def _increment(typingctx, address):
    def codegen(context, builder, signature, args):
        one = ir.Constant(ir.IntType(32), 1)
        builder.atomic_rmw("add", _u32_pointer(builder, args[0]), one, "seq_cst")
        return context.get_dummy_value()

    return types.void(types.uintp), codegen


@kernel
def rings(bell):
    """How often the doorbell at address `bell` has rung, modulo 2^32. Read it before looking for work."""
    return np.int64(_load(np.uint64(bell)))


@kernel
def ring(bell):
    """Wake the owner of the doorbell at address `bell`, or keep it from falling asleep."""
    bell = np.uint64(bell)
    _increment(bell)
    if _load(bell + np.uint64(4)):
        _syscall(_SYS_FUTEX, bell, _FUTEX_WAKE, 1, np.uint64(0), np.uint64(0), 0)


@kernel
def wait(bell, heard, timeout_ns, scratch):
    """Owner's side: sleep until the doorbell has rung more often than `heard`, or for `timeout_ns`; `scratch`
    int64[>= 2]."""
    bell = np.uint64(bell)
    for _ in range(_SPINS):
        if np.int64(_load(bell)) != heard:
            return
        yield_cpu()
    scratch[0], scratch[1] = timeout_ns // 1_000_000_000, timeout_ns % 1_000_000_000
    _store(bell + np.uint64(4), np.uint32(1))
    _syscall(_SYS_FUTEX, bell, _FUTEX_WAIT, heard, np.uint64(scratch.ctypes.data), np.uint64(0), 0)
    _store(bell + np.uint64(4), np.uint32(0))
