"""The schema of BMv2's JSON (docs/JSON_format.md): which values are numbers, strings, lists and objects. It is checked
before loading, so that a malformed value is reported with its path, such as pipelines[0].tables[2].key[0].target.

Keys that are not listed are ignored. The meaning of values is checked by the modules that load them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from emulator.p4switch.values import MAX_WIDTH
from emulator.ranges import Range
from switchml.errors import ProgramError

WIDTH = Range(0, MAX_WIDTH)
"""Width in bits."""
CELLS = Range(0, 2**26)
"""Cells of an array of registers, counters or meters."""
RATES = Range(1, 16)
"""Number of a meter's rates."""
ENTRIES = Range(0, 2**32 - 1)
"""Declared number of entries of a table or an action profile."""
HEADER_BYTES = Range(0, MAX_WIDTH // 8)
CODE = Range(0, 2**32 - 1)
"""Number of a parser error."""
PRIORITY = Range(0, 2**31 - 1)
"""Priority of a const entry."""


@dataclass(frozen=True)
class Maybe:
    """An optional value, which may be missing or null."""

    shape: Any


@dataclass(frozen=True)
class Either:
    """One of several shapes, described by `words` in errors."""

    shapes: tuple[Any, ...]
    words: str


@dataclass(frozen=True)
class Values:
    """An object with arbitrary keys, whose values have this shape."""

    shape: Any


@dataclass(frozen=True)
class Null:
    """null, or this shape."""

    shape: Any


_WORDS = {int: "a whole number", str: "a string", bool: "true or false", list: "a list", dict: "an object"}


def check(value: Any, shape: Any, path: str) -> None:
    """Reject a value that does not have the shape: a type; the Range of an integer; {key: shape}; [shape of all
    elements]; (shapes of the elements); one of the classes above; or a function of (value, path). Raises ProgramError
    with the path."""
    match shape:
        case type():
            if type(value) is not shape:
                raise _wrong(value, path, _WORDS[shape])
            if isinstance(value, int) and not -(2**63) <= value < 2**63:
                raise _wrong(value, path, "a whole number of 64 bits")
        case Range():
            check(value, int, path)
            if value not in shape:
                raise _wrong(value, path, str(shape))
        case dict():
            check(value, dict, path)
            for key, inner in shape.items():
                if isinstance(inner, Maybe):
                    if value.get(key) is not None:
                        check(value[key], inner.shape, f"{path}.{key}")
                elif key not in value:
                    raise ProgramError(f"{path} lacks {key!r}")
                else:
                    check(value[key], inner, f"{path}.{key}")
        case [inner]:
            check(value, list, path)
            for number, element in enumerate(value):
                check(element, inner, f"{path}[{number}]")
        case tuple():
            check(value, list, path)
            if len(value) != len(shape):
                raise _wrong(value, path, f"a list of {len(shape)}")
            for number, (element, inner) in enumerate(zip(value, shape, strict=True)):
                check(element, inner, f"{path}[{number}]")
        case Values(inner):
            check(value, dict, path)
            for key, element in value.items():
                check(element, inner, f"{path}.{key}")
        case Null(inner):
            if value is not None:
                check(value, inner, path)
        case Either(shapes, words):
            if not any(_fits(value, inner, path) for inner in shapes):
                raise _wrong(value, path, words)
        case _:
            shape(value, path)


def _fits(value: Any, shape: Any, path: str) -> bool:
    try:
        check(value, shape, path)
    except ProgramError:
        return False
    return True


def _wrong(value: Any, path: str, expected: str) -> ProgramError:
    text = repr(value)
    return ProgramError(f"{path} is {text if len(text) <= 60 else text[:57] + '...'}, but should be {expected}")


# Values


def hexstr(value: Any, path: str) -> None:
    try:
        int(value if isinstance(value, str) else "", 16)
    except ValueError:
        raise _wrong(value, path, "a hexstr") from None


def field_of_type(value: Any, path: str) -> None:
    """[name, width, signed, saturating], of which the last two are optional; p4c generates [] for PSA's errors."""
    check(value, list, path)
    if value:
        whole = (str, Either((int, _star), "a whole number or '*'"), Either((bool, int), "true or false"), bool)
        check(value, whole[: min(max(len(value), 2), 4)], path)


def _star(value: Any, path: str) -> None:
    if value != "*":
        raise _wrong(value, path, "'*'")


def typed(value: Any, path: str) -> None:
    """A type-value object: an expression, a reference or a constant. Unknown types are rejected by the modules that
    load them."""
    check(value, {"type": str}, path)
    if value["type"] in _TYPED:
        check(value, {"value": _TYPED[value["type"]]}, path)


def _expression(value: Any, path: str) -> None:
    check(value, dict, path)
    if "type" in value:
        typed(value, path)
        return
    operand = Either((typed, int), "an expression") if value.get("op") in _BY_NUMBER else typed
    check(value, {"op": str, "left": Maybe(typed), "right": Maybe(operand), "cond": Maybe(typed)}, path)


def _vector(value: Any, path: str) -> None:
    if value != {}:  # p4c's representation of an empty vector
        check(value, [typed], path)


_BY_NUMBER = ("access_field", "access_union_header")
FIELD = (str, str)
_TYPED: dict[str, Any] = {
    "hexstr": hexstr, "bool": bool, "field": FIELD, "local": int, "runtime_data": int, "expression": _expression,
    "register": (str, typed), "string": str, "parameters_vector": _vector, "lookahead": (int, int),
    "stack_field": FIELD, "union_stack_field": (str, str, str), "union_stack": FIELD,
} | dict.fromkeys((
    "header", "header_stack", "header_union", "header_union_stack", "regular", "stack", "calculation", "meter_array",
    "counter_array", "register_array", "extern",
), str)  # fmt: skip

_SOURCE = {"filename": Maybe(str), "line": Maybe(int), "column": Maybe(int), "source_fragment": Maybe(str)}
_PLACED = {"source_info": Maybe(_SOURCE)}
NAMED = _PLACED | {"name": str, "id": int}
PRIMITIVE = _PLACED | {"op": str, "parameters": [typed]}
_STEP = Null(str)
"""Name of the next node or state; null: the end."""


def parser_op(value: Any, path: str) -> None:
    check(value, _PLACED | {"op": str, "parameters": list}, path)
    by_op: dict[str, Any] = {"shift": int, "primitive": PRIMITIVE}
    parameters = value["parameters"]
    for number, parameter in enumerate(parameters):
        shape = by_op.get(value["op"], typed)
        if value["op"] == "verify" and number and type(parameter) is int:
            shape = int  # an older format
        check(parameter, shape, f"{path}.parameters[{number}]")


def match_param(value: Any, path: str) -> None:
    """A field of a const entry's key."""
    check(value, {"match_type": str}, path)
    by_kind: dict[str, Any] = {
        "valid": {"key": Either((bool, int), "true or false")}, "exact": {"key": hexstr},
        "lpm": {"key": hexstr, "prefix_length": int}, "ternary": {"key": hexstr, "mask": hexstr},
        "range": {"start": hexstr, "end": hexstr},
    }  # fmt: skip
    check(value, by_kind.get(value["match_type"], {}), path)


def key_field(value: Any, path: str) -> None:
    """A field of a table's key."""
    check(value, {"match_type": str, "mask": Maybe(hexstr), "name": Maybe(str)}, path)
    is_valid = value["match_type"] == "valid"
    check(value, {"target": Either(([str], str), "a header's name") if is_valid else FIELD}, path)


def transition(value: Any, path: str) -> None:
    check(value, {"type": Maybe(str), "mask": Maybe(hexstr), "next_state": _STEP}, path)
    sort = value.get("type", "hexstr")
    if sort != "default" and value.get("value") != "default":  # the latter: an older format
        by_sort: dict[str, Any] = {"hexstr": {"value": hexstr}, "parse_vset": {"value": str}}
        check(value, by_sort.get(sort, {}), path)


# Objects

_SELECTOR = {"algo": str, "input": [{"type": Maybe(str), "value": FIELD}]}
_ENTRY = _PLACED | {
    "match_key": [match_param], "action_entry": {"action_id": int, "action_data": [hexstr]},
    "priority": Maybe(PRIORITY),
}  # fmt: skip
_DEFAULT = {
    "action_id": int, "action_data": [hexstr], "action_const": Maybe(bool), "action_entry_const": Maybe(bool),
}  # fmt: skip
_TABLE = NAMED | {
    "match_type": str, "type": str, "key": [key_field], "actions": Maybe([str]), "action_ids": Maybe([int]),
    "max_size": Maybe(ENTRIES), "with_counters": Maybe(bool), "support_timeout": Maybe(bool),
    "direct_meters": Maybe(str),
    "action_profile": Maybe(str), "act_prof_name": Maybe(str), "selector": Maybe(_SELECTOR),
    "base_default_next": Maybe(str), "next_tables": Values(_STEP), "default_entry": Maybe(_DEFAULT),
    "entries": Maybe([_ENTRY]),
}  # fmt: skip
_PIPELINE = NAMED | {
    "init_table": _STEP,
    "tables": [_TABLE],
    "action_profiles": Maybe([NAMED | {"max_size": Maybe(ENTRIES), "selector": Maybe(_SELECTOR)}]),
    "conditionals": Maybe([NAMED | {"expression": typed, "true_next": Maybe(str), "false_next": Maybe(str)}]),
    "action_calls": Maybe([NAMED | {"action_id": int, "next_node": Maybe(str)}]),
}
_STATE = NAMED | {"parser_ops": [parser_op], "transitions": [transition], "transition_key": [typed]}
_DIRECT = {"is_direct": Maybe(bool), "binding": Maybe(str), "size": Maybe(CELLS)}
_CHECKSUM = NAMED | {
    "type": str, "target": FIELD, "calculation": Maybe(str), "update": Maybe(bool), "verify": Maybe(bool),
    "if_cond": Maybe(typed),
}  # fmt: skip

PROGRAM: dict[str, Callable[[Any, str], None] | Any] = {
    "header_types": [
        NAMED | {"fields": [field_of_type], "length_exp": Maybe(typed), "max_length": Maybe(HEADER_BYTES)}
    ],
    "headers": [NAMED | {"header_type": str, "metadata": Maybe(bool), "pi_omit": Maybe(bool)}],
    "header_stacks": [NAMED | {"header_type": str, "header_ids": [int], "size": Maybe(int)}],
    "header_union_types": [NAMED | {"headers": [FIELD]}],
    "header_unions": [NAMED | {"union_type": str, "header_ids": [int]}],
    "header_union_stacks": [NAMED | {"union_type": str, "header_union_ids": [int], "size": Maybe(int)}],
    "field_aliases": [(str, FIELD)],
    "errors": [(str, CODE)],
    "enums": [{"name": str, "entries": [(str, int)]}],
    "force_arith": [FIELD],
    "extern_instances": [NAMED | {"type": str, "attribute_values": Maybe([{"name": str}])}],
    "parse_vsets": [NAMED | {"compressed_bitwidth": WIDTH}],
    "calculations": [NAMED | {"algo": str, "input": [typed]}],
    "counter_arrays": [NAMED | _DIRECT],
    "meter_arrays": [NAMED | _DIRECT | {"type": str, "rate_count": RATES, "result_target": Maybe(FIELD)}],
    "register_arrays": [NAMED | {"size": CELLS, "bitwidth": WIDTH}],
    "parsers": [NAMED | {"init_state": _STEP, "parse_states": [_STATE]}],
    "deparsers": [NAMED | {"order": [str], "primitives": Maybe([PRIMITIVE])}],
    "checksums": [_CHECKSUM],
    "field_lists": [_PLACED | {"id": int, "elements": [typed]}],
    "learn_lists": [NAMED | {"elements": [typed]}],
    "actions": [NAMED | {"runtime_data": [{"name": str, "bitwidth": WIDTH}], "primitives": [PRIMITIVE]}],
    "pipelines": [_PIPELINE],
}
"""Sections of a program; each may be missing or null."""


def check_program(root: dict[str, Any]) -> None:
    """Reject a program with a value of the wrong shape. Raises ProgramError with the value's path."""
    check(root.get("__meta__", {}), {"version": Maybe((int, int)), "compiler": Maybe(str)}, "__meta__")
    check(root, {"program": Maybe(str)}, "program")
    for section, shape in PROGRAM.items():
        if root.get(section) is not None:
            check(root[section], shape, section)
