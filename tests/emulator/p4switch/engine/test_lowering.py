"""Random expressions of all operators over fields of all sorts, stored into fields of all sorts, on both engines."""

import dataclasses
import random

import pytest

from emulator.p4switch.program import expr as e
from emulator.p4switch.program import ir
from tests.support.bmv2_engines import both, outcome

WIDTHS = (1, 3, 8, 13, 16, 31, 32, 48, 63, 64, 65, 100, 128, 200)
BINARY = ("+", "-", "*", "&", "|", "^", "<<", ">>", "two_comp_mod", "sat_cast", "usat_cast")
COMPARE = ("==", "!=", "<", "<=", ">", ">=")


def fields(signed: bool) -> tuple[ir.Field, ...]:
    """One of each width (signed ones of up to 48 bits: others are for the interpreter), padded to whole bytes."""
    members, offset = [], 0
    for width in WIDTHS:
        is_signed = signed and 1 < width <= 48
        members.append(ir.Field(f"f{width}", width, offset, is_signed))
        offset += width
    if offset % 8:
        members.append(ir.Field("padding", -offset % 8, offset))
        offset += -offset % 8
    return tuple(members)


def with_fields(program: ir.Program, calls: tuple[ir.Primitive, ...]) -> ir.Program:
    """plain.p4's Ethernet header and metadata with these fields, and `calls` as the ingress' first action."""
    headers = list(program.headers)
    wire = next(header for header in headers if not header.is_metadata)
    scalars = next(header for header in headers if header.is_metadata and header.name == "scalars")
    for header, signed in ((wire, False), (scalars, True)):
        width = sum(field.width for field in fields(signed))
        kind = dataclasses.replace(header.type, fields=fields(signed), width=width)
        headers[header.index] = dataclasses.replace(header, type=kind)
    action = ir.Action("random", 1000, (), calls)
    pipeline = program.pipeline("ingress")
    node = ir.ActionCall("random", 1000, len(program.actions), ir.END)
    return dataclasses.replace(
        program,
        headers=tuple(headers),
        actions=(*program.actions, action),
        nodes=(*program.nodes, node),
        pipelines=tuple(
            dataclasses.replace(p, init_node=len(program.nodes) if p is pipeline else ir.END) for p in program.pipelines
        ),
        parsers=(_parser(program, wire.index),),
        deparsers=(dataclasses.replace(program.deparsers[0], order=(wire.index,), primitives=()),),
        tables=(),
        checksums=(),
        field_lists=(),
        learn_lists=(),
        calculations=(),
    )


def _parser(program: ir.Program, header: int) -> ir.Parser:
    state = ir.ParseState("start", 0, (ir.Extract(e.HeaderRef(header)),), (), ())
    return dataclasses.replace(program.parsers[0], states=(state,), init_state=0)


class Expressions:
    """Random expressions over the fields of two headers."""

    def __init__(self, seed: int, headers: tuple[int, ...]) -> None:
        self.random = random.Random(seed)
        self.headers = headers

    def field(self) -> e.FieldRef:
        return e.FieldRef(self.random.choice(self.headers), self.random.randrange(len(WIDTHS)))

    def const(self) -> e.Const:
        value = self.random.getrandbits(self.random.choice((1, 8, 33, 64, 130)))
        return e.Const(self.random.choice((value, -value, (1 << value.bit_length()) - 1)))

    def data(self, depth: int) -> e.Expr:
        draw = self.random.random()
        if depth == 0 or draw < 0.15:
            return self.field() if self.random.random() < 0.7 else self.const()
        if draw < 0.22:
            return e.Op("?", (self.condition(depth - 1), self.data(depth - 1), self.data(depth - 1)))
        if draw < 0.27:
            return e.Op("~", (self.data(depth - 1),))
        if draw < 0.3:
            return e.Op("b2d", (self.condition(depth - 1),))
        op = self.random.choice(BINARY)
        left = self.data(depth - 1)
        if op in ("two_comp_mod", "sat_cast", "usat_cast"):
            return e.Op(op, (left, e.Const(self.random.choice(WIDTHS))))
        if op in ("<<", ">>"):
            by = e.Const(self.random.randrange(70)) if draw < 0.6 else e.Op("&", (self.field(), e.Const(0x7F)))
            return e.Op(op, (left, by))
        right = self.data(depth - 1)
        if op in "+-" and self.random.random() < 0.4:
            return e.Op("&", (e.Op(op, (left, right)), e.Const((1 << self.random.choice(WIDTHS)) - 1)))
        return e.Op(op, (left, right))

    def condition(self, depth: int) -> e.Expr:
        draw = self.random.random()
        if depth > 0 and draw < 0.2:
            return e.Op(self.random.choice(("and", "or")), (self.condition(depth - 1), self.condition(depth - 1)))
        if depth > 0 and draw < 0.3:
            return e.Op("not", (self.condition(depth - 1),))
        if draw < 0.4:
            return e.Op("d2b", (self.data(max(depth - 1, 0)),))
        return e.Op(self.random.choice(COMPARE), (self.data(max(depth - 1, 0)), self.data(max(depth - 1, 0))))


@pytest.mark.slow(keep=40)
@pytest.mark.parametrize("seed", range(120))
def test_random_expressions(program, seed):
    """Twelve assignments one after the other, then every field of metadata comes out through the header."""
    base = program("arithmetic")
    wire = next(header.index for header in base.headers if not header.is_metadata)
    scalars = next(header.index for header in base.headers if header.name == "scalars")
    maker = Expressions(seed, (wire, scalars))
    calls = [ir.Primitive("assign", (maker.field(), maker.data(maker.random.randrange(1, 5)))) for _ in range(12)]
    shown = maker.random.sample(range(len(WIDTHS)), 7)
    calls += [
        ir.Primitive(
            "assign",
            (
                e.FieldRef(wire, k),
                e.Op("^", (e.FieldRef(scalars, k), e.Op(">>", (e.FieldRef(scalars, k), e.Const(5))))),
            ),
        )
        for k in shown
    ]
    random_program = with_fields(base, tuple(calls))
    n_bytes = random_program.headers[wire].type.width // 8
    packets = [
        (1, maker.random.choice((maker.random.randbytes(n_bytes), bytes(n_bytes), b"\xff" * n_bytes)) + b"rest")
        for _ in range(12)
    ]
    reference, compiled = (outcome(switch, packets) for switch in both(random_program))
    assert all(len(sent) == 1 for sent in reference[0])
    assert compiled == reference


@pytest.mark.parametrize("op", ["/", "%"])
def test_division(program, op):
    """Towards zero, and 0 for a divisor of 0."""
    base = program("arithmetic")
    wire = next(header.index for header in base.headers if not header.is_metadata)
    pairs = [(left, right) for left in (7, -7, 0, 255) for right in (0, 2, -2, 9)]
    calls = tuple(
        ir.Primitive(
            "assign",
            (
                e.FieldRef(wire, 9),
                e.Op(
                    "+",
                    (
                        e.Op("*", (e.FieldRef(wire, 9), e.Const(31))),
                        e.Op(op, (e.Op("+", (e.Const(left), e.FieldRef(wire, 0))), e.Const(right))),
                    ),
                ),
            ),
        )
        for left, right in pairs
    )
    divided = with_fields(base, calls)
    packets = [(1, bytes([first]) + bytes(divided.headers[wire].type.width // 8)) for first in (0, 128)]
    reference, compiled = (outcome(switch, packets) for switch in both(divided))
    assert compiled == reference
