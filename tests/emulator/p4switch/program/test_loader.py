"""The loader: every program loads, and whatever is wrong with one ends in a ProgramError that says where."""

import json

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from emulator.p4switch.program import expr as e
from emulator.p4switch.program import ir
from emulator.p4switch.program.loader import loader
from emulator.p4switch.state.state import State
from switchml.errors import ProgramError
from tests.support.examples import examples
from tests.support.p4_programs import PATHS


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_every_program_loads_and_runs(path):
    program = loader.load(path)
    loader.check_runnable(program)
    State(program)
    assert program.text == path.read_text()


def test_repeated_trees_are_one_object(program):
    unrolled = program("agg_unrolled_64")
    nodes = [
        node for action in unrolled.actions for call in action.primitives for arg in call.args for node in e.walk(arg)
    ]
    assert len({id(node) for node in nodes}) < len(nodes) / 2


def test_names_and_sources_survive(program):
    l3 = program("l3")
    table = next(table for table in l3.tables if table.key and table.match_type == "lpm")
    assert table.source.filename.endswith("l3.p4")
    assert table.source.line > 0
    assert l3.field("standard_metadata.ingress_port") is not None
    assert l3.field_name(l3.field("queueing_metadata.enq_timestamp")) == "standard_metadata.enq_timestamp"


def small() -> dict:
    """A program as small as they get, for tests that break it."""
    return json.loads(PATHS["lookahead"].read_text())


def broken(change) -> str:
    root = small()
    change(root)
    with pytest.raises(ProgramError) as caught:
        loader.check_runnable(loader.loads(json.dumps(root)))
    return str(caught.value)


def test_messages_name_the_object_and_its_line():
    def unknown_primitive(root):
        action = next(action for action in root["actions"] if action["primitives"])
        action["primitives"][0]["op"] = "teleport"

    message = broken(unknown_primitive)
    assert "'teleport'" in message
    assert "lookahead.p4:" in message


@pytest.mark.parametrize(("change", "expected"), [
    (lambda root: root["__meta__"].update(version=[3, 0]), "version 3.0"),
    (lambda root: root["__meta__"].update(version=[2, 99]), "2.0 to 2.24"),
    (lambda root: root["headers"][0].update(header_type="nowhere"), "no header type named 'nowhere'"),
    (lambda root: root["parsers"][0].update(init_state="nowhere"), "no parse state named 'nowhere'"),
    (lambda root: root["pipelines"][0].update(name="elsewhere"), "lacks a pipeline named 'ingress'"),
    (lambda root: root["actions"].append(dict(root["actions"][0])), "two objects of type action with the id"),
    (lambda root: root["deparsers"][0]["order"].append("nowhere"), "no header named 'nowhere'"),
    (lambda root: root.update(extern_instances=[{"name": "x", "id": 0, "type": "mine"}]), "knows no externs"),
    (lambda root: root["headers"].append(root["headers"][0]), "two objects of type header named"),
    (lambda root: root["pipelines"][0].update(init_table="nowhere"), "control-flow node named 'nowhere'"),
])  # fmt: skip
def test_what_is_refused(change, expected):
    assert expected in broken(change)


def test_control_flow_must_not_be_cyclic():
    def loop(root):
        pipeline = root["pipelines"][0]
        table = pipeline["tables"][0]
        table["next_tables"] = dict.fromkeys(table["next_tables"], table["name"])

    assert "is cyclic" in broken(loop)


def test_a_selector_s_algorithm_is_known():
    text = PATHS["action_selector"].read_text()
    assert text.count('"algo" : "crc16"') == 1
    with pytest.raises(ProgramError, match="the algorithm 'key' is not known to simple_switch"):
        loader.loads(text.replace('"algo" : "crc16"', '"algo" : "key"'))


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '{"headers": 3}', "[" * 100_000])
def test_what_is_not_a_program(text):
    with pytest.raises(ProgramError):
        loader.check_runnable(loader.loads(text))


def test_a_file_that_is_not_there():
    with pytest.raises(ProgramError, match="can't read"):
        loader.load("/nonexistent.json")


def places(value, path=()):
    """All (container, key) pairs within a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in items:
        yield value, key
        yield from places(below, (*path, key))


VALUES = st.sampled_from(
    [None, -1, 0, 1, 7, 2**40, "", "0x", "x", "default", "-0x1", True, [], {}, [None], ["a", "b"], 0.5]
)


@examples(300, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(PATHS.values())), st.data())
def test_any_damage_is_a_program_error(path, data):
    """Take one value out of a program, or put another in its place: it loads, or it is refused, and no more."""
    if path.stat().st_size > 200_000:
        return
    root = json.loads(path.read_text())
    container, key = data.draw(st.sampled_from(list(places(root))))
    if data.draw(st.booleans()):
        del container[key]
    else:
        container[key] = data.draw(VALUES)
    try:
        program = loader.loads(json.dumps(root))
        assert isinstance(program, ir.Program)
        loader.check_runnable(program)
        if sum(table.max_size for table in program.tables) < 1_000_000:
            State(program)
    except ProgramError as error:
        assert str(error)
