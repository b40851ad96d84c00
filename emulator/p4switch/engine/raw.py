"""Raw memory access and unsigned arithmetic for the VM: intrinsics on int64 addresses and values, so that the VM never
mixes signed and unsigned types (numba would convert them to floats) or passes array objects.

`be` forms are big-endian. Addresses need no alignment. `arg`, `val` and `put` access an instruction's operands: its
k-th 32-bit word, the 64-bit cell of the frame at that offset, and the same cell as a destination."""

import functools
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from switchml.runtime.jit import compile_once

_I64 = ir.IntType(64)
_types: Any = types  # numba's types are only partly typed
_INT = _types.int64


def _raw(write: Callable[..., Any], argument: Any = _INT, result: Any = _INT) -> Callable[..., int]:
    """Create an intrinsic from `write`(builder, *arguments), which generates its code. All arguments have the same
    type, int64 by default."""

    @functools.wraps(write)  # numba takes the number of arguments from its signature
    def typed(typingctx: Any, *arguments: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            value = write(builder, *values)
            return context.get_dummy_value() if result is _types.void else value

        return result(*[argument] * len(arguments)), codegen

    function: Callable[..., int] = intrinsic(typed)
    return function


_statement = functools.partial(_raw, result=_types.void)


def _at(builder: Any, address: Any, bits: int) -> Any:
    return builder.inttoptr(address, ir.IntType(bits).as_pointer())


def _loader(bits: int, swap: bool = False) -> Callable[..., int]:
    def load(builder: Any, address: Any) -> Any:
        value = builder.load(_at(builder, address, bits), align=1)
        if swap:
            value = builder.bswap(value)
        return value if bits == 64 else builder.zext(value, _I64)

    return _raw(load)


def _storer(bits: int, swap: bool = False) -> Callable[..., int]:
    def store(builder: Any, address: Any, value: Any) -> None:
        if bits < 64:
            value = builder.trunc(value, ir.IntType(bits))
        builder.store(builder.bswap(value) if swap else value, _at(builder, address, bits), align=1)

    return _statement(store)


ld8, ld16, ld32, ld64 = (_loader(bits) for bits in (8, 16, 32, 64))
be16, be32, be64 = (_loader(bits, swap=True) for bits in (16, 32, 64))
st8, st16, st32, st64 = (_storer(bits) for bits in (8, 16, 32, 64))
ste16, ste32, ste64 = (_storer(bits, swap=True) for bits in (16, 32, 64))

shr = _raw(lambda builder, a, n: builder.lshr(a, n))
"""Logical shift right by 0..63."""
divu = _raw(lambda builder, a, b: builder.udiv(a, b))
remu = _raw(lambda builder, a, b: builder.urem(a, b))
ltu = _raw(lambda builder, a, b: builder.zext(builder.icmp_unsigned("<", a, b), _I64))
"""1 if a < b as unsigned numbers, else 0."""
bits_of = _raw(lambda builder, condition: builder.zext(condition, _I64), argument=_types.boolean)
"""A bool as 0 or 1."""


@_raw
def mulhu(builder: Any, a: Any, b: Any) -> Any:
    """The upper 64 bits of an unsigned product."""
    wide = ir.IntType(128)
    product = builder.mul(builder.zext(a, wide), builder.zext(b, wide))
    return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), _I64)


@_statement
def copy_block(builder: Any, to: Any, source: Any, count: Any) -> None:
    """memcpy."""
    cgutils.raw_memcpy(builder, _at(builder, to, 8), _at(builder, source, 8), count, 1)


@_statement
def clear_block(builder: Any, to: Any, count: Any) -> None:
    """memset to zero."""
    cgutils.memset(builder, _at(builder, to, 8), count, 0)


@functools.partial(_raw, result=_types.float64)
def load_double(builder: Any, address: Any) -> Any:
    """The float64 at an address."""
    return builder.load(builder.inttoptr(address, ir.DoubleType().as_pointer()), align=1)


def _operand(builder: Any, at: Any, k: Any) -> Any:
    offset = builder.add(at, builder.mul(k, ir.Constant(_I64, 4)))
    return builder.sext(builder.load(_at(builder, offset, 32), align=4), _I64)


arg = _raw(_operand)
"""Operand k of the instruction at `at`, unchanged."""


@_raw
def val(builder: Any, frame: Any, at: Any, k: Any) -> Any:
    """Read the frame's cell that operand k names."""
    return builder.load(_at(builder, builder.add(frame, _operand(builder, at, k)), 64), align=8)


@_statement
def put(builder: Any, frame: Any, at: Any, value: Any) -> None:
    """Write the frame's cell that operand 1 names."""
    cell = builder.add(frame, _operand(builder, at, ir.Constant(_I64, 1)))
    builder.store(value, _at(builder, cell, 64), align=8)


def _call(builder: Any, address: Any, *args: Any) -> Any:
    """Call a kernel with int64 arguments and result by its address (`address_of`). Kernels called this way are compiled
    once, separately; a direct call would optimize the callee again within every caller."""
    pointer = ir.IntType(8).as_pointer()
    function = ir.FunctionType(ir.IntType(32), [_I64.as_pointer(), pointer, *[_I64] * len(args)])
    result = cgutils.alloca_once(builder, _I64)
    exception = cgutils.alloca_once(builder, pointer)
    target = builder.inttoptr(address, function.as_pointer())
    builder.call(target, [result, builder.bitcast(exception, pointer), *args])
    return builder.load(result)


call2 = _raw(lambda builder, address, a, b: _call(builder, address, a, b))
call3 = _raw(lambda builder, address, a, b, c: _call(builder, address, a, b, c))
call4 = _raw(lambda builder, address, a, b, c, d: _call(builder, address, a, b, c, d))


def address_of(kernel: Any, n_args: int) -> int:
    """Address of the code of a kernel with n_args int64 arguments; compiles it first if necessary."""
    signature = (_INT,) * n_args
    compile_once(kernel, *[0] * n_args)
    compiled = kernel.overloads[signature]
    address: int = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
    return address
