"""Evaluation of expressions to unbounded integers, booleans, or a header or field.

BMv2 aborts the whole switch when a program divides by zero, shifts by a negative number, or accesses a stack element
out of bounds. Here x/0 and x%0 are 0, negative shifts don't shift, and out-of-bounds reads return 0 (an invalid header)
and writes are ignored."""

import operator
from collections.abc import Callable, Sequence

from emulator.p4switch.interpreter.packet import Packet
from emulator.p4switch.program import expr as e
from emulator.p4switch.state.state import State
from emulator.p4switch.values import MAX_WIDTH, sat_cast, two_comp_mod, usat_cast


def divide(left: int, right: int) -> int:
    """Quotient truncated towards 0; 0 when dividing by 0."""
    return 0 if right == 0 else abs(left) // abs(right) * (-1 if (left < 0) != (right < 0) else 1)


def remainder(left: int, right: int) -> int:
    """left - divide(left, right) * right; 0 when dividing by 0."""
    return 0 if right == 0 else left - divide(left, right) * right


def shift_left(left: int, right: int) -> int:
    """left << right. No storable value is wider than MAX_WIDTH, so larger shifts give 0."""
    return 0 if right > MAX_WIDTH else left << max(right, 0)


def shift_right(left: int, right: int) -> int:
    """left >> right, arithmetic."""
    return left >> max(right, 0)


BINARY: dict[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": divide, "%": remainder,
    "&": operator.and_, "|": operator.or_, "^": operator.xor, "<<": shift_left, ">>": shift_right,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "and": operator.and_, "or": operator.or_,
    "two_comp_mod": two_comp_mod, "sat_cast": sat_cast, "usat_cast": usat_cast,
}  # fmt: skip
"""Binary operators on numbers or booleans."""

UNARY: dict[str, Callable[[int], int]] = {"~": operator.invert, "not": operator.not_, "d2b": bool, "b2d": int}
"""Unary operators."""


class Expressions:
    """Evaluates expressions over one packet. `args`: arguments of the current action; `at`: number of parsed bytes of
    the packet, for lookahead."""

    def __init__(self, packet: Packet, state: State, args: Sequence[int] = (), at: int = 0) -> None:
        self.packet = packet
        self.state = state
        self.program = state.program
        self.args = args
        self.at = at

    def value(self, node: e.Expr) -> int:
        """Value of a node: a number or a boolean."""
        packet = self.packet
        match node:
            case e.Const(value):
                return value
            case e.FieldRef(header, field):
                return packet.get(header, field)
            case e.Op(op, args):
                return self._operation(op, args)
            case e.Bool(value):
                return bool(value)
            case e.Local(index):
                return self.args[index]
            case e.AccessField():
                place = self.field(node)
                return 0 if place is None else packet.get(*place)
            case e.RegisterRef(array, index):
                register, at = self.state.registers[array], self.value(index)
                return register[at] if 0 <= at < register.size else 0
            case e.Lookahead(offset, width):
                return self._peek(8 * self.at + offset, width)
        raise TypeError(f"{type(node).__name__} has no value")

    def _operation(self, op: str, args: tuple[e.Expr, ...]) -> int:
        if op in BINARY:
            return BINARY[op](self.value(args[0]), self.value(args[1]))
        if op in UNARY:
            return UNARY[op](self.value(args[0]))
        if op in ("==", "!="):
            return self._equal(*args) == (op == "==")
        if op == "?":
            return self.value(args[1] if self.value(args[0]) else args[2])
        if op == "valid":
            header = self.header(args[0])
            return header is not None and self.packet.valid[header]
        if op in ("last_stack_index", "size_stack"):
            assert isinstance(args[0], e.StackRef)
            return self.packet.next_in_stack[args[0].stack] - (op == "last_stack_index")
        raise TypeError(f"the operator {op!r} is unknown")

    def _equal(self, left: e.Expr, right: e.Expr) -> bool:
        if left.kind == e.HEADER:
            one, other = self.header(left), self.header(right)
            return one is not None and other is not None and self.packet.headers_equal(one, other)
        return self.value(left) == self.value(right)

    def _peek(self, offset: int, width: int) -> int:
        """Bits of the packet, with zeros beyond its end."""
        end = (offset + width + 7) // 8
        data = self.packet.payload[offset // 8 : end].ljust(end - offset // 8, b"\0")
        return int.from_bytes(data, "big") >> (8 * end - offset - width) & ((1 << width) - 1)

    # Headers and fields

    def header(self, node: e.Expr) -> int | None:
        """Index of a header, or None if out of a stack's bounds."""
        match node:
            case e.HeaderRef(header):
                return header
            case e.StackElement(stack, member, index):
                column, at = self.program.stacks[stack.stack].columns[member], self.value(index)
                return column[at] if 0 <= at < len(column) else None
            case e.Op("?", (condition, left, right)):
                return self.header(left if self.value(condition) else right)
        raise TypeError(f"{type(node).__name__} is not a header")

    def field(self, node: e.Expr) -> tuple[int, int] | None:
        """(header, field) of a node, or None if out of a stack's bounds."""
        match node:
            case e.FieldRef(header, field):
                return header, field
            case e.AccessField(header_node, field):
                index = self.header(header_node)
                return None if index is None else (index, field)
        raise TypeError(f"{type(node).__name__} is not a field")

    def store(self, node: e.Expr, value: int) -> None:
        """Store into a field or a register cell."""
        if isinstance(node, e.RegisterRef):
            register, at = self.state.registers[node.array], self.value(node.index)
            if 0 <= at < register.size:
                register[at] = value
            return
        place = self.field(node)
        if place is not None:
            self.packet.set(*place, value)
