"""A switch that runs p4/compiled, for the tests of this folder. That the interpreter does the same is what
`test_vectors.test_scenario` and tests/emulator/p4switch/test_engines_agree.py show."""

import pytest

from emulator.p4switch.engine.engine import CompiledEngine
from tests.support import p4_programming
from tests.support.bmv2_engines import switch_on
from tests.support.p4_jobs import program, switch_itself


@pytest.fixture
def switch():
    """A fresh switch with an address."""
    programmed = switch_on(CompiledEngine, program("switchml"))
    p4_programming.apply(programmed.state, switch_itself())
    return programmed
