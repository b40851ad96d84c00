"""Loading of expressions and primitive calls: from JSON's type-value objects to nodes of `expr`. The kinds of all
operands are checked, so that engines never get a boolean where a number is expected."""

import functools
from typing import Any

from emulator.p4switch.program import expr as e
from emulator.p4switch.program import ir
from emulator.p4switch.program.loader.context import Json, Names, expect, field_in, hex_int, reading, source_of
from switchml.errors import ProgramError

REFERENCES = {
    "header": ("header", e.HeaderRef),
    "header_stack": ("header stack", e.StackRef),
    "header_union_stack": ("header union stack", e.StackRef),
}
"""Type of a reference → (the sort of its name, node)."""
DEREFERENCE = ("dereference_stack", "dereference_header_stack", "dereference_union_stack")


def expression(names: Names, obj: Json) -> e.Expr:
    """Convert a type-value object to an expression."""
    sort, value = obj["type"], obj["value"]
    if sort == "expression":
        return expression(names, value) if "type" in value else _operation(names, value)
    if sort == "hexstr":
        return e.Const(hex_int(value))
    if sort == "bool":
        return e.Bool(int(value))
    if sort == "field":
        return names.field(value)
    if sort in ("local", "runtime_data"):
        return e.Local(value)
    if sort in REFERENCES:
        what, node = REFERENCES[sort]
        return node(names.find(what, value))
    if sort == "header_union":
        return e.Union(tuple(e.HeaderRef(header) for header in names.unions[names.find("header union", value)]))
    if sort == "stack_field":
        return stack_last(names, *value)
    if sort == "register":
        return e.RegisterRef(names.find("register array", value[0]), data(names, value[1]))
    raise ProgramError(f"an expression can't have the type {sort!r}")


def data(names: Names, obj: Json) -> e.Expr:
    """Convert to an expression that must be a number."""
    return _of_kind(expression(names, obj), e.DATA)


def condition(names: Names, obj: Json) -> e.Expr:
    """Convert to an expression that must be a boolean."""
    return _of_kind(expression(names, obj), e.BOOL)


def stack_place(names: Names, place: str, name: str, member: str | None = None) -> e.StackElement:
    """The last element of a stack (`last_stack_index`) or the next one (`size_stack`); for a stack of unions, a member
    of it."""
    stack = e.StackRef(names.find("header stack" if member is None else "header union stack", name))
    members = names.stacks[stack.stack].members
    if member is not None and member not in members:
        raise ProgramError(f"union stack {name!r} has no member {member!r}")
    return e.StackElement(stack, 0 if member is None else members.index(member), e.Op(place, (stack,)))


def stack_last(names: Names, *path: str) -> e.AccessField:
    """A field of a stack's last element. `path`: names of the stack, of a member for a stack of unions, and of the
    field."""
    element = stack_place(names, "last_stack_index", *path[:-1])
    return e.AccessField(element, field_in(ir.header_type(names, element), path[-1]))


def _of_kind(node: e.Expr, kind: str) -> e.Expr:
    if node.kind != kind:
        raise ProgramError(f"an expression gives a {node.kind} where a {kind} is needed")
    return node


def _operation(names: Names, value: Json) -> e.Expr:
    op: str = value["op"]
    left: Any = value.get("left")
    right: Any = value.get("right")
    if op in DEREFERENCE:
        return element(names, expression(names, left), data(names, right))
    if op == "access_field":
        return access(names, _of_kind(expression(names, left), e.HEADER), expect(right, int, "a field's index"))
    if op == "access_union_header":
        return member(_of_kind(expression(names, left), e.UNION), expect(right, int, "a member's index"))
    if op not in e.OPERATORS:
        raise ProgramError(f"the operator {op!r} is not supported")
    args = [expression(names, arg) for arg in (left, right) if arg is not None]
    if op == "?":
        args.insert(0, expression(names, value["cond"]))
    elif op in ("+", "-") and left is None:
        args.insert(0, e.Const(0))
    args = _checked(op, args)
    return _on_unions(op, args) if args[-1].kind == e.UNION else e.Op(op, tuple(args))


def _on_unions(op: str, args: list[e.Expr]) -> e.Expr:
    """valid_union, ==, != or ? on unions in terms of their members, at most one of which is valid."""
    others = [arg for arg in args if not isinstance(arg, e.Union)]
    by_member = list(zip(*(arg.members for arg in args if isinstance(arg, e.Union)), strict=True))
    if op == "?":
        return e.Union(tuple(e.Op("?", (*others, *members)) for members in by_member))
    tests = [e.Op("valid" if op == "valid_union" else "==", members) for members in by_member]
    is_any = functools.reduce(lambda left, right: e.Op("or", (left, right)), tests)
    return e.Op("not", (is_any,)) if op == "!=" else is_any


def _checked(op: str, args: list[e.Expr]) -> list[e.Expr]:
    kinds = e.OPERATORS[op][0]
    if len(args) != len(kinds):
        raise ProgramError(f"the operator {op!r} has {len(args)} operands, not {len(kinds)}")
    of_any = [arg.kind for arg, kind in zip(args, kinds, strict=True) if kind == e.ANY]
    if len(set(of_any)) > 1:
        raise ProgramError(f"the sides of {op!r} differ in kind: {' and '.join(of_any)}")
    return [arg if kind == e.ANY else _of_kind(arg, kind) for arg, kind in zip(args, kinds, strict=True)]


