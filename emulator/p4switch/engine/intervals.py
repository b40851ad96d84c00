"""Intervals of the values of expressions, from which the lowering determines which sums fit 64 bits, which comparisons
are signed, and which values need several limbs."""

from dataclasses import dataclass

from emulator.p4switch.engine.code import Unsupported
from emulator.p4switch.program import expr as e
from emulator.p4switch.program import ir
from emulator.p4switch.values import mask

MAX_BITS = 1 << 14
"""Limit on the width of values: no code needs all bits of wider ones."""

Interval = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Cell(e.Expr):
    """A value stored in `n_limbs` cells from `offset`: an unsigned number of `width` bits."""

    offset: int
    n_limbs: int
    width: int


def bits_of(interval: Interval) -> int:
    """Bits of a two's complement number that holds all values, without the sign bit if none is negative."""
    low, high = interval
    if low >= 0:
        return max(high.bit_length(), 1)
    return max((-low - 1).bit_length(), high.bit_length()) + 1


def exact_limbs(interval: Interval) -> int:
    """Limbs that hold all values, unsigned if none is negative."""
    return (bits_of(interval) + 63) // 64


class Intervals:
    """`interval(node)` for nodes of one program; `params` are the current action's parameters."""

    def __init__(self, program: ir.Program) -> None:
        self.program = program
        self.params: tuple[ir.Param, ...] = ()
        self._known: dict[e.Expr, Interval] = {}

    def set_params(self, params: tuple[ir.Param, ...]) -> None:
        """Set the action whose expressions follow."""
        if params != self.params:
            self.params = params
            self._known.clear()

    def __call__(self, node: e.Expr) -> Interval:
        interval = self._known.get(node)
        if interval is None:
            for part in e.walk(node):  # children first, so that deep trees don't recurse
                if part not in self._known and part.kind in (e.DATA, e.BOOL):
                    low, high = self._known[part] = self._of(part)
                    if max(-low, high).bit_length() > MAX_BITS:  # limit the width; usually few bits are needed
                        self._known[part] = -(1 << MAX_BITS), 1 << MAX_BITS
            interval = self._known[node]
        return interval

    def _of(self, node: e.Expr) -> Interval:
        if node.kind == e.BOOL:
            return (node.value, node.value) if isinstance(node, e.Bool) else (0, 1)
        if isinstance(node, e.Const):
            return node.value, node.value
        if isinstance(node, e.FieldRef | e.AccessField):
            if node.field == e.VALID:
                return 0, 1
            field = ir.header_type(self.program, node).fields[node.field]
            return (-(1 << (field.width - 1)) if field.signed and field.width else 0), mask(field.width)
        if isinstance(node, e.Local):
            return 0, mask(self.params[node.index].width)
        if isinstance(node, e.RegisterRef):
            return 0, mask(self.program.registers[node.array].width)
        if isinstance(node, e.Lookahead | Cell):
            return 0, mask(node.width)
        if isinstance(node, e.Op):
            return self._op(node)
        raise Unsupported(f"the expression {type(node).__name__}")

    def _op(self, node: e.Op) -> Interval:
        op = node.op
        if op in ("last_stack_index", "size_stack"):
            return -1, 1 << 16
        if op == "?":
            (a, b), (c, d) = self(node.args[1]), self(node.args[2])
            return min(a, c), max(b, d)
        a, b = self(node.args[0])
        if op == "~":
            return -b - 1, -a - 1
        if op == "b2d":
            return 0, 1
        c, d = self(node.args[1])
        if op == "+":
            return a + c, b + d
        if op == "-":
            return a - d, b - c
        if op == "*":
            corners = (a * c, a * d, b * c, b * d)
            return min(corners), max(corners)
        if op in "&|^":
            return self._bitwise(op, (a, b), (c, d))
        if op == "<<":
            shift = min(max(d, 0), MAX_BITS)
            return min(a << shift, a), max(b << shift, b)
        if op == ">>":
            low, high = min(max(c, 0), MAX_BITS), min(max(d, 0), MAX_BITS)
            return min(a >> low, a >> high), max(b >> low, b >> high)
        if op == "/":
            return (0, b) if min(a, c) >= 0 else (-max(-a, b), max(-a, b))
        if op == "%":
            most = max(min(max(-a, b), max(-c, d) - 1), 0)
            return (0 if a >= 0 else -most), (most if b > 0 else 0)
        if op in ("two_comp_mod", "sat_cast", "usat_cast"):
            if not isinstance(node.args[1], e.Const):
                raise Unsupported(f"{op} with a computed width")
            width = max(node.args[1].value, 0)
            low, high = (
                (0, mask(width)) if op == "usat_cast" else (-(1 << width >> 1), (1 << width >> 1) - 1 if width else 0)
            )
            if low <= a and b <= high:
                return a, b
            return (low, high) if op == "two_comp_mod" else (max(low, min(a, high)), min(high, max(b, low)))
        raise Unsupported(f"the operator {op}")

    @staticmethod
    def _bitwise(op: str, left: Interval, right: Interval) -> Interval:
        if op == "&" and (left[0] >= 0 or right[0] >= 0):
            return 0, min(high for low, high in (left, right) if low >= 0)
        if left[0] >= 0 and right[0] >= 0:
            return 0, mask(max(left[1].bit_length(), right[1].bit_length()))
        n = max(bits_of((min(left[0], -1), left[1])), bits_of((min(right[0], -1), right[1]))) - 1
        return -(1 << n), mask(n)
