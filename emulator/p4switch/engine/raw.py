"""Raw memory and unsigned arithmetic for the VM: intrinsics over int64 addresses and values, so that nothing in the VM
mixes signed and unsigned types (numba would make floats of them) and no array object is passed around.

`be` forms are big-endian. Addresses need no alignment. `arg`,
`val` and `put` are an instruction's operands: its k-th 32-bit word, the 64-bit cell of the frame at that offset, and
the same cell to be written."""

import functools

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from switchml.runtime.jit import compile_once, kernel

kernel_part = functools.partial(kernel, no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""A kernel that only other kernels call: without the entry for Python, which takes a third of the time to
compile."""

_I64 = ir.IntType(64)
_INT = types.int64


def _at(builder, address, bits):
    return builder.inttoptr(address, ir.IntType(bits).as_pointer())


def _loader(bits, swap=False):
    @intrinsic
    def load(typingctx, address):
        def codegen(context, builder, signature, args):
            value = builder.load(_at(builder, args[0], bits), align=1)
            if swap:
                value = builder.bswap(value)
            if bits == 64:
                return value
            return builder.zext(value, _I64)

        return _INT(_INT), codegen

    return load


def _storer(bits, swap=False):
    @intrinsic
    def store(typingctx, address, value):
        def codegen(context, builder, signature, args):
            value = args[1] if bits == 64 else builder.trunc(args[1], ir.IntType(bits))
            if swap:
                value = builder.bswap(value)
            builder.store(value, _at(builder, args[0], bits), align=1)
            return context.get_dummy_value()

        return types.void(_INT, _INT), codegen

    return store


ld8, ld16, ld32, ld64 = (_loader(bits) for bits in (8, 16, 32, 64))
be16, be32, be64 = (_loader(bits, swap=True) for bits in (16, 32, 64))
st8, st16, st32, st64 = (_storer(bits) for bits in (8, 16, 32, 64))
ste16, ste32, ste64 = (_storer(bits, swap=True) for bits in (16, 32, 64))


def _binary(make):
    @intrinsic
    def operation(typingctx, a, b):
        def codegen(context, builder, signature, args):
            return make(builder, args[0], args[1])

        return _INT(_INT, _INT), codegen

    return operation


shr = _binary(lambda builder, a, n: builder.lshr(a, n))
"""Logical shift right by 0..63."""
divu = _binary(lambda builder, a, b: builder.udiv(a, b))
remu = _binary(lambda builder, a, b: builder.urem(a, b))
ltu = _binary(lambda builder, a, b: builder.zext(builder.icmp_unsigned("<", a, b), _I64))
"""1 if a < b as unsigned numbers, else 0."""


def _high(builder, a, b):
    wide = ir.IntType(128)
    product = builder.mul(builder.zext(a, wide), builder.zext(b, wide))
    return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), _I64)


mulhu = _binary(_high)
"""The upper 64 bits of an unsigned product."""


@intrinsic
def bits_of(typingctx, condition):
    """A bool as 0 or 1."""

    def codegen(context, builder, signature, args):
        return builder.zext(args[0], _I64)

    return _INT(types.boolean), codegen


@intrinsic
def copy_block(typingctx, to, source, count):
    """memcpy."""

    def codegen(context, builder, signature, args):
        cgutils.raw_memcpy(builder, _at(builder, args[0], 8), _at(builder, args[1], 8), args[2], 1)
        return context.get_dummy_value()

    return types.void(_INT, _INT, _INT), codegen


@intrinsic
def clear_block(typingctx, to, count):
    """memset to zero."""

    def codegen(context, builder, signature, args):
        cgutils.memset(builder, _at(builder, args[0], 8), args[1], 0)
        return context.get_dummy_value()

    return types.void(_INT, _INT), codegen


@intrinsic
def load_double(typingctx, address):
    """The float64 at an address."""

    def codegen(context, builder, signature, args):
        return builder.load(builder.inttoptr(args[0], ir.DoubleType().as_pointer()), align=1)

    return types.float64(_INT), codegen


def _operand(builder, at, k):
    offset = builder.add(at, builder.mul(k, ir.Constant(_I64, 4)))
    return builder.sext(builder.load(_at(builder, offset, 32), align=4), _I64)


@intrinsic
def arg(typingctx, at, k):
    """Operand k of the instruction at `at`, unchanged."""

    def codegen(context, builder, signature, args):
        return _operand(builder, args[0], args[1])

    return _INT(_INT, _INT), codegen


@intrinsic
def val(typingctx, frame, at, k):
    """The frame's cell that operand k names."""

    def codegen(context, builder, signature, args):
        cell = builder.add(args[0], _operand(builder, args[1], args[2]))
        return builder.load(_at(builder, cell, 64), align=8)

    return _INT(_INT, _INT, _INT), codegen


@intrinsic
def put(typingctx, frame, at, value):
    """Write the frame's cell that operand 1 names."""

    def codegen(context, builder, signature, args):
        cell = builder.add(args[0], _operand(builder, args[1], ir.Constant(_I64, 1)))
        builder.store(args[2], _at(builder, cell, 64), align=8)
        return context.get_dummy_value()

    return types.void(_INT, _INT, _INT), codegen


def _caller(n_args):
    """An intrinsic that calls a kernel of n_args int64 arguments, which returns int64, at an address."""

    def codegen(context, builder, signature, args):
        pointer = ir.IntType(8).as_pointer()
        function = ir.FunctionType(ir.IntType(32), [_I64.as_pointer(), pointer, *[_I64] * n_args])
        result = cgutils.alloca_once(builder, _I64)
        exception = cgutils.alloca_once(builder, pointer)
        target = builder.inttoptr(args[0], function.as_pointer())
        builder.call(target, [result, builder.bitcast(exception, pointer), *args[1:]])
        return builder.load(result)

    return codegen


@intrinsic
def call2(typingctx, address, a, b):
    """Call a kernel by its address (`address_of`). Kernels called this way are compiled once, on their own; a
    direct call optimises the callee again within every caller."""
    return _INT(_INT, _INT, _INT), _caller(2)


@intrinsic
def call3(typingctx, address, a, b, c):
    """As call2, with three arguments."""
    return _INT(_INT, _INT, _INT, _INT), _caller(3)


@intrinsic
def call4(typingctx, address, a, b, c, d):
    """As call2, with four arguments."""
    return _INT(_INT, _INT, _INT, _INT, _INT), _caller(4)


def address_of(kernel, n_args):
    """Where the code of a kernel of n_args int64 arguments begins; compiles it first if need be."""
    signature = (_INT,) * n_args
    compile_once(kernel, *[0] * n_args)
    compiled = kernel.overloads[signature]
    return compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
