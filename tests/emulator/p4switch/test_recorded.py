"""What the real simple_switch did with random entries and packets (tests/programs/recorded), done again by our switch:
the same commands accepted, the same bytes on each port in the same order, the same registers and counters. That is the
compiled engine; test_engines_agree.py has the interpreter beside it."""

import pytest

from emulator.p4switch.engine.engine import CompiledEngine
from emulator.p4switch.program.loader.loader import load
from tests.support.bmv2_replay import Recording, replay
from tests.support.p4_programs import PATHS, RECORDED

NAMES = sorted(path.stem for path in RECORDED.glob("*.json"))


def test_every_program_has_a_recording():
    assert set(PATHS) - set(NAMES) == {"assert"}  # simple_switch ends when an assertion fails


@pytest.mark.parametrize("name", NAMES)
def test_same_as_recorded(name):
    recording = Recording.load(RECORDED / f"{name}.json")
    ours = replay(load(PATHS[name]), recording.commands, recording.packets, CompiledEngine)
    theirs = recording.outcome.stable(name)
    assert any(theirs.sent.values()), "a recording in which nothing was sent shows nothing"
    assert ours.stable(name) == theirs
