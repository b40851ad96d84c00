"""Lowering of the parser: its states become blocks of code, errors jump to stubs that set the error, and all paths end
in checksum verification."""

import graphlib
from collections.abc import Callable

from emulator.p4switch.engine import opcodes as o
from emulator.p4switch.engine.actions import Actions
from emulator.p4switch.engine.code import Label, Unsupported
from emulator.p4switch.engine.expressions import Part
from emulator.p4switch.engine.fields import DYNAMIC
from emulator.p4switch.engine.layout import CELL, limbs
from emulator.p4switch.program import expr as e
from emulator.p4switch.program import ir
from emulator.p4switch.values import mask, n_bytes, padded_width

MAX_LOOKAHEAD = 1 << 12
"""Maximum bits of a look-ahead."""


class Parser(Part):
    """Generates the code of a parser. `vset_words(index, limbs, widths, mask)` returns the constant with the address of
    a value set's description."""

    def __init__(self, actions: Actions, vset_words: Callable[[int, int, list[int], int], int]) -> None:
        super().__init__(actions.ex)
        self.actions = actions
        self.vset_words = vset_words
        self._errors: dict[str, Label] = {}
        self._end = Label()

    def lower(self, parser: ir.Parser) -> int:
        """Lower a parser; returns the start of its code."""
        start = self.code.pc
        self.ex.start_block()
        self.ex.set_action(())
        labels = {number: Label() for number in range(len(parser.states))} | {ir.END: self._end}
        self._has_loop = _has_loop(parser)
        if parser.init_state == ir.END:
            self.code.emit(o.JMP, self._end)
        order = [parser.init_state] + [number for number in range(len(parser.states)) if number != parser.init_state]
        for number in order:
            if number != ir.END:
                self._state(parser.states[number], labels[number], labels)
        for name, label in self._errors.items():
            self.ex.bind(label)
            self.code.emit(o.MOV, CELL.parser_error, self.code.const(self.program.errors[name]))
            self.code.emit(o.JMP, self._end)
        self.ex.bind(self._end)
        self.actions.calculations.verify()
        self.code.emit(o.END, 0)
        return start

    def _error(self, name: str) -> Label:
        return self._errors.setdefault(name, Label())

    def _state(self, state: ir.ParseState, label: Label, labels: dict[int, Label]) -> None:
        self.ex.bind(label)
        if self._has_loop:
            self.code.emit(o.LIMIT, self._error("ParserTimeout"))
        for op in state.ops:
            match op:
                case ir.Extract(target, length):
                    self._extract(target, length)
                case ir.Set(dest, value):
                    self._set(dest, value)
                case ir.Verify(condition, error):
                    over = Label()
                    self.code.emit(o.JNZ, self.ex.narrow(condition), over)
                    self.ex.cells(error, 1, CELL.parser_error)
                    self.code.emit(o.JMP, self._end)
                    self.ex.bind(over)
                case ir.Advance(bits):
                    cell = self.ex.exact_narrow(bits, "a number of bits to advance by")
                    self.code.emit(o.SKIP, cell, self._error("ParserInvalidArgument"), self._error("PacketTooShort"))
                    self._moved()
                case ir.PrimitiveCall(primitive):
                    self.actions.primitive(primitive)
        self._select(state, labels)

    def _moved(self) -> None:
        """Forget look-ahead values, as the cursor has moved."""
        for key in [key for key in self.ex.memo if _looks_ahead(key[0])]:
            del self.ex.memo[key]

    # Operations

    def _extract(self, target: e.Expr, length: e.Expr | None) -> None:
        if isinstance(target, e.StackElement):
            next_cell, header = self.layout.next[target.stack.stack], self.ex.header_id(target)
            self.code.emit(o.JEQ, header, self.code.const(-1), self._error("StackOutOfBounds"))
            self._extract_any(header, ir.header_type(self.program, target), length)
            self.code.emit(o.ADD, next_cell, next_cell, self.code.const(1))
            self.ex.forget_all()
            return
        assert isinstance(target, e.HeaderRef)
        described = self.program.headers[target.header]
        if described.is_metadata:
            raise Unsupported("an extract into a metadata header")
        if described.type.varbit is None and not described.union:
            self._extract_fixed(described)
        else:
            self._extract_any(self.code.const(described.index), described.type, length)
        self.actions.touched(target)
        self._moved()

    def _extract_fixed(self, header: ir.Header) -> None:
        index = header.index
        n = self.layout.n_bytes[index]
        if header.type.width % 8:
            raise Unsupported("a header that does not end at a byte")
        self.code.emit(o.EXTR, self.layout.data[index], n, self.layout.valid[index], self._error("PacketTooShort"))
        n_signed = self.layout.total[index] - (self.layout.flags[index] - self.layout.data[index])
        if n_signed:
            self.code.emit(o.CLEAR, self.layout.flags[index], n_signed)

    def _extract_any(self, header: int, kind: ir.HeaderType, length: e.Expr | None) -> None:
        if kind.width % 8:
            raise Unsupported("a header that does not end at a byte")
        width = self.code.const(0)
        if kind.varbit is not None:
            if self.layout.wire_bit(kind, kind.varbit) % 8:
                raise Unsupported("a varbit field that does not begin at a byte")
            if length is None:
                self.code.emit(o.LEFT, n_bytes(kind.width), self._error("PacketTooShort"))
                length = self._own_length(kind)
            width = self.ex.exact_narrow(length, "the length of a varbit field")
        self.code.emit(
            o.EXTH, header, width, int(kind.varbit is not None), kind.max_length, self._error("ParserInvalidArgument"),
            self._error("PacketTooShort"), self._error("HeaderTooShort"),
        )  # fmt: skip

    def _own_length(self, kind: ir.HeaderType) -> e.Expr:
        """The header type's length expression, with look-aheads in place of the preceding fields."""
        assert kind.length is not None
        before = kind.varbit or 0

        def of(node: e.Expr) -> e.Expr:
            if isinstance(node, e.Local):
                field = kind.fields[node.index]
                return e.Lookahead(field.offset, field.width) if node.index < before else e.Const(0)
            if isinstance(node, e.Op):
                return e.Op(node.op, tuple(of(arg) for arg in node.args))
            return node

        return of(kind.length)

    def _set(self, dest: e.FieldRef, value: e.Expr) -> None:
        self._check_ahead(value)
        if dest.field == e.VALID:
            self._set_valid_field(dest, value)
        elif dest.field == self.program.headers[dest.header].type.varbit:
            self.actions.assign_VL(dest, value)
        else:
            self.actions.assign(dest, value)

    def _check_ahead(self, value: e.Expr) -> None:
        """Emit a check for a look-ahead beyond the packet, which is an error (P4_16 12.8.3)."""
        if isinstance(value, e.Lookahead):
            if value.offset < 0 or value.offset + value.width > MAX_LOOKAHEAD:
                raise Unsupported("a look-ahead that far")
            self.code.emit(o.LEFT, n_bytes(value.offset + value.width), self._error("PacketTooShort"))

    def _set_valid_field(self, dest: e.FieldRef, value: e.Expr) -> None:
        """Set $valid$ only (see layout.py)."""
        if self.program.headers[dest.header].in_stack:
            raise Unsupported("a parser that sets $valid$ of a stack's element")
        wanted, one = self.ex.narrow(e.Op("&", (value, e.Const(1)))), self.code.const(1)
        valid = self.ex.valid(dest.header)
        differs = self.code.result(o.SHL, self.code.result(o.XOR, wanted, valid), one)
        self.code.emit(o.ST8, self.layout.valid[dest.header], self.code.result(o.OR, valid, differs))
        self.ex.forget(dest)
        self.ex.forget(DYNAMIC)

    # Transitions

    def _select(self, state: ir.ParseState, labels: dict[int, Label]) -> None:
        for part in state.key:  # also where every packet takes the default transition
            self._check_ahead(part.value)
        if state.key and state.transitions:
            widths = [part.width for part in state.key]
            total = padded_width(widths)
            node: e.Expr = e.Const(0)
            for part in state.key:
                piece = e.Op("&", (part.value, e.Const(mask(part.width))))
                node = e.Op("|", (e.Op("<<", (node, e.Const(8 * n_bytes(part.width)))), piece))
            n = limbs(total)
            cell = self.ex.cells(node, n)
            for transition in state.transitions:
                cover = mask(total) if transition.mask is None else transition.mask & mask(total)
                goal = labels[transition.next_state]
                if transition.vset is not None:
                    words = self.vset_words(transition.vset, n, widths, cover)
                    self.code.emit(o.VSET, cell, n, self.code.const(cover, n), words, goal)
                elif n == 1 and cover == mask(total):
                    self.code.emit(o.JEQ, cell, self.code.const(transition.value & cover), goal)
                else:
                    value = self.code.const(transition.value & cover, n)
                    self.code.emit(o.JCASE, cell, self.code.const(cover, n), value, n, goal)
        self.code.emit(o.JMP, labels[state.default])


def _looks_ahead(node: e.Expr) -> bool:
    return any(isinstance(part, e.Lookahead) for part in e.walk(node))


def _has_loop(parser: ir.Parser) -> bool:
    """Whether a state is reachable from itself."""
    after = {
        number: {state.default, *(transition.next_state for transition in state.transitions)}
        for number, state in enumerate(parser.states)
    }
    try:
        graphlib.TopologicalSorter(after).prepare()
    except graphlib.CycleError:
        return True
    return False
