"""Expressions of the typed IR: small immutable nodes, hash-consed, so that structurally equal trees are one object.

p4c's copy propagation repeats whole trees; here a repeated tree costs one dictionary lookup, equality is identity, and
a pass that memoizes on nodes visits each distinct tree once. A node is created by calling its class with positional
arguments. Objects of the program (headers, stacks, registers …) are referenced by their index in the tuples of
`ir.Program`.

Every node has a `kind`, the kind of its value: DATA (an unbounded signed integer), BOOL, HEADER, STACK, UNION, or
OBJECT for nodes that are only arguments of primitives (a register array, a string, …)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from typing_extensions import Self, dataclass_transform
else:

    def dataclass_transform(**settings: Any) -> Any:
        """Fallback of typing.dataclass_transform, which exists since Python 3.11."""
        return lambda function: function


DATA, BOOL, HEADER, STACK, UNION, OBJECT = "data", "bool", "header", "header stack", "header union", "object"

VALID = -1
"""Field index of the hidden field `$valid$`."""

_nodes: WeakValueDictionary[Any, Any] = WeakValueDictionary()


class Expr:
    """Base class of all nodes: interns them, so that `==` and `is` agree."""

    kind: ClassVar[str] = DATA

    def __new__(cls, *args: Any) -> Self:
        key = (cls, args)
        node = _nodes.get(key)
        if node is None:
            node = _nodes[key] = object.__new__(cls)
        return node

    def __reduce__(self) -> tuple[type[Expr], tuple[Any, ...]]:  # unpickling interns again
        return type(self), tuple(getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]  # a dataclass

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    @property
    def children(self) -> tuple[Expr, ...]:
        """The expressions directly below this one."""
        nodes: list[Expr] = []
        for field in fields(self):  # type: ignore[arg-type]  # every node is a dataclass
            value = getattr(self, field.name)
            if isinstance(value, Expr):
                nodes.append(value)
            elif isinstance(value, tuple):
                nodes.extend(item for item in value if isinstance(item, Expr))
        return tuple(nodes)


T = TypeVar("T")


@dataclass_transform(frozen_default=True, eq_default=False)
def _node(cls: type[T]) -> type[T]:
    return dataclass(frozen=True, eq=False)(cls)


@_node
class Const(Expr):
    """An integer literal of any size or sign."""

    value: int


@_node
class Bool(Expr):
    """A literal `true` or `false`; `value` is 1 or 0."""

    kind = BOOL
    value: int


@_node
class FieldRef(Expr):
    """A field of a header instance. `field` is VALID for the hidden 1-bit field `$valid$`."""

    header: int
    field: int


@_node
class HeaderRef(Expr):
    """A header instance."""

    kind = HEADER
    header: int


@_node
class StackRef(Expr):
    """A stack of headers or of header unions."""

    kind = STACK
    stack: int


@_node
class StackElement(Expr):
    """The header stack[index], with an index computed at run time; for a stack of unions, a member, by its index, of
    the union at that position. JSON's "next" and "last" elements have the indices `size_stack` and `last_stack_index`.
    """

    kind = HEADER
    stack: StackRef
    member: int
    index: Expr


@_node
class Union(Expr):
    """A header union: the headers of its members. Only `assign_union` takes it as an argument: the loader expresses
    other operations in terms of the members."""

    kind = UNION
    members: tuple[Expr, ...]


@_node
class AccessField(Expr):
    """A field, by its index, of a header chosen at run time."""

    header: Expr
    field: int


@_node
class Local(Expr):
    """Argument number `index` of the current action."""

    index: int


@_node
class RegisterRef(Expr):
    """One cell of a register array."""

    array: int
    index: Expr


@_node
class Lookahead(Expr):
    """`width` bits of the packet, `offset` bits after the parsed part; only in parsers."""

    offset: int
    width: int


@_node
class Op(Expr):
    """An operator applied to its arguments; OPERATORS lists them. `?` has the arguments condition, left, right. Unary +
    and - are binary with a zero on the left, as in BMv2."""

    op: str
    args: tuple[Expr, ...]

    @property
    def kind(self) -> str:  # type: ignore[override]  # a plain attribute in other nodes
        return self.args[1].kind if self.op == "?" else OPERATORS[self.op][1]


@_node
class ObjectRef(Expr):
    """A register, counter or meter array or a calculation as an argument of a primitive: `sort` is "register",
    "counter", "meter" or "calculation"."""

    kind = OBJECT
    sort: str
    index: int


@_node
class Text(Expr):
    """A string argument (the format of log_msg)."""

    kind = OBJECT
    text: str


@_node
class Vector(Expr):
    """A list argument (the values of log_msg; a field list)."""

    kind = OBJECT
    items: tuple[Expr, ...]


ANY = "any"
"""In OPERATORS: any kind, but the same for both sides."""

OPERATORS: dict[str, tuple[tuple[str, ...], str]] = {
    **dict.fromkeys(("+", "-", "*", "/", "%", "<<", ">>", "&", "|", "^"), ((DATA, DATA), DATA)),
    **dict.fromkeys(("two_comp_mod", "sat_cast", "usat_cast"), ((DATA, DATA), DATA)),
    **dict.fromkeys((">", ">=", "<", "<="), ((DATA, DATA), BOOL)),
    **dict.fromkeys(("==", "!="), ((ANY, ANY), BOOL)),
    **dict.fromkeys(("and", "or"), ((BOOL, BOOL), BOOL)),
    "not": ((BOOL,), BOOL),
    "~": ((DATA,), DATA),
    "valid": ((HEADER,), BOOL),
    "valid_union": ((UNION,), BOOL),
    "d2b": ((DATA,), BOOL),
    "b2d": ((BOOL,), DATA),
    "last_stack_index": ((STACK,), DATA),
    "size_stack": ((STACK,), DATA),
    "?": ((BOOL, ANY, ANY), ANY),
}
"""Operator → (the kinds of its arguments, the kind of its result)."""


def walk(expr: Expr) -> Iterator[Expr]:
    """Yield each distinct node of `expr` once, children before parents."""
    seen: set[int] = set()
    stack: list[tuple[Expr, bool]] = [(expr, False)]
    while stack:
        node, is_done = stack.pop()
        if is_done:
            yield node
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((child, False) for child in reversed(node.children))
