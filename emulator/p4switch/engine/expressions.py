"""Lowering of expressions: from a node and a number of limbs to cells of the frame that hold its value modulo 2^(64
limbs).

Values are unbounded in P4's IR, but only the demanded low limbs are computed: +, -, * and << need only as many of their
operands, and an `&` with a constant only those of the constant. Where all bits matter (comparison, >>, /), the
operand's interval gives the exact number of limbs. A node is computed once within a basic block (`memo`), until a value
that it depends on is written (fields.py)."""

from emulator.p4switch.engine import opcodes as o
from emulator.p4switch.engine.code import Code, Label, Unsupported
from emulator.p4switch.engine.fields import MAX_LIMBS, Fields
from emulator.p4switch.engine.intervals import Cell, bits_of, exact_limbs
from emulator.p4switch.engine.layout import FieldLocation, Layout, limbs
from emulator.p4switch.program import expr as e
from emulator.p4switch.program import ir
from emulator.p4switch.state.state import State
from emulator.p4switch.values import mask

_COMPARE = {("<", False): o.LTU, ("<=", False): o.LEU, ("<", True): o.LTS, ("<=", True): o.LES}
_SWAPPED = {">": "<", ">=": "<="}
_MODULAR = {"+": o.ADD, "-": o.SUB, "*": o.MUL, "&": o.AND, "|": o.OR, "^": o.XOR, "~": o.NOT}
_DIVISION = {("/", True): o.DIVS, ("/", False): o.DIVU, ("%", True): o.REMS, ("%", False): o.REMU}


