"""The typed IR's parsers and deparsers; see `ir`."""

from __future__ import annotations

from dataclasses import dataclass, field

from emulator.p4switch.program.expr import Expr, FieldRef
from emulator.p4switch.program.headers import Primitive, Source

END = -1
"""As a next state or next node: the end."""


@dataclass(frozen=True)
class Extract:
    """`target`: HeaderRef, StackRef (the next element) or UnionStackNext. `length`: width of the varbit field in bits,
    or None (the header's type may give it then)."""

    target: Expr
    length: Expr | None = None


@dataclass(frozen=True)
class Set:
    """dest = value; the value may be a Lookahead."""

    dest: FieldRef
    value: Expr


@dataclass(frozen=True)
class Verify:
    """Stop with this error code unless the condition holds."""

    condition: Expr
    error: Expr


@dataclass(frozen=True)
class Advance:
    """Skip this many bits of the packet."""

    bits: Expr


@dataclass(frozen=True)
class Call:
    """Any primitive (assign_header, log_msg …)."""

    primitive: Primitive


ParserOp = Extract | Set | Verify | Advance | Call


@dataclass(frozen=True)
class SelectKey:
    """One element of a state's key: FieldRef, StackLast, UnionStackLast or Lookahead, `width` bits, which take up whole
    bytes in the key."""

    value: Expr
    width: int


@dataclass(frozen=True)
class Transition:
    """Taken if key & mask == value & mask (mask None: all ones), or, if `vset` is given, if that parse value set holds
    the key; `mask` is then over the set's width. `value` and `mask` are over the byte-padded key."""

    next_state: int
    value: int = 0
    mask: int | None = None
    vset: int | None = None


@dataclass(frozen=True)
class ParseState:
    """`transitions` are tried in order; then `default` is taken."""

    name: str
    id: int
    ops: tuple[ParserOp, ...]
    key: tuple[SelectKey, ...]
    transitions: tuple[Transition, ...]
    default: int = END
    source: Source = field(default=Source(), compare=False)


@dataclass(frozen=True)
class Parser:
    name: str
    id: int
    states: tuple[ParseState, ...]
    init_state: int


@dataclass(frozen=True)
class ParseVSet:
    """A parse value set; its values have `width` bits (padding between fields not counted)."""

    name: str
    id: int
    width: int


@dataclass(frozen=True)
class Deparser:
    """Runs `primitives`, then emits the valid headers of `order`."""

    name: str
    id: int
    order: tuple[int, ...]
    primitives: tuple[Primitive, ...] = ()
