"""Switches that run p4/compiled, for the tests of this folder."""

import p4_programming
import pytest
from bmv2_engines import switch_on
from p4_jobs import program, switch_itself

from emulator.bmv2.engine.engine import Engine
from emulator.bmv2.interpreter.path import Interpreter


@pytest.fixture(params=[Interpreter, Engine], ids=["interpreter", "compiled"])
def switch(request):
    """A fresh switch with an address, on each engine."""
    made = switch_on(request.param, program("switchml"))
    p4_programming.apply(made.state, switch_itself())
    return made
