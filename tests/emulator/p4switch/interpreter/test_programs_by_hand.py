"""Programs where the recordings do not go: fields that packets leave behind, lengths beyond a C int, logs."""

import json
import logging
from functools import partial

import pytest

from emulator.p4switch.engine.engine import CompiledEngine
from emulator.p4switch.interpreter.interpreter import Interpreter
from emulator.p4switch.interpreter.packet import FieldPool, Packet
from emulator.p4switch.program.ir import MatchParam
from emulator.p4switch.program.loader import loader
from emulator.p4switch.state.action_profiles import RunAction, UseGroup
from emulator.p4switch.switch import Switch

ETHERNET = bytes.fromhex("0102030405060708090a0b0c0d0e")


def send(running, frame, port=1):
    """The one frame that comes back."""
    [(out, data)] = running.receive(port, frame)
    assert out == port
    return data


# Parser


def test_one_member_of_a_union_is_valid(switch):
    running = switch("unions")
    head = ETHERNET[:12]
    assert send(running, head + b"\0\1" + b"ab" + b"!") == head + b"\0\1" + b"ab" + b"\1"
    assert send(running, head + b"\1\1" + b"ab" + b"!") == head + b"\1\1" + bytes.fromhex("0123456789abcdef") + b"\2"
    assert send(running, head + b"\2\2" + b"12345678" + b"!") == head + b"\2\2" + bytes.fromhex("beef") + b"\1"
    assert send(running, head + b"\3\1" + b"ab" + b"!") == head + b"\3\1" + b"\0"


def with_stale_short(program):
    """The program "unions", whose packets of kind 2 add the short header without setting its field."""
    root = json.loads(program("unions").text)
    for action in root["actions"]:
        calls = action["primitives"]
        for at, call in enumerate(calls):
            if call["op"] == "add_header" and call["parameters"][0]["value"] == "either.s":
                calls[at : at + 2] = [{**call, "op": "add_header_fast"}]
    return loader.loads(json.dumps(root))


@pytest.mark.parametrize("engine", [Interpreter, CompiledEngine])
@pytest.mark.parametrize(("stale_fields", "left"), [(True, b"ab"), (False, b"\0\0")])
def test_fields_that_earlier_packets_left(program, engine, stale_fields, left):
    """BMv2 takes a packet's fields from the last packet that has gone, and sets metadata to 0 only."""
    running = Switch(with_stale_short(program), engine=partial(engine, stale_fields=stale_fields))
    head = ETHERNET[:12]
    assert send(running, head + b"\0\1" + b"ab" + b"!") == head + b"\0\1" + b"ab" + b"\1"
    assert send(running, head + b"\0\0" + b"!") == head + b"\0\0" + b"\0"
    for _ in range(2):
        assert send(running, head + b"\2\0" + b"!") == head + b"\2\0" + left + b"\1"


def test_copies_take_fields_of_their_own(program):
    """A copy has the valid headers of its packet, and in the others what was in the fields that it took."""
    pool = FieldPool(program("unions"))
    one = Packet(program("unions"), b"", 0, pool)
    named = {header.name: header.index for header in program("unions").headers}
    valid, invalid = named["eth"], named["last"]
    one.values[valid][0], one.values[invalid][0] = 5, 6
    one.set_valid(valid)
    copy = one.copy_with_headers()
    assert (copy.values[valid][0], copy.values[invalid][0]) == (5, 0)
    pool.give(one)
    pool.give(copy)
    last = Packet(program("unions"), b"", 0, pool)
    assert last.values is copy.values and Packet(program("unions"), b"", 0, pool).values is one.values


# Tables in the path


def test_a_selector_spreads_by_hash_and_an_empty_group_ends_the_pipeline(switch):
    running = switch("action_selector")
    table = running.state.table("MyIngress.paths")
    profile, send_action = table.profile, table.action("MyIngress.send")
    group = profile.create_group()
    for mark in (1, 2, 3):
        profile.add_to_group(profile.add_member(RunAction(send_action, (1, mark))), group)
    table.add([MatchParam("lpm", 0, 0)], UseGroup(group))
    marks = set()
    for flow in range(20):
        frame = ETHERNET + bytes(2) + flow.to_bytes(4, "big") + bytes(6)
        chosen = {send(running, frame)[24:26] for _ in range(2)}
        assert len(chosen) == 1
        marks |= chosen
    assert marks == {b"\0\1", b"\0\2", b"\0\3"}
    for member in list(profile.group(group).members):
        profile.remove_from_group(member, group)
    assert running.receive(1, ETHERNET + bytes(12)) == [(0, ETHERNET + bytes(12))]


def test_log_msg_writes_decimal_numbers(switch, caplog):
    with caplog.at_level(logging.INFO, "switchml.bmv2"):
        switch("log_msg").receive(1, ETHERNET)
    assert caplog.messages == ["parsed type 3342", "in ingress", "port 1 type 3342 sum 3343"]


def test_random_stays_in_its_bounds_and_a_seed_repeats_it(switch):
    frames = [switch("random").receive(1, ETHERNET + bytes(40)) for _ in range(2)]
    assert frames[0] == frames[1]
