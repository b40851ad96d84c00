"""Lowering of expressions: a node and a number of limbs in, cells of the frame that hold its value modulo 2^(64 limbs)
out.

Values are unbounded in P4's IR, but what is asked for are a few low limbs (the demanded bits): +, -, * and << need only
as many of their operands, and an `&` with a constant no more than that has. Where all bits matter (comparing, >>, /)
the interval of the operand says how many limbs are exact. A node is computed once within a basic block (`memo`), until
something that it reads is written (blocks.py)."""

from __future__ import annotations

from emulator.p4switch.engine import opcodes as o
from emulator.p4switch.engine.blocks import Block
from emulator.p4switch.engine.code import Code, Label, Unsupported
from emulator.p4switch.engine.intervals import Cell, Intervals, bits_of, exact_limbs, header_type
from emulator.p4switch.engine.layout import Layout, Place, limbs
from emulator.p4switch.program import expr as e
from emulator.p4switch.program import ir
from emulator.p4switch.state.state import State
from emulator.p4switch.values import mask

MAX_LIMBS = 600
"""A value that needs more is left to the interpreter."""
_LOADS = {8: o.LD8, 16: o.LD16, 32: o.LD32, 64: o.LD64}
_COMPARE = {("<", False): o.LTU, ("<=", False): o.LEU, ("<", True): o.LTS, ("<=", True): o.LES}
_SWAPPED = {">": "<", ">=": "<="}
_NARROW = {"+": o.ADD, "-": o.SUB, "*": o.MUL, "&": o.AND, "|": o.OR, "^": o.XOR}
_WIDE = {"+": o.WADD, "-": o.WSUB, "*": o.WMUL, "&": o.VAND, "|": o.VOR, "^": o.VXOR}


