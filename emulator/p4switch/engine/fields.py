"""Lowering of reads from a packet's headers: fields at static locations, and those of headers chosen at run time; and
the values known within a basic block. `cells`, which evaluates any expression, is implemented in expressions.py."""

from emulator.p4switch.engine import opcodes as o
from emulator.p4switch.engine.code import Code, Label, Unsupported
from emulator.p4switch.engine.intervals import Intervals, exact_limbs
from emulator.p4switch.engine.layout import FieldLocation, Layout
from emulator.p4switch.program import expr as e
from emulator.p4switch.program import ir
from emulator.p4switch.state.state import State
from emulator.p4switch.values import mask

MAX_LIMBS = 600
"""Maximum limbs of a value; programs with wider values are left to the interpreter."""
DYNAMIC = "dynamic"
"""Dependency of a node that reads a header chosen at run time."""
REGISTERS = "registers"
_LOADS = {8: o.LD8, 16: o.LD16, 32: o.LD32, 64: o.LD64}


class Block:
    """Values known within a basic block. `memo[node, n]`: the cells that hold the n low limbs of a node."""

    def __init__(self, code: Code) -> None:
        self.code = code
        self.memo: dict[tuple[e.Expr, int], int] = {}
        self._readers: dict[object, set[tuple[e.Expr, int]]] = {}
        self._reads: dict[e.Expr, frozenset[object]] = {}

    def start_block(self) -> None:
        """Start a block: no values are known, no temporaries are in use."""
        self.forget_all()
        self.code.free_temps()

    def bind(self, label: Label) -> None:
        """Bind the label here, and start a new block."""
        self.code.bind(label)
        self.start_block()

    def forget_all(self) -> None:
        """Forget all values."""
        self.memo.clear()
        self._readers.clear()

    def forget(self, written: object) -> None:
        """Forget the values that depend on a written field."""
        for key in self._readers.pop(written, ()):
            self.memo.pop(key, None)

    def remember(self, node: e.Expr, n: int, cell: int) -> None:
        """Record the cells that hold the n low limbs of a node."""
        self.memo[node, n] = cell
        for read in self.reads(node):
            self._readers.setdefault(read, set()).add((node, n))

    def reads(self, node: e.Expr) -> frozenset[object]:
        """Dependencies of a node: fields, DYNAMIC, REGISTERS."""
        dependencies = self._reads.get(node)
        if dependencies is None:
            if isinstance(node, e.FieldRef):
                dependencies = frozenset([node])
            else:
                parts = [self.reads(child) for child in node.children]
                if isinstance(node, e.StackRef | e.HeaderRef):
                    parts.append(frozenset([DYNAMIC]))
                if isinstance(node, e.RegisterRef):
                    parts.append(frozenset([REGISTERS]))
                dependencies = frozenset().union(*parts)
            self._reads[node] = dependencies
        return dependencies


class Fields(Block):
    """Generates code that loads fields."""

    def __init__(self, state: State, layout: Layout, code: Code) -> None:
        super().__init__(code)
        self.state = state
        self.program = state.program
        self.layout = layout
        self.interval = Intervals(state.program)

    # Values

    def cells(self, node: e.Expr, n: int, into: int | None = None) -> int:
        """Emit the node's value modulo 2^(64 n); returns the lowest of its n cells."""
        raise NotImplementedError

    def narrow(self, node: e.Expr, into: int | None = None) -> int:
        """Emit the node's value modulo 2^64; returns its cell."""
        return self.cells(node, 1, into)

    def exact(self, node: e.Expr) -> tuple[int, int, bool]:
        """Emit all bits of the value: (cell, limbs, whether it is signed)."""
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
        """The cell of an index, compared as unsigned: a value outside int64 is out of range in any case."""
        low, high = self.interval(node)
        is_unsigned = low >= 0 and high < 1 << 64
        return self.narrow(node) if is_unsigned else self.exact_narrow(node, what)

    # Fields

    def valid(self, header: int, into: int | None = None) -> int:
        """The cell with a header's validity, which equals its field $valid$ unless a parser sets that."""
        cell = self.code.result(o.LD8, self.layout.valid[header], into=into)
        if e.FieldRef(header, e.VALID) in self.program.sets_valid:
            self.code.emit(o.AND, cell, cell, self.code.const(1))
        return cell

    def _load(self, node: e.FieldRef, n: int, d: int) -> None:
        if node.field == e.VALID:
            byte = self.layout.valid[node.header]
            self.code.emit(o.LD8, d, byte)
            if node in self.program.sets_valid:
                differs = self.code.result(o.SLICE, d, 1, self.code.const(1))
                self.code.emit(o.XOR, d, self.valid(node.header), differs)
            return
        location = self.layout.locations.get(node)
        if location is None:
            self.code.emit(o.VBLD, d, self.layout.varbit[node.header], n)
        elif not location.signed:
            self.load_bits(location, 0, location.width, n, d)
        elif location.width <= 64 and n == 1:
            self.load_bits(location, 0, location.width, 1, d)
            if location.width < 64:
                assert location.flag is not None
                self.code.emit(o.SIGNF, d, d, location.width, location.flag)
        else:
            raise Unsupported("a signed field of 64 bits or more in a header")

    def load_bits(self, location: FieldLocation, low: int, width: int, n: int, d: int) -> None:
        """Emit a load of bits low..low+width-1 (0 is the least significant) of a field in wire format."""
        start = location.bit + location.width - low - width
        at, bit = location.offset + start // 8, start % 8
        if n > 1:
            self.code.emit(o.WLD, d, at, bit, width, n)
        elif width > 64:
            self.load_bits(location, low, 64, 1, d)
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
        """The cell with a header's id, -1 if out of a stack's bounds."""
        if isinstance(node, e.HeaderRef):
            return self.code.const(node.header)
        if isinstance(node, e.StackElement):
            ids = self.program.stacks[node.stack.stack].columns[node.member]
            index = self.exact_narrow(node.index, "an index")
            return self.code.result(o.HIDX, index, self.code.words(ids), len(ids))
        if isinstance(node, e.Op):
            condition, left, right = node.args
            return self.code.result(o.SEL, self.narrow(condition), self.header_id(left), self.header_id(right))
        raise Unsupported(f"the header expression {type(node).__name__}")

    def _load_dynamic(self, node: e.AccessField, n: int, d: int) -> None:
        header, kind = self.header_id(node.header), ir.header_type(self.program, node)
        if node.field == e.VALID:
            self.code.emit(o.HVALID, d, header)
            return
        field = kind.fields[node.field]
        if field.is_varbit or (field.signed and field.width >= 64):
            raise Unsupported("a varbit or wide signed field of a header known only at run time")
        bit = self.layout.wire_bit(kind, node.field)
        if n > 1 or field.width > 64:
            self.code.emit(o.HWIDE, d, header, bit, field.width, n)
        else:
            flag = self.layout.sign_flag(kind, node.field) if field.signed else -1
            self.code.emit(o.HFIELD, d, header, bit, field.width, flag)
