"""The compiled engine and the interpreter on the same random entries and packets: the same bytes on each port in the
same order, and the same state.

Unlike the comparison with simple_switch, packets end early here for every program: what is read of a header that was
not parsed is 0 in both, or, with stale fields, what earlier packets left.
"""

import json
from functools import partial

import pytest

from emulator.p4switch.engine.engine import CompiledEngine
from emulator.p4switch.interpreter.interpreter import Interpreter
from emulator.p4switch.program.loader.loader import load
from switchml.errors import ProgramAbort
from tests.peers.bmv2_random import Generator
from tests.support.bmv2_replay import replay
from tests.support.p4_programs import NAMES, PATHS


@pytest.mark.parametrize("seed", [11, 12])
@pytest.mark.parametrize("name", NAMES)
def test_same_outcome(name, seed):
    path = PATHS[name]
    generator = Generator(json.loads(path.read_text()), seed, cut=True)
    commands, packets = generator.commands(), generator.packets(60)
    program = load(path)
    try:
        reference = replay(program, commands, packets)
    except ProgramAbort as abort:  # assert.p4, and it must end with the same words
        with pytest.raises(ProgramAbort) as other:
            replay(program, commands, packets, CompiledEngine)
        assert str(other.value) == str(abort)
    else:
        assert replay(program, commands, packets, CompiledEngine) == reference


@pytest.mark.parametrize("name", [name for name in NAMES if name != "assert" and "unrolled" not in name])
def test_same_stale_fields(name):
    generator = Generator(json.loads(PATHS[name].read_text()), 13, cut=True)
    commands, packets = generator.commands(), generator.packets(40)
    program = load(PATHS[name])
    engines = (partial(engine, stale_fields=True) for engine in (Interpreter, CompiledEngine))
    reference, compiled = (replay(program, commands, packets, engine) for engine in engines)
    assert compiled == reference
