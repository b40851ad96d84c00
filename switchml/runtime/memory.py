"""Raw memory and byte order inside compiled code: a few intrinsics that numba lacks.

Hot kernels get addresses (of a tensor, of a datagram in a receive buffer) rather than arrays, so that one compiled
function serves every length and alignment and no Python object is created per packet. Callers keep the memory alive.
"""

import platform
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba.core import types
from numba.extending import intrinsic

from switchml.runtime.jit import Address, int64, kernel


def instruction(signature: Any, emit: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function for kernels, with numba type `signature`, that compiles to what `emit(builder, *arguments)`
    writes."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = emit(builder, *args)
        return context.get_dummy_value() if signature.return_type == types.void else value

    declarations: tuple[Callable[..., Any], ...] = (  # by the number of arguments, which numba infers from them
        lambda typingctx: (signature, codegen),
        lambda typingctx, a: (signature, codegen),
        lambda typingctx, a, b: (signature, codegen),
    )
    function: Callable[..., Any] = intrinsic(declarations[len(signature.args)])
    return function


def pointer_to(builder: Any, address: Any, bits: int) -> Any:
    """Return an address as LLVM's pointer to integers of `bits` bits."""
    return builder.inttoptr(address, ir.IntType(bits).as_pointer())


pointer = instruction(types.voidptr(types.uintp), lambda builder, address: pointer_to(builder, address, 8))
"""A void pointer, for numba.carray."""
bswap32 = instruction(types.uint32(types.uint32), lambda builder, value: builder.bswap(value))
"""uint32 with its four bytes reversed (a vector shuffle when used in a loop)."""
bswap16 = instruction(types.uint16(types.uint16), lambda builder, value: builder.bswap(value))
"""uint16 with its two bytes swapped."""
float64_of_bits = instruction(types.float64(types.int64), lambda builder, bits: builder.bitcast(bits, ir.DoubleType()))
"""The float64 with these 64 bits."""
float32_of_bits = instruction(types.float32(types.uint32), lambda builder, bits: builder.bitcast(bits, ir.FloatType()))
"""The float32 with these 32 bits."""
bits_of_float32 = instruction(types.uint32(types.float32), lambda builder, x: builder.bitcast(x, ir.IntType(32)))
"""The 32 bits of a float32."""
float32_of_half = instruction(
    types.float32(types.uint16),
    lambda builder, bits: builder.fpext(builder.bitcast(bits, ir.HalfType()), ir.FloatType()),
)
"""The float32 equal to the float16 with these 16 bits, for processors with conversion instructions (`CONVERTS_HALVES`).
"""
half_of_float32 = instruction(
    types.uint16(types.float32), lambda builder, x: builder.bitcast(builder.fptrunc(x, ir.HalfType()), ir.IntType(16))
)
"""The 16 bits of the float16 nearest to a float32, ties to even, for the same processors."""
load_acquire = instruction(
    types.uint64(types.uintp),
    lambda builder, address: builder.load_atomic(pointer_to(builder, address, 64), "acquire", 8),
)
"""Load the uint64 at an aligned address that another thread, or the kernel, writes with `store_release`: its earlier
writes are visible afterwards."""
store_release = instruction(
    types.void(types.uintp, types.uint64),
    lambda builder, address, value: builder.store_atomic(value, pointer_to(builder, address, 64), "release", 8),
)
"""Store a uint64 at an address for readers that use `load_acquire`."""


CONVERTS_HALVES = platform.machine() in ("aarch64", "arm64") or "f16c" in get_host_cpu_features()
"""Whether this processor converts float16; otherwise LLVM would call functions that may not be linked."""
_LINE = 64
_PIECE = ir.VectorType(ir.IntType(64), 4)
_NONTEMPORAL = ir.Constant(ir.IntType(32), 1)


def _emit_copy_past_caches(builder: Any, target: Any, source: Any) -> Any:
    pieces = _PIECE.as_pointer()
    value = builder.load(builder.inttoptr(source, pieces), align=1)
    store = builder.store(value, builder.inttoptr(target, pieces), align=32)
    store.set_metadata("nontemporal", builder.module.add_metadata([_NONTEMPORAL]))
    return store


_copy_piece_past_caches = instruction(types.void(types.uintp, types.uintp), _emit_copy_past_caches)
"""Copy 32 bytes to an address that is a multiple of 32 (LLVM selects the available instructions)."""


def _emit_prefetch(builder: Any, address: Any) -> Any:
    pointer = pointer_to(builder, address, 8)
    number = ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number])
    function = builder.module.declare_intrinsic("llvm.prefetch", (pointer.type,), kind)
    return builder.call(function, [pointer, number(0), number(3), number(1)])


