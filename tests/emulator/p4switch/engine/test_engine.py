"""The compiled engine beyond what test_engines_agree compares: lanes, queues that pass to another engine, traps,
batches."""

import dataclasses
import json
import random
import struct

import numpy as np
import pytest

from emulator.lab.bench.switch.engines import WORKLOADS
from emulator.p4switch.engine import opcodes as o
from emulator.p4switch.engine.engine import CompiledEngine
from emulator.p4switch.interpreter.interpreter import Interpreter
from emulator.p4switch.program import expr as e
from emulator.p4switch.program import ir
from emulator.p4switch.program.loader import loader
from tests.support.bmv2_engines import both, outcome, switch_on, visible

ETHERNET = bytes(12)


def aggregate(slot: int, sender: int, everybody: int, group: int, lanes: bytes) -> bytes:
    return ETHERNET + b"\x88\xb5" + struct.pack(">HHHH", slot, sender, everybody, group) + lanes


@pytest.mark.parametrize(
    "name, lanes", [("agg_unrolled_64", 64), ("agg_unrolled_256", 256), ("agg_wide_64", 64), ("agg_wide_256", 256)]
)
def test_aggregation_is_the_same_in_lanes(program, name, lanes):
    """Sums, repeated packets, slots beyond the registers, packets that end early, delivery to a group."""
    source = random.Random(3)
    packets = [
        (
            source.randrange(4),
            aggregate(
                source.choice((0, 255, 256)),
                1 << source.randrange(2),
                3,
                source.randrange(2),
                source.randbytes(4 * lanes + source.choice((0, -1, 7))),
            ),
        )
        for _ in range(40)
    ]
    switches = both(program(name))
    for switch in switches:
        switch.state.replication.create_group(1)
        switch.state.replication.associate_node(1, switch.state.replication.create_node(5, [1, 2, 3]))
    reference, compiled = (outcome(switch, packets) for switch in switches)
    assert sum(len(sent) for sent in reference[0]) > 2
    assert compiled == reference


def test_a_parser_sets_valid(program):
    """As in BMv2: $valid$ is what conditions read, but the headers that were extracted are deparsed."""
    root = json.loads(program("unions").text)
    states = {state["name"]: state["parser_ops"] for state in root["parsers"][0]["parse_states"]}

    def set_valid(header, value):
        field = {"type": "field", "value": [header, "$valid$"]}
        return {"op": "set", "parameters": [field, {"type": "hexstr", "value": value}]}

    states["short"].append(set_valid("either.s", "0x00"))
    states["last"] += [set_valid("either.l", "0x01"), set_valid("eth", "0x00")]
    reference, compiled = both(loader.loads(json.dumps(root)))
    for kind, rest, expected in [
        (b"\0\0", b"!", b"\2"),
        (b"\0\1", b"ab!", b"ab\2"),
        (b"\2\0", b"!", b"\xbe\xef\3"),
        (b"\3\1", b"ab!", b"\2"),
    ]:
        frame = ETHERNET + kind + rest
        expected = [(1, ETHERNET + kind + expected)]
        assert reference.receive(1, frame) == compiled.receive(1, frame) == expected


def test_copies_lose_valid_of_headers_that_are_not(program):
    """What a parser sets $valid$ of an invalid header to is gone in the copies of a multicast."""
    root = json.loads(program("multicast").text)
    valid, one = {"type": "field", "value": ["group", "$valid$"]}, {"type": "hexstr", "value": "0x01"}
    root["parsers"][0]["parse_states"][0]["parser_ops"].insert(0, {"op": "set", "parameters": [valid, one]})
    for action in root["actions"]:
        for call in action["primitives"]:
            if call["op"] == "assign" and call["parameters"][0]["value"][1] == "mcast_grp":
                call["parameters"][1] = one
    egress = next(each for each in root["pipelines"] if each["name"] == "egress")
    egress["conditionals"][0]["expression"] = {
        "type": "expression",
        "value": {"op": "==", "left": valid, "right": one},
    }  # to be dropped
    for switch in both(loader.loads(json.dumps(root))):
        switch.state.replication.create_group(1)
        switch.state.replication.associate_node(1, switch.state.replication.create_node(5, [1, 2]))
        assert switch.receive(0, ETHERNET + b"\0\0") == [(1, ETHERNET + b"\0\0"), (2, ETHERNET + b"\0\0")]


def test_unrolled_lanes_are_re_rolled(program):
    engine = switch_on(CompiledEngine, program("agg_unrolled_256")).engine
    assert len(engine.lowered.rows) < 200
    assert {o.VLD, o.VADD, o.VST, o.VREG, o.VREGW} <= set(engine.lowered.rows[:, 0].tolist())


