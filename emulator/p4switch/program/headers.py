"""The typed IR's headers, stacks, unions, and actions; see `ir`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from emulator.p4switch.program import expr as e
from emulator.p4switch.program.expr import VALID, Expr


@dataclass(frozen=True)
class Source:
    """Where an object stands in the P4 source; `str()` gives "file.p4:12"."""

    filename: str = ""
    line: int = 0
    column: int = 0
    fragment: str = ""

    def __str__(self) -> str:
        return f"{self.filename}:{self.line}" if self.filename else ""


# Headers


@dataclass(frozen=True)
class Field:
    """`width` bits (the most it can have, if `is_varbit`), `offset` bits after the header's begin."""

    name: str
    width: int
    offset: int
    signed: bool = False
    saturating: bool = False
    is_varbit: bool = False


@dataclass(frozen=True)
class HeaderType:
    """`width`: bits of the fixed-width fields together. `varbit`: index of the one field of variable width, or None;
    `length`: the expression of its width in bits, if the type itself brings one (P4_14); Local(i) in it is field i of
    the header that is being extracted. `max_length`: the most bytes that the whole header can have, 0 if unknown."""

    name: str
    id: int
    fields: tuple[Field, ...]
    width: int
    varbit: int | None = None
    length: Expr | None = None
    max_length: int = 0

    @functools.cached_property
    def field_index(self) -> Mapping[str, int]:
        return {**{f.name: i for i, f in enumerate(self.fields)}, "$valid$": VALID}


@dataclass(frozen=True)
class Header:
    """A header instance. `stack` and `union`: what it is an element of, as (index, position)."""

    name: str
    id: int
    index: int
    type: HeaderType
    is_metadata: bool
    stack: tuple[int, int] | None = None
    union: tuple[int, int] | None = None


@dataclass(frozen=True)
class HeaderStack:
    """`headers`: indices of the elements, stack[0] first."""

    name: str
    id: int
    type: HeaderType
    headers: tuple[int, ...]


@dataclass(frozen=True)
class HeaderUnion:
    """`members`: names in the P4 type; `headers`: indices of the instances, in the same order; `stack`: (index,
    position) of the union stack that it is an element of."""

    name: str
    id: int
    members: tuple[str, ...]
    headers: tuple[int, ...]
    stack: tuple[int, int] | None = None


@dataclass(frozen=True)
class HeaderUnionStack:
    """`unions`: indices of the elements."""

    name: str
    id: int
    members: tuple[str, ...]
    unions: tuple[int, ...]


def header_type(program: Any, node: Expr) -> HeaderType:
    """The type of the header that a node gives. `program` is an ir.Program, or the loader's Names of one."""
    if isinstance(node, e.HeaderRef):
        return program.headers[node.header].type
    if isinstance(node, e.StackElement):
        return program.stacks[node.stack.stack].type
    if isinstance(node, e.UnionStackNext):
        return _member_type(program, program.union_stacks[node.stack].unions[0], node.member)
    if isinstance(node, e.UnionMember):
        return _member_type(program, sample_union(program, node.union), node.member)
    return header_type(program, node.args[1])  # the operator `?`


def _member_type(program: Any, union: int, member: int) -> HeaderType:
    return program.headers[program.unions[union].headers[member]].type


def sample_union(program: Any, node: Expr) -> int:
    """The index of some union of the type that a node gives."""
    if isinstance(node, e.UnionRef):
        return node.union
    if isinstance(node, e.StackElement):
        return program.union_stacks[node.stack.stack].unions[0]
    return sample_union(program, node.args[1])  # the operator `?`


# Actions

PRIMITIVES: dict[str, str] = {
    "assign": "place value", "assign_VL": "place place", "assign_header": "header header",
    "assign_union": "union union", "assign_header_stack": "stack stack", "assign_union_stack": "stack stack",
    "push": "stack value", "pop": "stack value", "exit": "", "assert": "value", "assume": "value",
    "log_msg": "text vector", "_jump": "value", "_jump_if_zero": "value value",
    "modify_field": "place value", "modify_field_rng_uniform": "place value value", "add_to_field": "place value",
    "subtract_from_field": "place value", "add": "place value value", "subtract": "place value value",
    "bit_xor": "place value value", "bit_or": "place value value", "bit_and": "place value value",
    "shift_left": "place value value", "shift_right": "place value value", "drop": "", "mark_to_drop": "header",
    "generate_digest": "value value", "add_header": "header", "add_header_fast": "header", "remove_header": "header",
    "copy_header": "header header", "clone_ingress_pkt_to_egress": "value value",
    "clone_egress_pkt_to_egress": "value value", "resubmit": "value", "recirculate": "value",
    "modify_field_with_hash_based_offset": "place value calculation value", "no_op": "",
    "execute_meter": "meter value place", "count": "counter value", "register_read": "place register value",
    "register_write": "register value value", "truncate": "value",
}  # fmt: skip
"""Primitive → the sorts of its arguments. A "value" is data or a boolean; a "place" is a field (or a register cell)
that can be written."""

OPERATOR_OF = {
    "add": "+", "subtract": "-", "bit_xor": "^", "bit_or": "|", "bit_and": "&", "shift_left": "<<", "shift_right": ">>",
}  # fmt: skip
"""Primitives that store what an operator makes of two values."""


@dataclass(frozen=True)
class Primitive:
    """One call; jumps name the index of a primitive in the same action."""

    op: str
    args: tuple[Expr, ...]
    source: Source = field(default=Source(), compare=False)


@dataclass(frozen=True)
class Param:
    """A parameter of an action, `width` bits."""

    name: str
    width: int


@dataclass(frozen=True)
class Action:
    """`Local(i)` in its primitives is `params[i]`."""

    name: str
    id: int
    params: tuple[Param, ...]
    primitives: tuple[Primitive, ...]
    source: Source = field(default=Source(), compare=False)
