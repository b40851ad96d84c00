"""Programs for the Portable Switch Architecture: every way through it, worked out by hand from psa_switch.cpp."""

import pytest

from emulator.p4switch.engine.engine import CompiledEngine
from emulator.p4switch.interpreter.interpreter import Interpreter
from emulator.p4switch.program.loader import loader
from emulator.p4switch.switch import Switch
from switchml.errors import ProgramError
from tests.support.bmv2_engines import compare
from tests.support.p4_programs import SOURCES

PATH = SOURCES / "psa" / "paths.json"
DROP, UNICAST, MULTICAST, CLONE_IN, CLONE_OUT, RESUBMIT, RECIRCULATE = range(7)
GREEN = 1


@pytest.fixture(scope="module")
def program():
    return loader.load(PATH)


@pytest.fixture(params=[Interpreter, CompiledEngine])
def switch(program, request):
    switch = Switch(program, engine=request.param)
    state = switch.state
    state.replication.create_group(1)
    state.replication.associate_node(1, state.replication.create_node(7, [3, 4]))
    state.mirroring.add(8, port=5)
    return switch


def note(way, ingress, egress, instance, color, passes):
    return bytes((way, ingress, egress, instance, color, passes)) + b"!"


@pytest.mark.parametrize(("way", "sent"), [
    (DROP, []), (UNICAST, [(2, note(UNICAST, 0, 1, 0, GREEN, 1))]),
    (MULTICAST, [(port, note(MULTICAST, 0, 2, 7, GREEN, 1)) for port in (3, 4)]),
    (CLONE_IN, [(5, note(CLONE_IN, 0, 3, 0, 0, 0)), (2, note(CLONE_IN, 0, 1, 0, GREEN, 1))]),
    (CLONE_OUT, [(2, note(CLONE_OUT, 0, 1, 0, GREEN, 1)), (5, note(CLONE_OUT, 0, 4, 0, GREEN, 1))]),
    (RESUBMIT, [(2, note(RESUBMIT, 5, 1, 0, GREEN, 2))]), (RECIRCULATE, [(2, note(RECIRCULATE, 6, 1, 0, GREEN, 2))]),
])  # fmt: skip
def test_every_way(switch, way, sent):
    assert switch.receive(1, note(way, 0, 0, 0, 0, 0)) == sent
    passes = 2 if way in (RESUBMIT, RECIRCULATE) else 1
    assert switch.state.counters[0].read(way)[0] == switch.state.registers[0][0] == passes


def test_packets_that_end_early(switch):
    """The header stays invalid: nothing but its default, 0, says what becomes of the packet."""
    assert switch.receive(1, b"\1\0") == []


def test_colors_have_psas_numbers(switch):
    switch.state.meters[0].set_rates(1, ((1e-9, 1), (1e-9, 2)))
    colors = [switch.receive(1, note(UNICAST, 0, 0, 0, 0, 0))[0][1][4] for _ in range(3)]
    assert colors == [GREEN, 3, 2]  # green, yellow, red


def test_other_externs_are_refused_by_name():
    with pytest.raises(ProgramError, match="extern instance 'In.ways'.*'Hash'; of PSA's externs Counter and Meter"):
        loader.loads(PATH.read_text().replace('"Counter"', '"Hash"'))


def test_a_program_that_lacks_a_block():
    lacking = loader.loads(PATH.read_text().replace('"egress_deparser"', '"other"'))
    with pytest.raises(ProgramError, match="lacks a deparser named 'egress_deparser', which psa_switch needs"):
        Switch(lacking)


@pytest.mark.parametrize("seed", range(3))
def test_engines_agree(program, seed):
    assert compare(program, seed, 60) > 20