class Expressions(Block):
    """Writes code that evaluates nodes."""

    def __init__(self, state: State, layout: Layout, code: Code) -> None:
        super().__init__(code)
        self.state = state
        self.program = state.program
        self.layout = layout
        self.interval = Intervals(state.program)
        self._arg_words: list[int] = []

    def set_action(self, params: tuple[ir.Param, ...]) -> None:
        """The action whose nodes come now: Local(i) is params[i], which takes up whole limbs one after the other."""
        self.interval.set_params(params)
        self._arg_words, at = [], 0
        for param in params:
            self._arg_words.append(at)
            at += limbs(param.width)

    # Values

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
        """The cell of an index, compared as unsigned: every value outside int64 is out of range anyway."""
        low, high = self.interval(node)
        return (
            self.narrow(node)
            if low >= -(1 << 63) and high < 1 << 64 and not (low < 0 and high >= 1 << 63)
            else (self.exact_narrow(node, what))
        )

    def cells(self, node: e.Expr, n: int, into: int | None = None) -> int:
        """The lowest of n cells with the node's value modulo 2^(64 n); the result is written to `into` if given."""
        low, high = self.interval(node)
        if low == high:
            return self._moved(self.code.const(low, n), n, into)
        place = self._slot(node)
        if place is not None and n <= place.n_limbs:
            return self._moved(place.offset, n, into)
        if isinstance(node, Cell) and n <= node.n_limbs:
            return self._moved(node.offset, n, into)
        known = self.memo.get((node, n))
        if known is not None:
            return self._moved(known, n, into)
        exact = exact_limbs((low, high))
        if exact < n:
            cell = self.code.temp(n) if into is None else into
            self.code.emit(o.WEXT, cell, n, self.cells(node, exact), exact, int(low < 0))
        else:
            cell = self._compute(node, n, into)
        if into is None:
            self.remember(node, n, cell)
        return cell

    def _moved(self, cell: int, n: int, into: int | None) -> int:
        if into is None or into == cell:
            return cell
        self.code.emit(*((o.MOV, into, cell) if n == 1 else (o.WMOV, into, cell, n)))
        return into

    def _slot(self, node: e.Expr) -> Place | None:
        """The place of a field that is an operand as it stands."""
        if isinstance(node, e.FieldRef) and node.field != e.VALID and node in self.layout.places:
            place = self.layout.places[node]
            return None if place.is_wire else place
        return None

    def _compute(self, node: e.Expr, n: int, into: int | None) -> int:
        if isinstance(node, e.Op):
            return self._op(node, n, into)
        d = self.code.temp(n) if into is None else into
        if isinstance(node, e.FieldRef):
            self._load(node, n, d)
        elif isinstance(node, e.Local):
            self._argument(node.index, n, d)
        elif isinstance(node, e.Lookahead):
            self.code.emit(o.PEEK, d, node.offset, node.width, n)
        elif isinstance(node, e.RegisterRef):
            index = self.index(node.index, "the index of a register")
            self.code.emit(o.REG, d, self.register_words(node.array), index, n)
        elif isinstance(node, e.StackLast | e.UnionStackLast | e.AccessField):
            self._load_dynamic(node, n, d)
        else:
            raise Unsupported(f"the expression {type(node).__name__}")
        return d

    def _argument(self, index: int, n: int, d: int) -> None:
        for k in range(n):
            self.code.emit(o.ARG, d + 8 * k, self._arg_words[index] + k)

    def register_words(self, array: int) -> int:
        """Constants that describe a register array: address, size, bytes from cell to cell, mask of the top limb."""
        register = self.state.registers[array]
        top = mask((register.width - 1) % 64 + 1)
        return self.code.words((register.data.ctypes.data, register.size, register.data.strides[0], top))

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

    # Operators

    def _op(self, node: e.Op, n: int, into: int | None) -> int:
        op, args = node.op, node.args
        if op in ("sat_cast", "usat_cast"):
            return self.cells(self._clamped(node), n, into)
        if op == "b2d":
            return self.narrow(args[0], into)
        if op == "two_comp_mod":
            return self._two_comp_mod(node, n, into)
        if op == "&":
            return self._and(node, n, into)
        if op == "?":
            cells = [self.narrow(args[0]), self.cells(args[1], n), self.cells(args[2], n)]
            d = self._target(n, into)
            self.code.emit(*((o.SEL, d, *cells) if n == 1 else (o.WSEL, d, *cells, n)))
            return d
        if op in ("size_stack", "last_stack_index"):
            table = self.layout.next if isinstance(args[0], e.StackRef) else self.layout.union_next
            d = self._target(n, into)
            self.code.emit(o.SUB, d, table[args[0].stack], self.code.const(int(op == "last_stack_index")))
            return d
        if op in (">>", "<<"):
            return self._shift(node, n, into)
        if op in _NARROW:
            left, right = self.cells(args[0], n), self.cells(args[1], n)
            d = self._target(n, into)
            self.code.emit(*((_NARROW[op], d, left, right) if n == 1 else (_WIDE[op], d, left, right, n)))
            return d
        if op == "~":
            inner = self.cells(args[0], n)
            d = self._target(n, into)
            self.code.emit(*((o.NOT, d, inner) if n == 1 else (o.WNOT, d, inner, n)))
            return d
        if op in ("/", "%"):
            return self._divide(node, n, into)
        return self._boolean(node, into)

    def _target(self, n: int, into: int | None) -> int:
        return self.code.temp(n) if into is None else into

    @staticmethod
    def _clamped(node: e.Op) -> e.Expr:
        """sat_cast and usat_cast in terms of `?`."""
        value, width = node.args[0], node.args[1].value
        low, high = (0, mask(max(width, 0))) if node.op == "usat_cast" else (-(1 << width >> 1), (1 << width >> 1) - 1)
        if width <= 0:
            return e.Const(0)
        below = e.Op("?", (e.Op("<", (value, e.Const(low))), e.Const(low), value))
        return e.Op("?", (e.Op(">", (value, e.Const(high))), e.Const(high), below))

    def _two_comp_mod(self, node: e.Op, n: int, into: int | None) -> int:
        value, width = node.args[0], node.args[1].value
        low, high = self.interval(value)
        if low >= -(1 << (width - 1)) and high < 1 << (width - 1) or 64 * n < width or width == 64:
            return self.cells(value, n, into)
        inner = self.cells(value, n)
        d = self._target(n, into)
        self.code.emit(*((o.SEXT, d, inner, width) if n == 1 else (o.WSEXT, d, inner, width, n)))
        return d

    def _and(self, node: e.Op, n: int, into: int | None) -> int:
        left, right = node.args
        if isinstance(left, e.Const):
            left, right = right, left
        if isinstance(right, e.Const) and right.value > 0 and right.value & (right.value + 1) == 0:
            low, high = self.interval(left)
            width = right.value.bit_length()
            if low >= 0 and high <= right.value:
                return self.cells(left, n, into)
            if n == 1 and width <= 64:
                found = self._masked(left, width, into)
                if found is not None:
                    return found
        cells = self.cells(left, n), self.cells(right, n)
        d = self._target(n, into)
        self.code.emit(*((o.AND, d, *cells) if n == 1 else (o.VAND, d, *cells, n)))
        return d

    def _masked(self, node: e.Expr, width: int, into: int | None) -> int | None:
        """node & mask(width) in one instruction, if there is one for it."""
        low_mask = self.code.const(mask(width))
        if isinstance(node, e.Op) and node.op in "+-" and width < 64 and (node, 1) not in self.memo:
            left, right = self.narrow(node.args[0]), self.narrow(node.args[1])
            d = self._target(1, into)
            self.code.emit(o.ADDM if node.op == "+" else o.SUBM, d, left, right, low_mask)
            return d
        shift = 0
        if isinstance(node, e.Op) and node.op == ">>" and isinstance(node.args[1], e.Const):
            node, shift = node.args[0], max(node.args[1].value, 0)
        if isinstance(node, e.FieldRef) and node.field != e.VALID and (node, 1) not in self.memo:
            place = self.layout.places.get(node)
            if place is not None and place.is_wire and not place.signed and shift < place.width:
                d = self._target(1, into)
                self.load_bits(place, shift, min(width, place.width - shift), 1, d)
                return d
        low, high = self.interval(node)
        if 0 < shift < 64 and low >= 0 and high < 1 << 64:
            inner = self.narrow(node)
            d = self._target(1, into)
            self.code.emit(o.SLICE, d, inner, shift, low_mask)
            return d
        return None

    def _shift(self, node: e.Op, n: int, into: int | None) -> int:
        value, amount = node.args
        fixed = max(amount.value, 0) if isinstance(amount, e.Const) else None
        if node.op == "<<":
            by = self.exact_narrow(amount, "a shift") if fixed is None else self.code.const(min(fixed, 1 << 30))
            inner = self.cells(value, n)
            d = self._target(n, into)
            self.code.emit(*((o.SHL, d, inner, by) if n == 1 else (o.WSHL, d, inner, by, n)))
            return d
        low, high = self.interval(value)
        exact = exact_limbs((low, high))
        k = exact if fixed is None else min(exact, (fixed + 64 * n + 63) // 64)
        if k > MAX_LIMBS:
            raise Unsupported("a value of unbounded width")
        inner = self.cells(value, k)
        by = self.exact_narrow(amount, "a shift") if fixed is None else self.code.const(min(fixed, 1 << 30))
        is_signed = low < 0 and k == exact
        d = self._target(n, into)
        if n == k == 1:
            self.code.emit(o.SHRS if is_signed else o.SHRU, d, inner, by)
        else:
            self.code.emit(o.WSHR, d, n, inner, k, by, int(is_signed))
        return d

    def _divide(self, node: e.Op, n: int, into: int | None) -> int:
        left, right = node.args
        lows, highs = zip(self.interval(left), self.interval(right), strict=True)
        is_signed = min(lows) < 0
        if n > 1 or max(highs) >= 1 << (63 if is_signed else 64) or min(lows) <= -(1 << 63):
            raise Unsupported("division of numbers of more than 64 bits")
        cells = self.narrow(left), self.narrow(right)
        d = self._target(1, into)
        op = {("/", True): o.DIVS, ("/", False): o.DIVU, ("%", True): o.REMS, ("%", False): o.REMU}[node.op, is_signed]
        self.code.emit(op, d, *cells)
        return d

    # Booleans

    def _boolean(self, node: e.Op, into: int | None) -> int:
        op, args = node.op, node.args
        if op in ("==", "!="):
            return self._equal(node, into)
        if op in ("<", "<=", ">", ">="):
            return self._order(node, into)
        if op in ("and", "or"):
            cells = self.narrow(args[0]), self.narrow(args[1])
            d = self._target(1, into)
            self.code.emit(o.AND if op == "and" else o.OR, d, *cells)
            return d
        if op == "not":
            inner = self.narrow(args[0])
            d = self._target(1, into)
            self.code.emit(o.EQ, d, inner, self.code.const(0))
            return d
        if op == "d2b":
            return self._equal(e.Op("!=", (args[0], e.Const(0))), into)
        if op == "valid":
            header = None if isinstance(args[0], e.HeaderRef) else self.header_id(args[0])
            d = self._target(1, into)
            if header is None:
                self.code.emit(o.LD8, d, self.layout.valid[args[0].header])
            else:
                self.code.emit(o.HVALID, d, header)
            return d
        if op == "valid_union":
            member = self._valid_member(args[0])
            d = self._target(1, into)
            self.code.emit(o.NE, d, member, self.code.const(-1))
            return d
        raise Unsupported(f"the operator {op}")

    def _valid_member(self, union: e.Expr) -> int:
        d = self.code.temp()
        self.code.emit(o.UVALID, d, self.union_list(union), self._union_size(union))
        return d

    def _union_size(self, union: e.Expr) -> int:
        if isinstance(union, e.UnionRef):
            return len(self.program.unions[union.union].headers)
        if isinstance(union, e.StackElement):
            return len(self.program.union_stacks[union.stack.stack].members)
        return self._union_size(union.args[1])

    def _equal(self, node: e.Op, into: int | None) -> int:
        left, right = node.args
        is_same, is_different = (o.EQ, o.NE) if node.op == "==" else (o.NE, o.EQ)
        if left.kind in (e.HEADER, e.UNION):
            member = self.header_id if left.kind == e.HEADER else self._valid_member
            cells = member(left), member(right)
            equal = self.code.temp()
            self.code.emit(o.HEQ, equal, *cells, int(left.kind == e.UNION))
            d = self._target(1, into)
            self.code.emit(is_different, d, equal, self.code.const(0))
            return d
        a, b, n, _ = self._pair(left, right)
        d = self._target(1, into)
        if n == 1:
            self.code.emit(is_same, d, a, b)
        else:
            order = self.code.temp()
            self.code.emit(o.WCMP, order, a, b, n)
            self.code.emit(is_same, d, order, self.code.const(0))
        return d

    def _pair(self, left: e.Expr, right: e.Expr) -> tuple[int, int, int, bool]:
        """Both values exactly, in limbs enough for both: (cell, cell, limbs, signed)."""
        (a, b), (c, d) = self.interval(left), self.interval(right)
        interval = min(a, c), max(b, d)
        is_signed = interval[0] < 0
        n = exact_limbs(interval)
        if n > 1 and not is_signed:
            n = limbs(bits_of(interval) + 1)  # WCMP is signed
        if n > MAX_LIMBS:
            raise Unsupported("a value of unbounded width")
        return self.cells(left, n), self.cells(right, n), n, is_signed

    def _order(self, node: e.Op, into: int | None) -> int:
        (left, right), op = node.args, node.op
        if op in _SWAPPED:
            left, right, op = right, left, _SWAPPED[op]
        (a_low, a_high), (b_low, b_high) = self.interval(left), self.interval(right)
        if a_high < b_low or (op == "<=" and a_high == b_low):
            return self._moved(self.code.const(1), 1, into)
        if a_low > b_high or (op == "<" and a_low == b_high):
            return self._moved(self.code.const(0), 1, into)
        a, b, n, is_signed = self._pair(left, right)
        d = self._target(1, into)
        if n == 1:
            self.code.emit(_COMPARE[op, is_signed], d, a, b)
        else:
            order = self.code.temp()
            self.code.emit(o.WCMP, order, a, b, n)
            self.code.emit(_COMPARE[op, True], d, order, self.code.const(0))
        return d

    def jump_unless(self, condition: e.Expr, label: Label) -> None:
        """Go to the label if the condition is false."""
        low, high = self.interval(condition)
        if low == high:
            if not low:
                self.code.emit(o.JMP, label)
            return
        self.code.emit(o.JZ, self.narrow(condition), label)