prefetch = instruction(types.void(types.uintp), _emit_prefetch)
"""Prefetch the cache line at an address for reading; invalid addresses are allowed."""
fence = instruction(types.void(), lambda builder: builder.fence("seq_cst"))
"""Full memory fence: this thread's earlier reads and writes, including those of `copy_past_caches`, complete before
later ones."""


_TUPLE: Any = types.BaseTuple  # its type hints lack the attribute `types`


def _without_owner(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    if isinstance(kind, types.Array):
        array = context.make_array(kind)(context, builder, value)
        array.meminfo = ir.Constant(array.meminfo.type, None)
        return array._getvalue()
    if isinstance(kind, _TUPLE):
        for i, inner in enumerate(kind.types):
            part = _without_owner(context, builder, inner, builder.extract_value(value, i))
            value = builder.insert_value(value, part, i)
    return value


def _declare_borrowed(typingctx: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _without_owner(context, builder, signature.args[0], args[0])

    return value(value), codegen


borrowed: Callable[..., Any] = intrinsic(_declare_borrowed)
"""The same arrays (or tuple of arrays) without their owners, so that passing them on changes no reference counts.

Reference counting takes one or two locked instructions for every array of every call, a quarter of a busy loop's time.
The caller holds the owners while the result is used: use it at the top of an entry point.
"""


def _arrays_of(dtype: type[np.generic]) -> Callable[[Address, int], np.ndarray]:
    @kernel(inline=True)
    def array_at(address: Address, count: int) -> Any:
        return numba.carray(pointer(np.uintp(address)), (count,), dtype)

    return array_at


u8_at, u16_at, u32_at, u64_at = (_arrays_of(dtype) for dtype in (np.uint8, np.uint16, np.uint32, np.uint64))
"""`u8_at(address, count)`: the memory at `address` as uint8[count]; u16_at and u32_at need no alignment."""
i32_at, i64_at, f32_at, f64_at = (_arrays_of(dtype) for dtype in (np.int32, np.int64, np.float32, np.float64))


def record(*fields: str) -> np.dtype:
    """Return the dtype of a C structure. Each of `fields` is a type and the names of its members, like "i8 rank
    workers"."""
    return np.dtype([(name, kind) for kind, *names in map(str.split, fields) for name in names], align=True)


@kernel
def copy_bytes(destination: Address, source: Address, count: int) -> None:
    """Copy `count` bytes between two addresses that don't overlap."""
    to, frm = u8_at(destination, count), u8_at(source, count)
    for i in range(count):
        to[i] = frm[i]


@kernel
def copy_past_caches(destination: Address, source: Address, count: int) -> None:
    """Copy like `copy_bytes`, for data that isn't read soon: whole cache lines of the destination are written with
    nontemporal stores, which do not read or displace cache lines. Call `fence` before another thread is notified."""
    first = min(int64(-destination & (_LINE - 1)), count)
    lines = (count - first) // _LINE
    copy_bytes(destination, source, first)
    for at in range(first, first + lines * _LINE, _LINE // 2):
        _copy_piece_past_caches(np.uintp(destination + at), np.uintp(source + at))
    last = first + lines * _LINE
    copy_bytes(destination + last, source + last, count - last)


@kernel(inline=True)
def be32(data: np.ndarray, offset: int) -> int:
    """Return the big-endian uint32 at data[offset:offset+4], as int64."""
    return (
        (int64(data[offset]) << 24)
        | (int64(data[offset + 1]) << 16)
        | (int64(data[offset + 2]) << 8)
        | int64(data[offset + 3])
    )


@kernel(inline=True)
def put_be32(data: np.ndarray, offset: int, value: int) -> None:
    data[offset] = (value >> 24) & 0xFF
    data[offset + 1] = (value >> 16) & 0xFF
    data[offset + 2] = (value >> 8) & 0xFF
    data[offset + 3] = value & 0xFF


@kernel(inline=True)
def be16(data: np.ndarray, offset: int) -> int:
    """Return the big-endian uint16 at data[offset:offset+2], as int64."""
    return (int64(data[offset]) << 8) | int64(data[offset + 1])


@kernel(inline=True)
def put_be16(data: np.ndarray, offset: int, value: int) -> None:
    data[offset] = (value >> 8) & 0xFF
    data[offset + 1] = value & 0xFF


@kernel(inline=True)
def signed8(value: Any) -> int:
    """Return a byte read as a two's complement number, as int64."""
    return ((int64(value) & 0xFF) ^ 0x80) - 0x80


@kernel(inline=True)
def serial_difference(a: Any, b: Any) -> int:
    """Return int32(a - b) of two 32-bit sequence numbers (RFC 1982 comparison), as int64."""
    return (((int64(a) - int64(b)) & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000
