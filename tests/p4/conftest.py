"""Switches that run p4/compiled, for the tests of this folder."""

import pytest

from emulator.p4switch.engine.engine import Engine
from emulator.p4switch.interpreter.path import Interpreter
from tests.support import p4_programming
from tests.support.bmv2_engines import switch_on
from tests.support.p4_jobs import program, switch_itself


@pytest.fixture(
    params=[pytest.param(Interpreter, marks=pytest.mark.slow), Engine],
    ids=["interpreter", "compiled"],
)
def switch(request):
    """A fresh switch with an address, on each engine."""
    programmed = switch_on(request.param, program("switchml"))
    p4_programming.apply(programmed.state, switch_itself())
    return programmed
