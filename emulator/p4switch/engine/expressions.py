"""Lowering of expressions: a node and a number of limbs in, cells of the frame that hold its value modulo 2^(64 limbs)
out.

Values are unbounded in P4's IR, but only a few low limbs are computed (the demanded bits): +, -, * and << need only as
many of their operands, and an `&` with a constant no more than the constant has. Where all bits matter (comparing, >>,
/), the operand's interval gives the number of limbs that is exact. A node is computed once within a basic block
(`memo`), until something that it reads is written (blocks.py)."""

from __future__ import annotations

from emulator.p4switch.engine import opcodes as o
from emulator.p4switch.engine.code import Code, Label, Unsupported
from emulator.p4switch.engine.fields import MAX_LIMBS, Fields
from emulator.p4switch.engine.intervals import Cell, bits_of, exact_limbs
from emulator.p4switch.engine.layout import Layout, Place, limbs
from emulator.p4switch.program import expr as e
from emulator.p4switch.program import ir
from emulator.p4switch.state.state import State
from emulator.p4switch.values import mask

_COMPARE = {("<", False): o.LTU, ("<=", False): o.LEU, ("<", True): o.LTS, ("<=", True): o.LES}
_SWAPPED = {">": "<", ">=": "<="}
_NARROW = {"+": o.ADD, "-": o.SUB, "*": o.MUL, "&": o.AND, "|": o.OR, "^": o.XOR}
_WIDE = {"+": o.WADD, "-": o.WSUB, "*": o.WMUL, "&": o.VAND, "|": o.VOR, "^": o.VXOR}


class Expressions(Fields):
    """Writes code that evaluates nodes."""

    def __init__(self, state: State, layout: Layout, code: Code) -> None:
        super().__init__(state, layout, code)
        self._arg_words: list[int] = []

    def set_action(self, params: tuple[ir.Param, ...]) -> None:
        """Set the action whose nodes follow: Local(i) is params[i], each in whole limbs, one after the other."""
        self.interval.set_params(params)
        self._arg_words, at = [], 0
        for param in params:
            self._arg_words.append(at)
            at += limbs(param.width)

    # Values

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
                cell = self._masked(left, width, into)
                if cell is not None:
                    return cell
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
        """Jump to the label if the condition is false."""
        low, high = self.interval(condition)
        if low == high:
            if not low:
                self.code.emit(o.JMP, label)
            return
        self.code.emit(o.JZ, self.narrow(condition), label)
