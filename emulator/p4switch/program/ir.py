"""The typed representation of a P4 program: built by `loader` from BMv2's JSON, and read by the engines and the control
plane.

Frozen dataclasses of plain data; objects refer to each other by index in the tuples of `Program`; expressions are in
`expr`.

Names and meanings follow BMv2's docs/JSON_format.md (2.24). END stands for "no next": the end of a parser or pipeline.
"""

import functools
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from emulator.p4switch.program import expr as e
from emulator.p4switch.program.expr import VALID, Expr, FieldRef

END = -1
"""Next state or next node at the end of a parser or pipeline."""


@dataclass(frozen=True)
class Source:
    """Location of an object in the P4 source; `str()` returns "file.p4:12"."""

    filename: str = ""
    line: int = 0
    column: int = 0
    fragment: str = ""

    def __str__(self) -> str:
        return f"{self.filename}:{self.line}" if self.filename else ""


@dataclass(frozen=True)
class Named:
    """Name and id, common to most objects of the JSON; the control plane uses either."""

    name: str
    id: int


# Headers


@dataclass(frozen=True)
class Field:
    """A field of `width` bits (the maximum, if `is_varbit`), `offset` bits after the header's start."""

    name: str
    width: int
    offset: int
    signed: bool = False
    saturating: bool = False
    is_varbit: bool = False


@dataclass(frozen=True)
class HeaderType(Named):
    """A header type. `width`: total bits of the fixed-width fields. `varbit`: index of the one variable-width field, or
    None; `length`: expression for its width in bits, if the type itself specifies it (P4_14), in which Local(i) is
    field i of the header being extracted. `max_length`: maximum bytes of the whole header, 0 if unknown."""

    fields: tuple[Field, ...]
    width: int
    varbit: int | None = None
    length: Expr | None = None
    max_length: int = 0

    @functools.cached_property
    def field_index(self) -> Mapping[str, int]:
        return {**{f.name: i for i, f in enumerate(self.fields)}, "$valid$": VALID}


@dataclass(frozen=True)
class Header(Named):
    """A header instance. `union`: indices of all members of the union that it belongs to, or empty."""

    index: int
    type: HeaderType
    is_metadata: bool
    in_stack: bool = False
    union: tuple[int, ...] = ()


@dataclass(frozen=True)
class Stack(Named):
    """A stack of headers, or of unions with these `members`. With a column for each member, or one for headers:
    `types`, and `columns`, the indices of its headers, stack[0] first."""

    members: tuple[str, ...]
    types: tuple[HeaderType, ...]
    columns: tuple[tuple[int, ...], ...]

    @property
    def depth(self) -> int:
        return len(self.columns[0])


class HeaderLayout(Protocol):
    """A program's headers and stacks: a Program, or the loader's Names."""

    @property
    def headers(self) -> Sequence[Header]: ...

    @property
    def stacks(self) -> Sequence[Stack]: ...


def header_type(program: HeaderLayout, node: Expr) -> HeaderType:
    """Type of the header that a node denotes or whose field it denotes."""
    if isinstance(node, e.HeaderRef | e.FieldRef):
        return program.headers[node.header].type
    if isinstance(node, e.StackElement):
        return program.stacks[node.stack.stack].types[node.member]
    if isinstance(node, e.AccessField):
        return header_type(program, node.header)
    assert isinstance(node, e.Op)  # `?`
    return header_type(program, node.args[1])


# Actions


@dataclass(frozen=True)
class Primitive:
    """One call of a primitive; the loader's PRIMITIVES lists them. Jumps name the index of a primitive in the same
    action."""

    op: str
    args: tuple[Expr, ...]
    source: Source = field(default=Source(), compare=False)


@dataclass(frozen=True)
class Param:
    """A parameter of an action, `width` bits."""

    name: str
    width: int


@dataclass(frozen=True)
class Action(Named):
    """An action. `Local(i)` in its primitives is `params[i]`."""

    params: tuple[Param, ...]
    primitives: tuple[Primitive, ...]
    source: Source = field(default=Source(), compare=False)


# Parsers


@dataclass(frozen=True)
class Extract:
    """Extract a header. `target`: HeaderRef, or the StackElement for the stack's next element. `length`: width of the
    varbit field in bits, or None (the header type may then specify it)."""

    target: Expr
    length: Expr | None = None


@dataclass(frozen=True)
class Set:
    """Assign dest = value; the value may be a Lookahead."""

    dest: FieldRef
    value: Expr


@dataclass(frozen=True)
class Verify:
    """Stop parsing with this error code unless the condition holds."""

    condition: Expr
    error: Expr


@dataclass(frozen=True)
class Advance:
    """Skip this many bits of the packet."""

    bits: Expr


@dataclass(frozen=True)
class PrimitiveCall:
    """Call any primitive (assign_header, log_msg …)."""

    primitive: Primitive


ParserOp = Extract | Set | Verify | Advance | PrimitiveCall


@dataclass(frozen=True)
class SelectKey:
    """One element of a state's key: FieldRef, AccessField or Lookahead, `width` bits, padded to whole
    bytes in the key."""

    value: Expr
    width: int


@dataclass(frozen=True)
class Transition:
    """A transition, taken if key & mask == value & mask (mask None: all ones), or, if `vset` is given, if that parse
    value set contains the key; `mask` is then over the set's width. `value` and `mask` are over the byte-padded key."""

    next_state: int
    value: int = 0
    mask: int | None = None
    vset: int | None = None