def element(names: Names, stack: e.Expr, index: e.Expr) -> e.Expr:
    """stack[index]; with a constant index the element itself, if it exists. p4c generates code with invalid indices in
    branches that are never taken; it fails at run time, not here."""
    if not isinstance(stack, e.StackRef):
        raise ProgramError(f"a {stack.kind} has no elements")
    described, at = names.stacks[stack.stack], index.value if isinstance(index, e.Const) else -1
    elements = tuple(
        e.HeaderRef(column[at]) if 0 <= at < len(column) else e.StackElement(stack, member, index)
        for member, column in enumerate(described.columns)
    )
    return e.Union(elements) if described.members else elements[0]


def access(names: Names, header: e.Expr, field: int) -> e.Expr:
    """Field number `field` of a header; for a static header a FieldRef."""
    kind = ir.header_type(names, header)
    if field == len(kind.fields):  # BMv2 numbers $valid$ after the type's fields
        field = e.VALID
    elif not 0 <= field < len(kind.fields):
        raise ProgramError(f"header type {kind.name!r} has no field number {field}")
    return e.FieldRef(header.header, field) if isinstance(header, e.HeaderRef) else e.AccessField(header, field)


def member(union: e.Expr, index: int) -> e.Expr:
    """Member number `index` of a union."""
    assert isinstance(union, e.Union)
    if not 0 <= index < len(union.members):
        raise ProgramError(f"a union has no member number {index}")
    return union.members[index]


# Primitives

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
    "_Meter_execute": "meter value place", "_Counter_count": "counter value",
}  # fmt: skip
"""Primitive → the sorts of its arguments. A "value" is data or a boolean; a "place" is a writable field (or a register
cell)."""


OPERATOR_OF = {
    "add": "+", "subtract": "-", "bit_xor": "^", "bit_or": "|", "bit_and": "&", "shift_left": "<<", "shift_right": ">>",
    "add_to_field": "+", "subtract_from_field": "-",
}  # fmt: skip
"""Primitives that assign the result of an operator on their last two arguments."""
SAME_AS = {
    "modify_field": "assign",
    "copy_header": "assign_header",
    "assign_union_stack": "assign_header_stack",
    "clone_egress_pkt_to_egress": "clone_ingress_pkt_to_egress",
    "_Counter_count": "count",
}
"""Primitives that the engines implement under another name."""
OBJECTS = {
    "calculation": "calculation",
    "meter_array": "meter array",
    "counter_array": "counter array",
    "register_array": "register array",
}
KINDS = {"value": (e.DATA, e.BOOL), "stack": (e.STACK,), "header": (e.HEADER,), "union": (e.UNION,)}
NODES = {"place": (e.FieldRef, e.AccessField, e.RegisterRef), "text": (e.Text,), "vector": (e.Vector,)}
"""Sorts of arguments in PRIMITIVES → kinds or classes of their nodes; other sorts are those of an ObjectRef."""


def primitive(names: Names, obj: Json, n_params: int = 0) -> ir.Primitive:
    """Convert a primitive call within an action of `n_params` parameters."""
    with reading("primitive", obj):
        op: str = obj["op"]
        parameters: list[Json] = obj["parameters"]
        if op not in PRIMITIVES:
            raise ProgramError("no such primitive is known to simple_switch")
        sorts = PRIMITIVES[op].split()
        if len(parameters) != len(sorts):
            raise ProgramError(f"has {len(parameters)} arguments, not {len(sorts)}")
        args = tuple(_argument(names, parameter) for parameter in parameters)
        for arg, sort in zip(args, sorts, strict=True):
            _check_argument(arg, sort)
            for node in e.walk(arg):
                if isinstance(node, e.Local) and not 0 <= node.index < n_params:
                    raise ProgramError(f"uses argument {node.index} of an action that has {n_params}")
        if op in OPERATOR_OF:
            op, args = "assign", (args[0], e.Op(OPERATOR_OF[op], args[-2:]))
        return ir.Primitive(SAME_AS.get(op, op), args, source_of(obj))


def _argument(names: Names, obj: Json) -> e.Expr:
    sort, value = obj["type"], obj["value"]
    if sort in OBJECTS:
        return e.ObjectRef(sort.removesuffix("_array"), names.find(OBJECTS[sort], value))
    if sort == "string":
        return e.Text(value)
    if sort in ("parameters_vector", "field_list"):
        return e.Vector(tuple(_argument(names, item) for item in value))
    if sort == "extern":
        raise ProgramError(f"extern instance {value!r}: simple_switch knows no externs")
    return expression(names, obj)


def _check_argument(arg: e.Expr, sort: str) -> None:
    """Reject an argument that is not of the expected sort."""
    if sort in KINDS:
        is_right = arg.kind in KINDS[sort]
    elif sort in NODES:
        is_right = isinstance(arg, NODES[sort])
        if getattr(arg, "field", 0) == e.VALID:
            raise ProgramError("$valid$ can't be written")
    else:
        is_right = isinstance(arg, e.ObjectRef) and arg.sort == sort
    if not is_right:
        raise ProgramError(f"an argument is a {arg.kind} ({type(arg).__name__}), but should be a {sort}")