class Expressions(Fields):
    """Generates code that evaluates nodes."""

    def __init__(self, state: State, layout: Layout, code: Code) -> None:
        super().__init__(state, layout, code)
        self._arg_words: list[int] = []

    def set_action(self, params: tuple[ir.Param, ...]) -> None:
        """Set the action whose nodes follow: Local(i) is params[i]; parameters occupy whole limbs,
        one after the other."""
        self.interval.set_params(params)
        self._arg_words, at = [], 0
        for param in params:
            self._arg_words.append(at)
            at += limbs(param.width)

    # Values

    def cells(self, node: e.Expr, n: int, into: int | None = None) -> int:
        """Emit the node's value modulo 2^(64 n); returns the lowest of its n cells. The result is written to `into` if
        given."""
        low, high = self.interval(node)
        if low == high:
            return self._moved(self.code.const(low, n), n, into)
        location = self._slot(node)
        if location is not None and n <= location.n_limbs:
            return self._moved(location.offset, n, into)
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
        return cell if into is None or into == cell else self.code.result(o.MOV, cell, n=n, into=into)

    def _slot(self, node: e.Expr) -> FieldLocation | None:
        """The location of a field that can be used directly as an operand."""
        location = self.layout.locations.get(node) if isinstance(node, e.FieldRef) else None
        return None if location is None or location.is_wire else location

    def _compute(self, node: e.Expr, n: int, into: int | None) -> int:
        if isinstance(node, e.Op):
            return self._op(node, n, into)
        d = self.code.temp(n) if into is None else into
        if isinstance(node, e.FieldRef):
            self._load(node, n, d)
        elif isinstance(node, e.Local):
            for k in range(n):
                self.code.emit(o.ARG, d + 8 * k, self._arg_words[node.index] + k)
        elif isinstance(node, e.Lookahead):
            self.code.emit(o.PEEK, d, node.offset, node.width, n)
        elif isinstance(node, e.RegisterRef):
            index = self.index(node.index, "the index of a register")
            self.code.emit(o.REG, d, self.register_words(node.array), index, n)
        elif isinstance(node, e.AccessField):
            self._load_dynamic(node, n, d)
        else:
            raise Unsupported(f"the expression {type(node).__name__}")
        return d

    def register_words(self, array: int) -> int:
        """Constants that describe a register array: address, size, stride in bytes, mask of the top limb."""
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
            cells = self.narrow(args[0]), self.cells(args[1], n), self.cells(args[2], n)
            return self.code.result(o.SEL, *cells, n=n, into=into)
        if op in ("size_stack", "last_stack_index"):
            assert isinstance(args[0], e.StackRef)
            less = self.code.const(int(op == "last_stack_index"))
            return self.code.result(o.SUB, self.layout.next[args[0].stack], less, into=into)
        if op in (">>", "<<"):
            return self._shift(node, n, into)
        if op in _MODULAR:
            return self.code.result(_MODULAR[op], *(self.cells(arg, n) for arg in args), n=n, into=into)
        if op in ("/", "%"):
            return self._divide(node, n, into)
        return self._boolean(node, into)

    @staticmethod
    def _clamped(node: e.Op) -> e.Expr:
        """sat_cast and usat_cast expressed with `?`."""
        value, width = node.args[0], _width(node)
        low, high = (0, mask(max(width, 0))) if node.op == "usat_cast" else (-(1 << width >> 1), (1 << width >> 1) - 1)
        if width <= 0:
            return e.Const(0)
        below = e.Op("?", (e.Op("<", (value, e.Const(low))), e.Const(low), value))
        return e.Op("?", (e.Op(">", (value, e.Const(high))), e.Const(high), below))

    def _two_comp_mod(self, node: e.Op, n: int, into: int | None) -> int:
        value, width = node.args[0], _width(node)
        low, high = self.interval(value)
        if low >= -(1 << (width - 1)) and high < 1 << (width - 1) or 64 * n < width or width == 64:
            return self.cells(value, n, into)
        return self.code.result(o.SEXT, self.cells(value, n), width, n=n, into=into)

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
        return self.code.result(o.AND, self.cells(left, n), self.cells(right, n), n=n, into=into)

    def _masked(self, node: e.Expr, width: int, into: int | None) -> int | None:
        """Emit node & mask(width) as one instruction, or return None if there is none for it."""
        low_mask = self.code.const(mask(width))
        if isinstance(node, e.Op) and node.op in "+-" and width < 64 and (node, 1) not in self.memo:
            op = o.ADDM if node.op == "+" else o.SUBM
            operands = [self.narrow(arg) for arg in node.args]
            return self.code.result(op, *operands, low_mask, into=into)
        shift = 0
        if isinstance(node, e.Op) and node.op == ">>" and isinstance(node.args[1], e.Const):
            shift = max(node.args[1].value, 0)
            node = node.args[0]
        if isinstance(node, e.FieldRef) and node.field != e.VALID and (node, 1) not in self.memo:
            location = self.layout.locations.get(node)
            if location is not None and location.is_wire and not location.signed and shift < location.width:
                d = self.code.temp() if into is None else into
                self.load_bits(location, shift, min(width, location.width - shift), 1, d)
                return d
        low, high = self.interval(node)
        if 0 < shift < 64 and low >= 0 and high < 1 << 64:
            return self.code.result(o.SLICE, self.narrow(node), shift, low_mask, into=into)
        return None

    def _shift(self, node: e.Op, n: int, into: int | None) -> int:
        value, amount = node.args
        fixed = max(amount.value, 0) if isinstance(amount, e.Const) else None
        if node.op == "<<":
            by = self._shift_amount(amount, fixed)
            return self.code.result(o.SHL, self.cells(value, n), by, n=n, into=into)
        low, high = self.interval(value)
        exact = exact_limbs((low, high))
        k = exact if fixed is None else min(exact, (fixed + 64 * n + 63) // 64)
        if k > MAX_LIMBS:
            raise Unsupported("a value of unbounded width")
        inner, by = self.cells(value, k), self._shift_amount(amount, fixed)
        is_signed = low < 0 and k == exact
        if n == k == 1:
            return self.code.result(o.SHRS if is_signed else o.SHRU, inner, by, into=into)
        return self.code.result(o.WSHR, n, inner, k, by, int(is_signed), n=n, into=into)

    def _shift_amount(self, amount: e.Expr, fixed: int | None) -> int:
        return self.exact_narrow(amount, "a shift") if fixed is None else self.code.const(min(fixed, 1 << 30))

    def _divide(self, node: e.Op, n: int, into: int | None) -> int:
        left, right = node.args
        lows, highs = zip(self.interval(left), self.interval(right), strict=True)
        is_signed = min(lows) < 0
        if n > 1 or max(highs) >= 1 << (63 if is_signed else 64) or min(lows) <= -(1 << 63):
            raise Unsupported("division of numbers of more than 64 bits")
        return self.code.result(_DIVISION[node.op, is_signed], self.narrow(left), self.narrow(right), into=into)

    # Booleans

    def _boolean(self, node: e.Op, into: int | None) -> int:
        op, args = node.op, node.args
        if op in ("==", "!="):
            return self._equal(node, into)
        if op in ("<", "<=", ">", ">="):
            return self._order(node, into)
        if op in ("and", "or"):
            return self.code.result(o.AND if op == "and" else o.OR, *(self.narrow(arg) for arg in args), into=into)
        if op == "not":
            return self.code.result(o.EQ, self.narrow(args[0]), self.code.const(0), into=into)
        if op == "d2b":
            return self._equal(e.Op("!=", (args[0], e.Const(0))), into)
        if op == "valid":
            if isinstance(args[0], e.HeaderRef):
                return self.valid(args[0].header, into)
            return self.code.result(o.HVALID, self.header_id(args[0]), into=into)
        raise Unsupported(f"the operator {op}")

    def _equal(self, node: e.Op, into: int | None) -> int:
        left, right = node.args
        is_same, is_different = (o.EQ, o.NE) if node.op == "==" else (o.NE, o.EQ)
        if left.kind == e.HEADER:
            equal = self.code.result(o.HEQ, self.header_id(left), self.header_id(right))
            return self.code.result(is_different, equal, self.code.const(0), into=into)
        a, b, n, _ = self._pair(left, right)
        if n == 1:
            return self.code.result(is_same, a, b, into=into)
        return self.code.result(is_same, self.code.result(o.WCMP, a, b, n), self.code.const(0), into=into)

    def _pair(self, left: e.Expr, right: e.Expr) -> tuple[int, int, int, bool]:
        """Emit both values exactly, in enough limbs for both: (cell, cell, limbs, signed)."""
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
        if n > 1:
            a, b, is_signed = self.code.result(o.WCMP, a, b, n), self.code.const(0), True
        return self.code.result(_COMPARE[op, is_signed], a, b, into=into)

    def jump_unless(self, condition: e.Expr, label: Label) -> None:
        """Emit a jump to the label if the condition is false."""
        low, high = self.interval(condition)
        if low == high:
            if not low:
                self.code.emit(o.JMP, label)
            return
        self.code.emit(o.JZ, self.narrow(condition), label)


class Part:
    """Base class of lowering passes, which share the expressions' code and program."""

    def __init__(self, expressions: Expressions) -> None:
        self.ex = expressions
        self.code = expressions.code
        self.layout = expressions.layout
        self.program = expressions.program
        self.state = expressions.state


def _width(node: e.Op) -> int:
    """Width in bits that a cast converts to, a literal."""
    width = node.args[1]
    assert isinstance(width, e.Const)
    return width.value
