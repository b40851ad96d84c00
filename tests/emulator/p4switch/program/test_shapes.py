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


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("field_aliases", 0, 0), ["a", "b"], "field_aliases[0][0] is ['a', 'b'], but should be a string"),
        (("field_aliases", 0, 1), ["nonsense", "b"], "field_aliases[0]: there is no header named 'nonsense'"),
        (("headers", 1, "id"), [], "headers[1].id is [], but should be a whole number"),
        (("headers", 1, "id"), 2**70, f"headers[1].id is {2**70}, but should be a whole number of 64 bits"),
        (("headers",), 3, "headers is 3, but should be a list"),
        (("pipelines", 0, "tables", 0, "key"), None, "pipelines[0].tables[0].key is None, but should be a list"),
        (
            ("parsers", 0, "parse_states", 0, "transitions", 0, "next_state"),
            1,
            ".next_state is 1, but should be a string",
        ),
        (
            ("parsers", 0, "parse_states", 0, "parser_ops"),
            [{"op": "extract", "parameters": [], "source_info": {"line": "12"}}],
            ".parser_ops[0].source_info.line is '12', but should be a whole number",
        ),
        (("actions", 0, "primitives"), [{"op": "drop"}], "actions[0].primitives[0] lacks 'parameters'"),
    ],
)
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
