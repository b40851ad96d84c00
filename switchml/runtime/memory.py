"""Raw memory and byte order inside compiled code: what numba lacks, as a few intrinsics.

Hot kernels get addresses (of a tensor, of a datagram in a receive buffer) in place of arrays, so that one compiled
function serves every length and alignment and no Python object is made per packet. Callers keep the memory alive.
"""

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from switchml.runtime.jit import kernel


@intrinsic
def pointer(typingctx, address):
    """A void pointer, for numba.carray."""

    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.uintp), codegen


def _without_owner(context, builder, kind, value):
    if isinstance(kind, types.Array):
        array = context.make_array(kind)(context, builder, value)
        array.meminfo = ir.Constant(array.meminfo.type, None)
        return array._getvalue()
    if isinstance(kind, types.BaseTuple):
        for i, inner in enumerate(kind.types):
            part = _without_owner(context, builder, inner, builder.extract_value(value, i))
            value = builder.insert_value(value, part, i)
    return value


@intrinsic
def borrowed(typingctx, value):
    """The same arrays (or tuple of arrays) without their owners, so that passing them on counts no references.

    Counting takes a locked instruction or two for every array of every call, a quarter of a busy loop's time. The
    caller holds the owners for as long as the result is used: use it at the top of an entry point.
    """

    def codegen(context, builder, signature, args):
        return _without_owner(context, builder, signature.args[0], args[0])

    return value(value), codegen


@intrinsic
def bswap32(typingctx, value):
    """uint32 with its four bytes reversed (a vector shuffle when used in a loop)."""

    def codegen(context, builder, signature, args):
        return builder.bswap(args[0])

    return types.uint32(types.uint32), codegen


@intrinsic
def bswap16(typingctx, value):
    """uint16 with its two bytes swapped."""

    def codegen(context, builder, signature, args):
        return builder.bswap(args[0])

    return types.uint16(types.uint16), codegen


@intrinsic
def float64_of_bits(typingctx, bits):
    """The float64 that has these 64 bits."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), codegen


@intrinsic
def load_acquire(typingctx, address):
    """The uint64 at an aligned address that another thread, or the kernel, writes as `store_release` does: what it
    wrote before is seen afterwards."""

    def codegen(context, builder, signature, args):
        return builder.load_atomic(builder.inttoptr(args[0], ir.IntType(64).as_pointer()), "acquire", 8)

    return types.uint64(types.uintp), codegen


@intrinsic
def store_release(typingctx, address, value):
    """Write a uint64 for whoever reads it with `load_acquire`."""

    def codegen(context, builder, signature, args):
        builder.store_atomic(args[1], builder.inttoptr(args[0], ir.IntType(64).as_pointer()), "release", 8)
        return context.get_dummy_value()

    return types.void(types.uintp, types.uint64), codegen


@kernel(inline=True)
def u8_at(address, count):
    """uint8[count] over the memory at `address`."""
    return numba.carray(pointer(np.uintp(address)), (count,), np.uint8)


@kernel(inline=True)
def u16_at(address, count):
    """uint16[count] over the memory at `address`; it need not be aligned."""
    return numba.carray(pointer(np.uintp(address)), (count,), np.uint16)


@kernel(inline=True)
def u32_at(address, count):
    """uint32[count] over the memory at `address`; it need not be aligned."""
    return numba.carray(pointer(np.uintp(address)), (count,), np.uint32)


@kernel(inline=True)
def i32_at(address, count):
    """int32[count] over the memory at `address`."""
    return numba.carray(pointer(np.uintp(address)), (count,), np.int32)


@kernel(inline=True)
def i64_at(address, count):
    """int64[count] over the memory at `address`."""
    return numba.carray(pointer(np.uintp(address)), (count,), np.int64)


@kernel(inline=True)
def u64_at(address, count):
    """uint64[count] over the memory at `address`."""
    return numba.carray(pointer(np.uintp(address)), (count,), np.uint64)


@kernel(inline=True)
def f32_at(address, count):
    """float32[count] over the memory at `address`."""
    return numba.carray(pointer(np.uintp(address)), (count,), np.float32)


@kernel(inline=True)
def f64_at(address, count):
    """float64[count] over the memory at `address`."""
    return numba.carray(pointer(np.uintp(address)), (count,), np.float64)


@kernel
def copy_bytes(destination, source, count):
    """Copy `count` bytes between two addresses that don't overlap."""
    to, frm = u8_at(destination, count), u8_at(source, count)
    for i in range(count):
        to[i] = frm[i]


@kernel(inline=True)
def be32(data, offset):
    """The big-endian uint32 at data[offset:offset+4], as int64."""
    return (
        (np.int64(data[offset]) << 24)
        | (np.int64(data[offset + 1]) << 16)
        | (np.int64(data[offset + 2]) << 8)
        | np.int64(data[offset + 3])
    )


@kernel(inline=True)
def put_be32(data, offset, value):
    data[offset] = (value >> 24) & 0xFF
    data[offset + 1] = (value >> 16) & 0xFF
    data[offset + 2] = (value >> 8) & 0xFF
    data[offset + 3] = value & 0xFF


@kernel(inline=True)
def be16(data, offset):
    """The big-endian uint16 at data[offset:offset+2], as int64."""
    return (np.int64(data[offset]) << 8) | np.int64(data[offset + 1])


@kernel(inline=True)
def put_be16(data, offset, value):
    data[offset] = (value >> 8) & 0xFF
    data[offset + 1] = value & 0xFF


@kernel(inline=True)
def signed8(value):
    """A byte read as a two's complement number, as int64."""
    return ((np.int64(value) & 0xFF) ^ 0x80) - 0x80


@kernel(inline=True)
def serial_difference(a, b):
    """int32(a - b) of two 32-bit sequence numbers (RFC 1982 comparison), as int64."""
    return (((np.int64(a) - np.int64(b)) & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000
