"""The loader's part for expressions and primitive calls: JSON's type-value objects to nodes of `expr`. The kinds of
all operands are checked, so that neither engine meets a boolean in place of a number."""

from __future__ import annotations

from emulator.p4switch.program import expr as e
from emulator.p4switch.program import ir
from emulator.p4switch.program.headers import header_type, sample_union
from emulator.p4switch.program.loader.context import Names, expect, field_in, hex_int, reading, source_of
from switchml.errors import ProgramError

DEREFERENCE = ("dereference_stack", "dereference_header_stack", "dereference_union_stack")


def expression(names: Names, obj: dict) -> e.Expr:
    """A type-value object as an expression."""
    sort, value = obj["type"], obj["value"]
    if sort == "expression":
        return expression(names, value) if "type" in value else _operation(names, value)
    if sort == "hexstr":
        return e.Const(hex_int(value))
    if sort == "bool":
        return e.Bool(int(expect(value, bool, "a bool")))
    if sort == "field":
        return names.field(value)
    if sort in ("local", "runtime_data"):
        return e.Local(expect(value, int, "the index of an action's argument"))
    if sort == "header":
        return e.HeaderRef(names.find("header", value))
    if sort == "header_stack":
        return e.StackRef(names.find("header stack", value))
    if sort == "header_union":
        return e.UnionRef(names.find("header union", value))
    if sort == "header_union_stack":
        return e.UnionStackRef(names.find("header union stack", value))
    if sort == "stack_field":
        return stack_last(names, value)
    if sort == "register":
        return e.RegisterRef(names.find("register array", value[0]), data(names, value[1]))
    raise ProgramError(f"an expression can't have the type {sort!r}")


def data(names: Names, obj: dict) -> e.Expr:
    """An expression that must give a number."""
    return _of_kind(expression(names, obj), e.DATA)


def condition(names: Names, obj: dict) -> e.Expr:
    """An expression that must give a boolean."""
    return _of_kind(expression(names, obj), e.BOOL)


def stack_last(names: Names, value: list) -> e.StackLast:
    """["stack", "field"] as a node."""
    stack = names.find("header stack", value[0])
    return e.StackLast(stack, field_in(names.stacks[stack].type, value[1]))


def _of_kind(node: e.Expr, kind: str) -> e.Expr:
    if node.kind != kind:
        raise ProgramError(f"an expression gives a {node.kind} where a {kind} is needed")
    return node


def _operation(names: Names, value: dict) -> e.Expr:
    op, left, right = value["op"], value.get("left"), value.get("right")
    if op in DEREFERENCE:
        return element(names, expression(names, left), data(names, right))
    if op == "access_field":
        return access(names, _of_kind(expression(names, left), e.HEADER), expect(right, int, "a field's index"))
    if op == "access_union_header":
        return member(names, _of_kind(expression(names, left), e.UNION), expect(right, int, "a member's index"))
    if op not in e.OPERATORS:
        raise ProgramError(f"the operator {op!r} is not supported")
    args = [expression(names, arg) for arg in (left, right) if arg is not None]
    if op == "?":
        args.insert(0, expression(names, value["cond"]))
    elif op in ("+", "-") and left is None:
        args.insert(0, e.Const(0))
    return e.Op(op, tuple(_checked(op, args)))


def _checked(op: str, args: list[e.Expr]) -> list[e.Expr]:
    kinds = e.OPERATORS[op][0]
    if len(args) != len(kinds):
        raise ProgramError(f"the operator {op!r} has {len(args)} operands, not {len(kinds)}")
    if op == "last_stack_index" or op == "size_stack":
        kinds = (args[0].kind if args[0].kind in (e.STACK, e.UNION_STACK) else e.STACK,)
    of_any = [arg.kind for arg, kind in zip(args, kinds, strict=True) if kind == e.ANY]
    if len(set(of_any)) > 1:
        raise ProgramError(f"the sides of {op!r} differ in kind: {' and '.join(of_any)}")
    return [arg if kind == e.ANY else _of_kind(arg, kind) for arg, kind in zip(args, kinds, strict=True)]


