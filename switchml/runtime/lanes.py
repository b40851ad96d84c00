"""Operations on eight 64-bit numbers at once, with the vector instructions of the processor.

A kernel written for one np.uint64 with `+`, `^` and the functions here also works on eight if it receives `Lanes`. LLVM
splits them into the necessary number of registers, of four or two lanes where eight are not supported.
"""

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, models, overload, register_model

from switchml.runtime.memory import instruction, pointer_to

LANES = 8


class Lanes(types.Type):
    """numba's type of eight uint64 numbers."""

    def __init__(self) -> None:
        super().__init__(name="Lanes")


_LANES = Lanes()
_WORD, _VECTOR = ir.IntType(64), ir.VectorType(ir.IntType(64), LANES)


register_model(Lanes)(lambda manager, kind: models.PrimitiveModel(manager, kind, _VECTOR))


def _like(kind: Any) -> Any:
    """Return the type of a result from that of an argument: Lanes, or uint64 for any single number."""
    return _LANES if isinstance(kind, Lanes) else types.uint64


def _index(lane: int) -> ir.Constant:
    return ir.Constant(ir.IntType(32), lane)


def _spread(builder: Any, value: Any, kind: Any) -> Any:
    """Broadcast a 64-bit number to each lane of `kind`."""
    if not isinstance(kind, Lanes):
        return value
    first = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), value, _index(0))
    everywhere = ir.Constant(ir.VectorType(ir.IntType(32), LANES), None)
    return builder.shuffle_vector(first, ir.Constant(_VECTOR, ir.Undefined), everywhere)


def _declare_each(typingctx: Any, number: Any, like: Any) -> Any:
    kind = _like(like)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _spread(builder, args[0], kind)

    return kind(types.uint64, kind), codegen


each: Callable[..., Any] = intrinsic(_declare_each)
"""`each(number, like)`: the number, in every lane if `like` is of type Lanes."""


def _declare_rotated(typingctx: Any, value: Any, bits: Any) -> Any:
    kind = _like(value)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        left = builder.and_(args[1], ir.Constant(_WORD, 63))
        right = builder.and_(builder.neg(args[1]), ir.Constant(_WORD, 63))  # LLVM recognizes this form as a rotation
        upper = builder.shl(args[0], _spread(builder, left, kind))
        return builder.or_(upper, builder.lshr(args[0], _spread(builder, right, kind)))

    return kind(kind, types.int64), codegen


rotated: Callable[..., Any] = intrinsic(_declare_rotated)
"""`rotated(value, bits)`: rotated left, each lane separately."""


def _loads(bits: int) -> Callable[..., Any]:
    def declare(typingctx: Any, address: Any, offset: Any) -> Any:
        kind = _like(address)

        def load(builder: Any, address: Any, offset: Any) -> Any:
            value = builder.load(pointer_to(builder, builder.add(address, offset), bits), align=1)
            return value if bits == 64 else builder.zext(value, _WORD)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            addresses, offset = args
            if kind is not _LANES:
                return load(builder, addresses, offset)
            value = ir.Constant(_VECTOR, ir.Undefined)
            for lane in range(LANES):
                address = builder.extract_element(addresses, _index(lane))
                value = builder.insert_element(value, load(builder, address, offset), _index(lane))
            return value

        return kind(kind, types.int64), codegen

    function: Callable[..., Any] = intrinsic(declare)
    return function


byte_at, word_at = _loads(8), _loads(64)
"""`word_at(address, offset)`: the 64-bit number (or byte) at `offset` bytes from an address, of any alignment; Lanes if
there are eight addresses."""


def _place(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, _VECTOR.as_pointer())


eight_at = instruction(_LANES(types.uint64), lambda builder, address: builder.load(_place(builder, address), align=8))
"""Load eight consecutive uint64 numbers at an address as Lanes."""
put_eight = instruction(
    types.void(types.uint64, _LANES),
    lambda builder, address, value: builder.store(value, _place(builder, address), align=8),
)
"""`put_eight(address, lanes)`: store them consecutively."""


def _operate(operation: Callable[..., Any], emit: Callable[..., Any]) -> None:
    """Make a Python operator available for Lanes in kernels."""
    of_both = instruction(_LANES(_LANES, _LANES), emit)

    @overload(operation, strict=False)  # otherwise both would need the same type hints
    def applied(a: Any, b: Any) -> Any:
        if isinstance(a, Lanes) and isinstance(b, Lanes):
            return lambda a, b: of_both(a, b)
        return None


_operate(operator.add, ir.IRBuilder.add)
_operate(operator.xor, ir.IRBuilder.xor)