@pytest.mark.parametrize("to_wire", [True, False])
def test_a_run_that_nothing_reads(program, to_wire):
    """Stores of the same value into neighbouring fields: those on the wire are sent, others may be left out."""
    base = program("l3")
    ethernet = next(header for header in base.headers if not header.is_metadata)
    kind = dataclasses.replace(
        ethernet.type, fields=tuple(ir.Field(f"lane{i}", 8, 8 * i) for i in range(14)), width=8 * 14
    )
    scalars = next(header for header in base.headers if header.name == "scalars")
    target = ethernet if to_wire else scalars
    headers = list(base.headers)
    headers[target.index] = dataclasses.replace(target, type=dataclasses.replace(kind, id=target.type.id))
    calls = tuple(ir.Primitive("assign", (e.FieldRef(target.index, i), e.Const(85))) for i in range(14))
    node = ir.ActionCall("lanes", 1000, len(base.actions), ir.END)
    changed = dataclasses.replace(
        base,
        headers=tuple(headers),
        actions=(*base.actions, ir.Action("lanes", 1000, (), calls)),
        nodes=(*base.nodes, node),
        pipelines=tuple(dataclasses.replace(p, init_node=len(base.nodes)) for p in base.pipelines),
        tables=(),
        parsers=(dataclasses.replace(base.parsers[0], states=(_only(base.parsers[0].states[0]),), init_state=0),),
        checksums=(),
    )
    reference, compiled = (outcome(switch, [(1, bytes(range(100)))]) for switch in both(changed))
    assert compiled == reference and len(reference[0][0]) == 1


def _only(state: ir.ParseState) -> ir.ParseState:
    return dataclasses.replace(state, key=(), transitions=(), default=ir.END)


def test_registers_of_lanes_are_read_and_written_as_ever(program):
    switch = switch_on(CompiledEngine, program("agg_unrolled_64"))
    registers = [register for register in switch.state.registers if register.width == 32]
    for number, register in enumerate(registers):
        register.write(7, number + (1 << 40))
    assert [register.read(7) for register in registers] == list(range(64))
    lanes = struct.pack(">64I", *range(64))
    switch.state.registers[0].write(7, 1)  # a first sender was there
    assert switch.receive(0, aggregate(7, 2, 3, 0, lanes))[0][1][22:] == struct.pack(
        ">64I", *(2 * i for i in range(64))
    )
    registers[5].reset()
    assert registers[5].read_all() == [0] * registers[5].size and registers[6].read(7) == 12


def test_packets_in_queues_pass_to_the_next_engine(program):
    """An engine takes another's place once nothing waits, so that what waits leaves in its turn."""
    staying, changing = (switch_on(Interpreter, program("l3")) for _ in range(2))
    results = []
    for switch in (staying, changing):
        frames = WORKLOADS["l3"](switch.state)[:40]
        switch.state.queues.set_rate(100)
        sent = [switch.receive(*frame) for frame in frames[:20]]
        for engine in (CompiledEngine, Interpreter, CompiledEngine):
            if switch is changing:
                waits = switch.next_us() is not None
                switch.change_engine(engine)
                assert type(switch.engine) is engine or waits
            switch.now += 45_000
            sent += [switch.poll(), switch.receive(*frames.pop())]
        switch.now += 10_000_000
        sent += [switch.poll(), switch.next_us(), switch.receive(*frames.pop())]
        results.append(sent)
    assert type(changing.engine) is CompiledEngine
    assert results[0] == results[1] and visible(staying) == visible(changing)


def test_batch_is_as_one_by_one(program):
    one_by_one, batched = (switch_on(CompiledEngine, program("l3")) for _ in range(2))
    frames = WORKLOADS["l3"](one_by_one.state)
    WORKLOADS["l3"](batched.state)
    assert batched.engine.receive_batch(frames) == [one_by_one.receive(*frame) for frame in frames]
    assert visible(batched) == visible(one_by_one)


def test_records_name_the_frames_that_came_in(program):
    switch = switch_on(CompiledEngine, program("l3"))
    frames = WORKLOADS["l3"](switch.state)[:3]
    data = np.frombuffer(b"".join(data for _, data in frames), dtype=np.uint8)
    lengths = np.array([len(data) for _, data in frames])
    records_sent = []
    switch.engine.process(
        np.array([port for port, _ in frames]),
        data.ctypes.data + np.cumsum(lengths) - lengths,
        lengths,
        lambda records: records_sent.extend(records[:, [0, 2, 3]].tolist()),
    )
    assert [source for _, _, source in records_sent] == [0, 1, 2]
    assert [length for _, length, _ in records_sent] == [60] * 3