def element(names: Names, stack: e.Expr, index: e.Expr) -> e.Expr:
    """stack[index]; with a constant index the element itself, or an error if there is no such element."""
    if stack.kind not in (e.STACK, e.UNION_STACK):
        raise ProgramError(f"a {stack.kind} has no elements")
    if not isinstance(index, e.Const) or not isinstance(stack, e.StackRef | e.UnionStackRef):
        return e.StackElement(stack, index)
    of_headers = isinstance(stack, e.StackRef)
    elements = names.stacks[stack.stack].headers if of_headers else names.union_stacks[stack.stack].unions
    if not 0 <= index.value < len(elements):
        # p4c leaves such code in branches that are never taken; it fails when it runs, not here.
        return e.StackElement(stack, index)
    chosen = elements[index.value]
    return e.HeaderRef(chosen) if of_headers else e.UnionRef(chosen)


def access(names: Names, header: e.Expr, field: int) -> e.Expr:
    """Field number `field` of a header; of a known header the field itself."""
    kind = header_type(names, header)
    if field == len(kind.fields):  # BMv2 numbers $valid$ after the fields of the type
        field = e.VALID
    elif not 0 <= field < len(kind.fields):
        raise ProgramError(f"header type {kind.name!r} has no field number {field}")
    return e.FieldRef(header.header, field) if isinstance(header, e.HeaderRef) else e.AccessField(header, field)


def member(names: Names, union: e.Expr, index: int) -> e.Expr:
    """Member number `index` of a union; of a known union the header itself."""
    headers = names.unions[sample_union(names, union)].headers
    if not 0 <= index < len(headers):
        raise ProgramError(f"a union has no member number {index}")
    return e.HeaderRef(headers[index]) if isinstance(union, e.UnionRef) else e.UnionMember(union, index)


# Primitives

OBJECTS = {
    "calculation": "calculation",
    "meter_array": "meter array",
    "counter_array": "counter array",
    "register_array": "register array",
}


def primitive(names: Names, obj: dict, n_params: int = 0) -> ir.Primitive:
    """A primitive call within an action of `n_params` parameters."""
    with reading("primitive", obj):
        op, parameters = obj["op"], obj["parameters"]
        if op not in ir.PRIMITIVES:
            raise ProgramError("no such primitive is known to simple_switch")
        sorts = ir.PRIMITIVES[op].split()
        if len(parameters) != len(sorts):
            raise ProgramError(f"has {len(parameters)} arguments, not {len(sorts)}")
        args = tuple(_argument(names, parameter) for parameter in parameters)
        for arg, sort in zip(args, sorts, strict=True):
            check_argument(arg, sort)
            for node in e.walk(arg):
                if isinstance(node, e.Local) and not 0 <= node.index < n_params:
                    raise ProgramError(f"uses argument {node.index} of an action that has {n_params}")
        return ir.Primitive(op, args, source_of(obj))


def _argument(names: Names, obj: dict) -> e.Expr:
    sort, value = obj["type"], obj["value"]
    if sort in OBJECTS:
        return e.ObjectRef(sort.removesuffix("_array"), names.find(OBJECTS[sort], value))
    if sort == "string":
        return e.Text(expect(value, str, "a string argument"))
    if sort in ("parameters_vector", "field_list"):
        return e.Vector(tuple(_argument(names, item) for item in value))
    if sort == "extern":
        raise ProgramError(f"extern instance {value!r}: simple_switch knows no externs")
    return expression(names, obj)


def check_argument(arg: e.Expr, sort: str) -> None:
    """Refuse an argument that is not of the sort that a primitive takes (see ir.PRIMITIVES)."""
    if sort == "value":
        is_right = arg.kind in (e.DATA, e.BOOL)
    elif sort == "place":
        is_right = isinstance(arg, e.FieldRef | e.StackLast | e.AccessField | e.RegisterRef)
        if getattr(arg, "field", 0) == e.VALID:
            raise ProgramError("$valid$ can't be written")
    elif sort == "stack":
        is_right = arg.kind in (e.STACK, e.UNION_STACK)
    elif sort == "header":
        is_right = arg.kind == e.HEADER
    elif sort == "union":
        is_right = arg.kind == e.UNION
    elif sort in ("text", "vector"):
        is_right = isinstance(arg, e.Text if sort == "text" else e.Vector)
    else:
        is_right = isinstance(arg, e.ObjectRef) and arg.sort == sort
    if not is_right:
        raise ProgramError(f"an argument is a {arg.kind} ({type(arg).__name__}), but should be a {sort}")
