"""Malformed values anywhere in a program are refused, and named by their path."""

import json
import re

import pytest

from emulator.p4switch.program.loader import loader, shapes
from switchml.errors import ProgramError
from tests.support.p4_programs import PATHS

PROGRAMS = (
    "exact", "lpm", "range", "mixed_keys", "action_selector", "parser_errors", "varbit", "stacks", "meters", "log_msg",
)  # fmt: skip
BAD = (True, -1, 1.5, "nonsense", [[]], {"x": []})


@pytest.mark.parametrize(("path", "value", "message"), [
    (("field_aliases", 0, 0), ["a", "b"], "field_aliases[0][0] is ['a', 'b'], but should be a string"),
    (("field_aliases", 0, 1), ["nonsense", "b"], "field_aliases[0]: there is no header named 'nonsense'"),
    (("headers", 1, "id"), [], "headers[1].id is [], but should be a whole number"),
    (("headers", 1, "id"), 2**70, f"headers[1].id is {2**70}, but should be a whole number of 64 bits"),
    (("headers",), 3, "headers is 3, but should be a list"),
    (("pipelines", 0, "tables", 0, "key"), None, "pipelines[0].tables[0].key is None, but should be a list"),
    (("parsers", 0, "parse_states", 0, "transitions", 0, "next_state"), 1, ".next_state is 1, but should be a string"),
    (
        ("parsers", 0, "parse_states", 0, "parser_ops"),
        [{"op": "extract", "parameters": [], "source_info": {"line": "12"}}],
        ".parser_ops[0].source_info.line is '12', but should be a whole number",
    ),
    (("actions", 0, "primitives"), [{"op": "drop"}], "actions[0].primitives[0] lacks 'parameters'"),
])  # fmt: skip
def test_the_path(path, value, message):
    root = json.loads(PATHS["exact"].read_text())
    put(root, path, value)
    with pytest.raises(ProgramError, match=re.escape(message)):
        loader.loads(json.dumps(root))


def nodes(value, path=()):
    """The paths of all values in a JSON value."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield (*path, key)
        yield from nodes(inner, (*path, key))


def put(root, path, value):
    """Replace a value; returns what was there."""
    *parents, last = path
    for key in parents:
        root = root[key]
    before, root[last] = root[last], value
    return before


def written(path):
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).removeprefix(".")


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_node_replaced(name):
    """A program is loaded or refused in words, never with what Python says to a value of another type; and where the
    shape is wrong, the message holds
    the path, or that of what stands beside it (a type decides what its value has to be)."""
    root = json.loads(PATHS[name].read_text())
    for path in list(nodes(root)):
        for value in BAD:
            before = put(root, path, value)
            try:
                shapes.check_program(root)
            except ProgramError as error:
                begin = str(error).split(" ")[0]
                assert written(path).startswith(begin) or begin.startswith(written(path[:-1])), (
                    path,
                    value,
                    str(error),
                )
            else:
                try:
                    loader.loads(json.dumps(root))
                except ProgramError as error:
                    assert "malformed" not in str(error), (path, value)
            put(root, path, before)


@pytest.mark.parametrize(("program", "path", "value", "expected"), [
    ("registers", ("register_arrays", 0, "size"), 2**26 + 1, "0 to 67,108,864"),
    ("registers", ("register_arrays", 0, "bitwidth"), 65_537, "0 to 65,536"),
    ("counters", ("counter_arrays", 0, "size"), -1, "0 to 67,108,864"),
    ("meters", ("meter_arrays", 0, "rate_count"), 0, "1 to 16"),
    ("exact", ("pipelines", 0, "tables", 0, "max_size"), -1, "0 to 4,294,967,295"),
    ("exact", ("errors", 0, 1), -1, "0 to 4,294,967,295"),
    ("action_selector", ("pipelines", 0, "action_profiles", 0, "max_size"), -1, "0 to 4,294,967,295"),
    ("varbit", ("header_types", 1, "max_length"), 8193, "0 to 8,192"),
    ("exact", ("actions", 0, "runtime_data"), [{"name": "x", "bitwidth": -1}], "0 to 65,536"),
])  # fmt: skip
def test_sizes_have_ranges(program, path, value, expected):
    root = json.loads(PATHS[program].read_text())
    *way, last = path
    at = root
    for key in way:
        at = at[key]
    at[last] = value
    with pytest.raises(ProgramError) as caught:
        loader.loads(json.dumps(root))
    assert str(caught.value).endswith(f"but should be {expected}")


def test_all_arrays_together_have_a_limit():
    root = json.loads(PATHS["registers"].read_text())
    root["register_arrays"][0] |= {"size": 2**26, "bitwidth": 1024}
    name = root["register_arrays"][0]["name"]
    with pytest.raises(ProgramError, match=f"bytes, 8,589,934,592 of them '{name}'; expected 4,294,967,296 at most"):
        loader.loads(json.dumps(root))


def test_stacks_are_of_one_type_and_as_large_as_they_say():
    root = json.loads(PATHS["stacks"].read_text())
    (stack, *_) = root["header_stacks"]
    stack["size"] = 2**31
    with pytest.raises(ProgramError, match="size is 2147483648, but it has [0-9]+ elements"):
        loader.loads(json.dumps(root))
    stack["size"] = len(stack["header_ids"])
    other = next(one for one in root["headers"] if one["header_type"] != stack["header_type"])
    stack["header_ids"][0] = other["id"]
    with pytest.raises(ProgramError, match=f"its header .* has the type '{other['header_type']}', but should have"):
        loader.loads(json.dumps(root))
