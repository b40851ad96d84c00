"""Lowering of reads from a packet's headers: fields at places known now, and those of headers, stack elements and union
members known only at run time. `cells`, which evaluates any expression, is added in expressions.py."""

from __future__ import annotations

from emulator.p4switch.engine import opcodes as o
from emulator.p4switch.engine.blocks import Block
from emulator.p4switch.engine.code import Code, Unsupported
from emulator.p4switch.engine.intervals import Intervals, exact_limbs
from emulator.p4switch.engine.layout import Layout, Place
from emulator.p4switch.program import expr as e
from emulator.p4switch.program import ir
from emulator.p4switch.program.headers import header_type
from emulator.p4switch.state.state import State
from emulator.p4switch.values import mask

MAX_LIMBS = 600
"""A value that needs more is left to the interpreter."""
_LOADS = {8: o.LD8, 16: o.LD16, 32: o.LD32, 64: o.LD64}


class Fields(Block):
    """Writes code that loads fields."""

    def __init__(self, state: State, layout: Layout, code: Code) -> None:
        super().__init__(code)
        self.state = state
        self.program = state.program
        self.layout = layout
        self.interval = Intervals(state.program)

    # Values

    def cells(self, node: e.Expr, n: int, into: int | None = None) -> int:
        """The lowest of n cells with the node's value modulo 2^(64 n)."""
        raise NotImplementedError

    def narrow(self, node: e.Expr, into: int | None = None) -> int:
        """The cell with the node's value modulo 2^64."""
        return self.cells(node, 1, into)

    def exact(self, node: e.Expr) -> tuple[int, int, bool]:
        """(cell, limbs, whether it is to be read as signed): all bits of the value."""
        low, _ = interval = self.interval(node)
        n = exact_limbs(interval)
        if n > MAX_LIMBS:
            raise Unsupported("a value of unbounded width")
        return self.cells(node, n), n, low < 0

    def exact_narrow(self, node: e.Expr, what: str) -> int:
        """The cell of a value that must fit a signed 64-bit number."""
        low, high = self.interval(node)
        if low < -(1 << 63) or high >= 1 << 63:
            raise Unsupported(f"{what} of more than 63 bits")
        return self.narrow(node)

    def index(self, node: e.Expr, what: str) -> int:
        """The cell of an index, which is compared as unsigned: a value outside int64 is out of range in any case."""
        low, high = self.interval(node)
        return (
            self.narrow(node)
            if low >= -(1 << 63) and high < 1 << 64 and not (low < 0 and high >= 1 << 63)
            else (self.exact_narrow(node, what))
        )

    # Fields

    def _load(self, node: e.FieldRef, n: int, d: int) -> None:
        if node.field == e.VALID:
            self.code.emit(o.LD8, d, self.layout.valid[node.header])
            return
        place = self.layout.places.get(node)
        if place is None:
            self.code.emit(o.VBLD, d, self.layout.varbit[node.header], n)
        elif not place.signed:
            self.load_bits(place, 0, place.width, n, d)
        elif place.width <= 64 and n == 1:
            self.load_bits(place, 0, place.width, 1, d)
            if place.width < 64:
                self.code.emit(o.SIGNF, d, d, place.width, place.flag)
        else:
            raise Unsupported("a signed field of 64 bits or more in a header")

    def load_bits(self, place: Place, low: int, width: int, n: int, d: int) -> None:
        """Load bits low..low+width-1 (0 is the least significant) of a field on the wire."""
        start = place.bit + place.width - low - width
        at, bit = place.offset + start // 8, start % 8
        if n > 1:
            self.code.emit(o.WLD, d, at, bit, width, n)
        elif width > 64:
            self.load_bits(place, low, 64, 1, d)
        elif bit == 0 and width in _LOADS:
            self.code.emit(_LOADS[width], d, at)
        elif bit + width <= 8:
            self.code.emit(o.LD8, d, at)
            self.code.emit(o.SLICE, d, d, 8 - bit - width, self.code.const(mask(width)))
        elif bit + width <= 64:
            self.code.emit(o.LDX, d, at, 64 - bit - width, self.code.const(mask(width)))
        else:
            self.code.emit(o.LDBITS, d, at, bit, width)

    def header_id(self, node: e.Expr) -> int:
        """The cell with a header's id, -1 beyond a stack."""
        if isinstance(node, e.HeaderRef):
            return self.code.const(node.header)
        d = self.code.temp()
        if isinstance(node, e.StackElement):
            ids = self.program.stacks[node.stack.stack].headers
            self.code.emit(o.HIDX, d, self.exact_narrow(node.index, "an index"), self.code.words(ids), len(ids))
        elif isinstance(node, e.UnionMember):
            self.code.emit(o.HMEM, d, self.union_list(node.union), node.member)
        elif isinstance(node, e.UnionStackNext):
            self.code.emit(
                o.HMEM, d, self.element_of_unions(node.stack, self.layout.union_next[node.stack]), node.member
            )
        elif isinstance(node, e.Op):
            self.code.emit(
                o.SEL, d, self.narrow(node.args[0]), self.header_id(node.args[1]), self.header_id(node.args[2])
            )
        else:
            raise Unsupported(f"the header expression {type(node).__name__}")
        return d

    def union_ids(self, union: int) -> int:
        """The offset where the ids of a union's members are listed."""
        return self.code.words(self.program.unions[union].headers)

    def element_of_unions(self, stack: int, index: int) -> int:
        """The cell with the list's offset of the union at a place of a stack."""
        lists = tuple(self.union_ids(union) for union in self.program.union_stacks[stack].unions)
        d = self.code.temp()
        self.code.emit(o.HIDX, d, index, self.code.words(lists), len(lists))
        return d

    def union_list(self, node: e.Expr) -> int:
        """The cell with the offset of the list of a union's members; -1 beyond a stack."""
        if isinstance(node, e.UnionRef):
            return self.code.const(self.union_ids(node.union))
        if isinstance(node, e.StackElement):
            return self.element_of_unions(node.stack.stack, self.exact_narrow(node.index, "an index"))
        if isinstance(node, e.Op):
            d = self.code.temp()
            self.code.emit(
                o.SEL, d, self.narrow(node.args[0]), self.union_list(node.args[1]), self.union_list(node.args[2])
            )
            return d
        raise Unsupported(f"the union expression {type(node).__name__}")

    def dynamic_field(self, node: e.Expr) -> tuple[int, ir.HeaderType, int]:
        """(cell of the header's id, the header's type, number of the field) that a node names."""
        if isinstance(node, e.AccessField):
            return self.header_id(node.header), header_type(self.program, node.header), node.field
        d, index = self.code.temp(), self.code.temp()
        if isinstance(node, e.StackLast):
            stack = self.program.stacks[node.stack]
            self.code.emit(o.SUB, index, self.layout.next[node.stack], self.code.const(1))
            self.code.emit(o.HIDX, d, index, self.code.words(stack.headers), len(stack.headers))
            return d, stack.type, node.field
        self.code.emit(o.SUB, index, self.layout.union_next[node.stack], self.code.const(1))
        self.code.emit(o.HMEM, d, self.element_of_unions(node.stack, index), node.member)
        kind = header_type(self.program, e.UnionStackNext(node.stack, node.member))
        return d, kind, node.field

    def _load_dynamic(self, node: e.Expr, n: int, d: int) -> None:
        header, kind, number = self.dynamic_field(node)
        if number == e.VALID:
            self.code.emit(o.HVALID, d, header)
            return
        field = kind.fields[number]
        if field.is_varbit or (field.signed and field.width >= 64):
            raise Unsupported("a varbit or wide signed field of a header known only at run time")
        bit = self.layout.wire_bit(kind, number)
        if n > 1 or field.width > 64:
            self.code.emit(o.HWIDE, d, header, bit, field.width, n)
        else:
            flag = self.layout.sign_flag(kind, number) if field.signed else -1
            self.code.emit(o.HFIELD, d, header, bit, field.width, flag)