@dataclass(frozen=True)
class ParseState(Named):
    """A parser state. `transitions` are tried in order; then `default` is taken."""

    ops: tuple[ParserOp, ...]
    key: tuple[SelectKey, ...]
    transitions: tuple[Transition, ...]
    default: int = END
    source: Source = field(default=Source(), compare=False)


@dataclass(frozen=True)
class Parser(Named):
    states: tuple[ParseState, ...]
    init_state: int


@dataclass(frozen=True)
class ParseVSet(Named):
    """A parse value set; its values have `width` bits (without padding between fields)."""

    width: int


@dataclass(frozen=True)
class Deparser(Named):
    """Runs `primitives`, then emits the valid headers of `order`."""

    order: tuple[int, ...]
    primitives: tuple[Primitive, ...] = ()


# State


@dataclass(frozen=True)
class RegisterArray(Named):
    size: int
    width: int


@dataclass(frozen=True)
class CounterArray(Named):
    """A counter array. `table`: index of the table, for a direct counter."""

    size: int
    table: int | None = None


@dataclass(frozen=True)
class MeterArray(Named):
    """A meter array. `counts_bytes`: rates are in bytes, not packets. A direct meter has a `table` and writes its color
    to `target`."""

    size: int
    rate_count: int
    counts_bytes: bool
    is_direct: bool = False
    table: int | None = None
    target: FieldRef | None = None


# Calculations


@dataclass(frozen=True)
class CalcInput:
    """Input of a calculation: a field, a header, a constant of `width` bits, or (None) the payload."""

    value: FieldRef | e.HeaderRef | e.Const | None
    width: int = 0


@dataclass(frozen=True)
class Calculation(Named):
    algo: str
    inputs: tuple[CalcInput, ...]


@dataclass(frozen=True)
class Checksum(Named):
    """A checksum. `calculation`: an index, or None for the built-in type "ipv4" (over the target's own header)."""

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
class LearnList(Named):
    """A digest: a sample is the values of `elements`."""

    elements: tuple[FieldRef, ...]


# Pipelines


@dataclass(frozen=True)
class KeyField:
    """One field of a table's key. `kind`: "exact", "lpm", "ternary", "range" or "valid" (`value` is then a `$valid$`
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
    """A const entry; `action` is an index. The lowest priority value wins."""

    match: tuple[MatchParam, ...]
    action: int
    args: tuple[int, ...]
    priority: int
    source: Source = field(default=Source(), compare=False)


@dataclass(frozen=True)
class DefaultEntry:
    """A default entry. `const_action`: the action can't be changed; `const_entry`: neither can its arguments."""

    action: int
    args: tuple[int, ...]
    const_action: bool = False
    const_entry: bool = False


SIMPLE, INDIRECT, INDIRECT_WS = "simple", "indirect", "indirect_ws"


@dataclass(frozen=True)
class Table(Named):
    """A match-action table. `index` is its index in Program.tables. `match_type`: "exact", "lpm", "ternary", "range";
    `type`: SIMPLE, INDIRECT (action profile) or INDIRECT_WS (with selector).

    Next nodes: `next_hit` and `next_miss` if `by_hit`, else `next_of_action[action index]`; a miss without a default
    entry continues at `next_default`."""

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
class Conditional(Named):
    condition: Expr
    next_true: int
    next_false: int
    source: Source = field(default=Source(), compare=False)


@dataclass(frozen=True)
class ActionCall(Named):
    """A call of an action without parameters outside any table."""

    action: int
    next_node: int


Node = Table | Conditional | ActionCall


@dataclass(frozen=True)
class ActionProfile(Named):
    """An action profile. `selector`: index of the calculation that selects a group's member (not in the JSON's
    calculations, but appended to Program.calculations), or None. `actions`: that its members may run."""

    max_size: int
    selector: int | None
    actions: tuple[int, ...]


@dataclass(frozen=True)
class Pipeline(Named):
    """A pipeline. `init_node` is an index in Program.nodes."""

    init_node: int


@dataclass(frozen=True)
class Program:
    """A whole program. Tuples are in the order of the JSON; `nodes` contains tables, conditionals and action calls of
    all pipelines; `tables` the tables among them. `errors`: number by name. `aliases`: name used by simple_switch →
    FieldRef. `text` is the original JSON."""

    name: str
    headers: tuple[Header, ...]
    stacks: tuple[Stack, ...]
    errors: Mapping[str, int]
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
    text: str = field(default="", repr=False, compare=False)

    @functools.cached_property
    def field_index(self) -> Mapping[str, FieldRef]:
        """All fields by the name "header.field", and the aliases, which take precedence."""
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
        """Width of a field in bits."""
        return 1 if ref.field == VALID else self.headers[ref.header].type.fields[ref.field].width

    @property
    def is_psa(self) -> bool:
        """Whether the program is for the Portable Switch Architecture rather than simple_switch."""
        return any(parser.name == "ingress_parser" for parser in self.parsers)

    @functools.cached_property
    def sets_valid(self) -> frozenset[FieldRef]:
        """The fields `$valid$` that parsers set, as p4c generated for some time. In BMv2 such a field then differs from
        the header's validity, which determines deparsing."""
        ops = (op for parser in self.parsers for state in parser.states for op in state.ops)
        return frozenset(op.dest for op in ops if isinstance(op, Set) and op.dest.field == VALID)

    def pipeline(self, name: str) -> Pipeline | None:
        return next((pipeline for pipeline in self.pipelines if pipeline.name == name), None)
