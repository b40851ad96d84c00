"""Loading of parsers, parse value sets and deparsers."""

from typing import Any

from emulator.p4switch.program import expr as e
from emulator.p4switch.program import ir
from emulator.p4switch.program.loader.context import Json, Names, hex_int, reading, source_of, unique_ids, width_of
from emulator.p4switch.program.loader.expressions import condition, data, primitive, stack_last, stack_place
from emulator.p4switch.values import n_bytes, pad_key, padded_width
from switchml.errors import ProgramError


def parser(names: Names, obj: Json) -> ir.Parser:
    numbers: dict[str | None, int] = {None: ir.END}
    for state in obj["parse_states"]:
        if state["name"] in numbers:
            raise ProgramError(f"there are two parse states named {state['name']!r}")
        numbers[state["name"]] = len(numbers) - 1
    states = []
    for state in obj["parse_states"]:
        with reading("parse state", state):
            states.append(_state(names, state, numbers))
    unique_ids("parse state", states)
    return ir.Parser(obj["name"], obj["id"], tuple(states), _next(numbers, obj["init_state"]))


def _next(numbers: dict[str | None, int], name: str | None) -> int:
    if name not in numbers:
        raise ProgramError(f"there is no parse state named {name!r}")
    return numbers[name]


def _state(names: Names, obj: Json, numbers: dict[str | None, int]) -> ir.ParseState:
    ops = []
    for op in obj["parser_ops"]:
        with reading("parser op", op):
            ops.append(_op(names, op["op"], op["parameters"]))
    key = tuple(_key(names, element) for element in obj["transition_key"])
    transitions, default = [], ir.END
    for transition in obj["transitions"]:
        with reading("transition of parse state", obj):
            next_state = _next(numbers, transition["next_state"])
            sort = transition.get("type", "hexstr")
            if sort == "default" or transition["value"] == "default":
                default = next_state
            elif sort == "hexstr":
                transitions.append(_by_value(transition, key, next_state))
            elif sort == "parse_vset":
                transitions.append(_by_vset(names, transition, key, next_state))
            else:
                raise ProgramError(f"a transition can't have the type {sort!r}")
    return ir.ParseState(obj["name"], obj["id"], tuple(ops), key, tuple(transitions), default, source_of(obj))


def _op(names: Names, op: str, parameters: list[Any]) -> ir.ParserOp:
    expected = {"extract": 1, "extract_VL": 2, "set": 2, "verify": 2, "shift": 1, "advance": 1, "primitive": 1}
    if op not in expected:
        raise ProgramError(f"the parser op {op!r} is not supported")
    if len(parameters) != expected[op]:
        raise ProgramError(f"has {len(parameters)} parameters, not {expected[op]}")
    first = parameters[0]
    if op in ("extract", "extract_VL"):
        target = _extract_target(names, first["type"], first["value"])
        kind = ir.header_type(names, target)
        if op == "extract" and kind.varbit is not None and kind.length is None:
            raise ProgramError(f"header type {kind.name!r} has a varbit field: extract needs its length")
        return ir.Extract(target, data(names, parameters[1]) if op == "extract_VL" else None)
    if op == "set":
        if first["type"] != "field":
            raise ProgramError(f"sets a {first['type']}, not a field")
        return ir.Set(names.field(first["value"]), _value(names, parameters[1]))
    if op == "verify":
        error = parameters[1]
        is_number = isinstance(error, int)  # an older form
        return ir.Verify(condition(names, first), e.Const(error) if is_number else data(names, error))
    if op == "shift":
        return ir.Advance(e.Const(8 * first))
    if op == "advance":
        return ir.Advance(data(names, first))
    return ir.PrimitiveCall(primitive(names, first))


def _extract_target(names: Names, sort: str, value: Any) -> e.Expr:
    if sort == "regular":
        return e.HeaderRef(names.find("header", value))
    if sort == "stack":
        return stack_place(names, "size_stack", value)
    if sort == "union_stack":
        return stack_place(names, "size_stack", *value)
    raise ProgramError(f"can't extract to a {sort!r}")


def _value(names: Names, obj: Json) -> e.Expr:
    return _lookahead(obj["value"]) if obj["type"] == "lookahead" else data(names, obj)


def _lookahead(value: list[int]) -> e.Lookahead:
    offset, width = value
    return e.Lookahead(width_of(offset, "the lookahead's offset"), width_of(width, "the lookahead's width"))


def _key(names: Names, obj: Json) -> ir.SelectKey:
    sort, value = obj["type"], obj["value"]
    if sort == "field":
        ref = names.field(value)
        return ir.SelectKey(ref, names.width(ref))
    if sort in ("stack_field", "union_stack_field"):
        last = stack_last(names, *value)
        return ir.SelectKey(last, ir.header_type(names, last).fields[last.field].width)
    if sort == "lookahead":
        lookahead = _lookahead(value)
        return ir.SelectKey(lookahead, lookahead.width)
    raise ProgramError(f"a transition key can't hold a {sort!r}")


def _sized(text: str, n: int, what: str) -> int:
    """Parse a hexstr that must be exactly `n` bytes long."""
    digits = text.removeprefix("0x")
    if n_bytes(4 * len(digits)) != n:
        raise ProgramError(f"the {what} {text} has {n_bytes(4 * len(digits))} bytes, but the key has {n}")
    return hex_int(text)


def _by_value(obj: Json, key: tuple[ir.SelectKey, ...], next_state: int) -> ir.Transition:
    n = n_bytes(padded_width([part.width for part in key]))
    cover = None if obj.get("mask") is None else _sized(obj["mask"], n, "mask")
    return ir.Transition(next_state, _sized(obj["value"], n, "value"), cover)


def _by_vset(names: Names, obj: Json, key: tuple[ir.SelectKey, ...], next_state: int) -> ir.Transition:
    index = names.find("parse value set", obj["value"])
    width, widths = names.parse_vsets[index].width, [part.width for part in key]
    if sum(widths) != width:
        raise ProgramError(f"value set {obj['value']!r} has {width} bits, the key of this state {sum(widths)}")
    text = obj.get("mask")
    cover = None if text is None else pad_key(_sized(text, n_bytes(width), "mask"), widths)
    return ir.Transition(next_state, mask=cover, vset=index)


def parse_vset(names: Names, obj: Json) -> ir.ParseVSet:
    return ir.ParseVSet(obj["name"], obj["id"], width_of(obj["compressed_bitwidth"], "compressed_bitwidth"))


def deparser(names: Names, obj: Json) -> ir.Deparser:
    order = tuple(names.find("header", name) for name in obj["order"])
    calls = tuple(primitive(names, call) for call in obj.get("primitives") or ())
    return ir.Deparser(obj["name"], obj["id"], order, calls)
