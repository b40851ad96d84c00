"""The typed form of a P4 program: what `loader` builds from BMv2's JSON, and the engines and the control plane read.
Frozen dataclasses of plain data; objects refer to each other by index in the tuples of `Program`; expressions are in
`expr`, the dataclasses of headers and parsers in `headers` and `parsers`; all are re-exported here.

Names and meanings follow BMv2's docs/JSON_format.md (2.24). END stands for "no next": the end of a parser or pipeline.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from dataclasses import dataclass, field

from emulator.p4switch.program.expr import VALID, Expr, FieldRef
from emulator.p4switch.program.headers import (
    PRIMITIVES,
    Action,
    Field,
    Header,
    HeaderStack,
    HeaderType,
    HeaderUnion,
    HeaderUnionStack,
    Param,
    Primitive,
    Source,
)
from emulator.p4switch.program.parsers import (
    END,
    Advance,
    Call,
    Deparser,
    Extract,
    Parser,
    ParserOp,
    ParseState,
    ParseVSet,
    SelectKey,
    Set,
    Transition,
    Verify,
)

__all__ = [
    "Action", "ActionCall", "ActionProfile", "Advance", "CalcInput", "Calculation", "Call", "Checksum",
    "Conditional", "CounterArray", "DefaultEntry", "Deparser", "END", "Entry", "Extract", "Field", "FieldList",
    "Header", "HeaderStack", "HeaderType", "HeaderUnion", "HeaderUnionStack", "INDIRECT", "INDIRECT_WS", "KeyField",
    "LearnList", "MatchParam", "MeterArray", "Node", "PRIMITIVES", "Param", "ParseState", "ParseVSet", "Parser",
    "ParserOp", "Pipeline", "Primitive", "Program", "RegisterArray", "SIMPLE", "SelectKey", "Set", "Source",
    "Table", "Transition", "Verify",
]  # fmt: skip


# State


@dataclass(frozen=True)
class RegisterArray:
    name: str
    id: int
    size: int
    width: int


@dataclass(frozen=True)
class CounterArray:
    """`table`: index of the table, if this is a direct counter."""

    name: str
    id: int
    size: int
    table: int | None = None


@dataclass(frozen=True)
class MeterArray:
    """`counts_bytes`: rates are bytes, not packets. A direct meter has a `table` and writes its colour to `target`."""

    name: str
    id: int
    size: int
    rate_count: int
    counts_bytes: bool
    is_direct: bool = False
    table: int | None = None
    target: FieldRef | None = None


# Calculations


@dataclass(frozen=True)
class CalcInput:
    """`kind` "field" (value: FieldRef), "header" (HeaderRef), "hexstr" (Const, in `width` bits) or "payload" (None)."""

    kind: str
    value: Expr | None = None
    width: int = 0


@dataclass(frozen=True)
class Calculation:
    name: str
    id: int
    algo: str
    inputs: tuple[CalcInput, ...]


@dataclass(frozen=True)
class Checksum:
    """`calculation`: an index, or None for the built-in type "ipv4" (over the target's own header)."""

    name: str
    id: int
    target: FieldRef
    calculation: int | None
    update: bool
    verify: bool
    condition: Expr | None = None


@dataclass(frozen=True)
class FieldList:
    """The fields that clone, resubmit and recirculate copy. `elements`: FieldRef or Const."""

    id: int
    elements: tuple[Expr, ...]


@dataclass(frozen=True)
class LearnList:
    """A digest: a sample is the values of `elements`."""

    name: str
    id: int
    elements: tuple[FieldRef, ...]


# Pipelines


@dataclass(frozen=True)
class KeyField:
    """One field of a table's key. `kind`: "exact", "lpm", "ternary", "range" or "valid" (then `value` is a `$valid$`
    field). `mask` is applied to its value, if not None."""

    kind: str
    value: FieldRef
    width: int
    name: str
    mask: int | None = None


@dataclass(frozen=True)
class MatchParam:
    """One field of an entry's key. `kind` as in KeyField; `extra` is the prefix length (lpm), the mask
    (ternary), or the upper end, inclusive (range)."""

    kind: str
    value: int
    extra: int = 0


@dataclass(frozen=True)
class Entry:
    """A const entry; `action` is an index. The lowest priority wins."""

    match: tuple[MatchParam, ...]
    action: int
    args: tuple[int, ...]
    priority: int
    source: Source = field(default=Source(), compare=False)


@dataclass(frozen=True)
class DefaultEntry:
    """`const_action`: the action can't be changed; `const_entry`: nothing can."""

    action: int
    args: tuple[int, ...]
    const_action: bool = False
    const_entry: bool = False


SIMPLE, INDIRECT, INDIRECT_WS = "simple", "indirect", "indirect_ws"


@dataclass(frozen=True)
class Table:
    """A match-action table. `index` is its place in Program.tables. `match_type`: "exact", "lpm", "ternary", "range";
    `type`: SIMPLE, INDIRECT (action profile) or INDIRECT_WS (with selector).

    Next nodes: `next_hit` and `next_miss` if `by_hit`, else `next_of_action[action index]`; a miss with no default
    entry goes to `next_default`."""

    name: str
    id: int
    index: int
    match_type: str
    type: str
    key: tuple[KeyField, ...]
    actions: tuple[int, ...]
    max_size: int
    with_counters: bool = False
    support_timeout: bool = False
    direct_meter: int | None = None
    action_profile: int | None = None
    by_hit: bool = False
    next_hit: int = END
    next_miss: int = END
    next_of_action: Mapping[int, int] = field(default_factory=lambda: types.MappingProxyType({}))
    next_default: int = END
    default: DefaultEntry | None = None
    entries: tuple[Entry, ...] | None = None
    source: Source = field(default=Source(), compare=False)


@dataclass(frozen=True)
class Conditional:
    name: str
    id: int
    condition: Expr
    next_true: int
    next_false: int
    source: Source = field(default=Source(), compare=False)


@dataclass(frozen=True)
class ActionCall:
    """An action without parameters that is called outside any table."""

    name: str
    id: int
    action: int
    next_node: int


Node = Table | Conditional | ActionCall


@dataclass(frozen=True)
class ActionProfile:
    """`selector`: index of the calculation that chooses a group's member (not in Program.calculations of the JSON, but
    appended to them), or None. `actions`: those that its members may run."""

    name: str
    id: int
    max_size: int
    selector: int | None
    actions: tuple[int, ...]


@dataclass(frozen=True)
class Pipeline:
    """`init_node` is an index in Program.nodes."""

    name: str
    id: int
    init_node: int


@dataclass(frozen=True)
class Program:
    """A whole program. Tuples are in the order of the JSON; `nodes` holds tables, conditionals and action calls of all
    pipelines; `tables` the tables among them. `errors` and `enums` give values by name. `aliases`: name that
    simple_switch uses → FieldRef. `text` is the JSON as it was read."""

    name: str
    header_types: tuple[HeaderType, ...]
    headers: tuple[Header, ...]
    stacks: tuple[HeaderStack, ...]
    unions: tuple[HeaderUnion, ...]
    union_stacks: tuple[HeaderUnionStack, ...]
    errors: Mapping[str, int]
    enums: Mapping[str, Mapping[str, int]]
    parse_vsets: tuple[ParseVSet, ...]
    parsers: tuple[Parser, ...]
    deparsers: tuple[Deparser, ...]
    registers: tuple[RegisterArray, ...]
    counters: tuple[CounterArray, ...]
    meters: tuple[MeterArray, ...]
    calculations: tuple[Calculation, ...]
    checksums: tuple[Checksum, ...]
    field_lists: tuple[FieldList, ...]
    learn_lists: tuple[LearnList, ...]
    actions: tuple[Action, ...]
    action_profiles: tuple[ActionProfile, ...]
    nodes: tuple[Node, ...]
    tables: tuple[Table, ...]
    pipelines: tuple[Pipeline, ...]
    aliases: Mapping[str, FieldRef]
    config_options: Mapping[str, str]
    text: str = field(default="", repr=False, compare=False)

    @functools.cached_property
    def field_index(self) -> Mapping[str, FieldRef]:
        """All fields by the name "header.field", and the aliases, which come first."""
        named = {
            f"{header.name}.{name}": FieldRef(header.index, index)
            for header in self.headers
            for name, index in header.type.field_index.items()
        }
        return {**named, **self.aliases}

    def field(self, name: str) -> FieldRef | None:
        """The field "header.field", or None if there is none."""
        return self.field_index.get(name)

    def field_name(self, ref: FieldRef) -> str:
        """The name of a field as "header.field"."""
        header = self.headers[ref.header]
        return f"{header.name}.{'$valid$' if ref.field == VALID else header.type.fields[ref.field].name}"

    def field_width(self, ref: FieldRef) -> int:
        """Bits."""
        return 1 if ref.field == VALID else self.headers[ref.header].type.fields[ref.field].width

    def pipeline(self, name: str) -> Pipeline | None:
        return next((pipeline for pipeline in self.pipelines if pipeline.name == name), None)
