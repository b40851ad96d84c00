"""Parsers that look, advance or extract beyond the packet: PacketTooShort, as P4_16 says in 12.8.2 and 12.8.3, on both
engines. BMv2 reads on behind the packet where a transition key looks ahead."""

import json

import pytest

from emulator.p4switch.engine.engine import CompiledEngine
from emulator.p4switch.interpreter.interpreter import Interpreter
from emulator.p4switch.interpreter.packet import Packet
from emulator.p4switch.interpreter.parser import Parser
from emulator.p4switch.interpreter.primitives import Primitives
from emulator.p4switch.program.loader import loader
from emulator.p4switch.state.state import State
from emulator.p4switch.switch import Switch
from tests.support.p4_programs import PATHS

HEADER = bytes(12) + b"\x08\x00"
FINE, TOO_SHORT, OTHER = 0, 1, 0xFF
LOOKAHEAD = {"type": "lookahead", "value": [0, 32]}


def with_start(**changes) -> loader.ir.Program:
    """parser_errors, whose start state extracts the Ethernet header and then does as `changes` say. The program puts
    the parser's error before the packet."""
    root = json.loads(PATHS["parser_errors"].read_text())
    start = root["parsers"][0]["parse_states"][0]
    start["parser_ops"] = start["parser_ops"][:1]
    start["transitions"] = [{"type": "default", "value": None, "mask": None, "next_state": None}]
    start["transition_key"] = []
    start["parser_ops"] += changes.pop("more_ops", [])
    start.update(changes)
    return loader.loads(json.dumps(root))


def to(value: str, state: str | None) -> dict:
    return {"type": "hexstr", "value": value, "mask": None, "next_state": state}


NONE_OTHER = {"type": "default", "value": None, "mask": None, "next_state": None}


def hexstr(value: int) -> dict:
    return {"type": "hexstr", "value": hex(value)}


def advance(bits: int) -> dict:
    return {"op": "advance", "parameters": [hexstr(bits)]}


@pytest.mark.parametrize("engine", [Interpreter, CompiledEngine])
@pytest.mark.parametrize(
    ("changes", "outcomes"),
    [
        ({"transition_key": [LOOKAHEAD], "transitions": [to("0x00000000", "second"), NONE_OTHER]},
         {b"": TOO_SHORT, b"\0\0\0": TOO_SHORT, b"\1\0\0\0": FINE}),
        ({"transition_key": [LOOKAHEAD]}, {b"\0\0\0": TOO_SHORT, b"\0\0\0\0": FINE}),  # also if nothing depends on it
        ({"transition_key": [{"type": "field", "value": ["eth", "type"]}, {"type": "lookahead", "value": [12, 5]}]},
         {b"\0\0": TOO_SHORT, b"\0\0\0": FINE}),
        ({"more_ops": [{"op": "set", "parameters": [{"type": "field", "value": ["eth", "type"]}, LOOKAHEAD]}]},
         {b"\0\0\0": TOO_SHORT, b"\0\0\0\0": FINE}),
        ({"more_ops": [advance(24)]}, {b"\0\0": TOO_SHORT, b"\0\0\0": FINE}),
        ({"more_ops": [advance(12)]}, {b"": OTHER, b"\0\0\0": OTHER}),
        ({"more_ops": [advance(0xFFFFFFF8)]}, {b"\0\0\0": TOO_SHORT}),
    ],
    ids=["select", "default only", "second part", "set", "advance", "half a byte", "advance by -8"],
)  # fmt: skip
def test_look_ahead_and_advance(engine, changes, outcomes):
    switch = Switch(with_start(**changes), engine=engine, clock=lambda: 0)
    seen = {rest: switch.receive(1, HEADER + rest)[0][1][0] for rest in outcomes}
    assert seen == outcomes


@pytest.mark.parametrize("engine", [Interpreter, CompiledEngine])
@pytest.mark.parametrize("length", [24, 0x7FFFFFF8, 0xFFFFFFF8])  # the last as from (ihl - 5) * 32 with ihl 4
def test_a_variable_length_beyond_the_packet(engine, length):
    """varbit marks packets with an error by the Ethernet type 0xffff."""
    root = json.loads(PATHS["varbit"].read_text())
    for op in root["parsers"][0]["parse_states"][0]["parser_ops"]:
        if op["op"] == "extract_VL":
            op["parameters"][1]["value"] = hexstr(length)
    program = loader.loads(json.dumps(root))
    switch = Switch(program, engine=engine, clock=lambda: 0)
    assert switch.receive(1, HEADER + bytes(4))[0][1][12:14] == b"\xff\xff"
    state, packet = State(program), Packet(program, HEADER + bytes(4))
    Parser(program.parsers[0], packet, state, Primitives(state)).run()
    assert packet.parser_error == program.errors["PacketTooShort"]
