"""Switches that run p4/compiled, for the tests of this folder."""

import functools
from pathlib import Path

import p4_programming
import pytest
from bmv2_engines import switch_on
from p4_jobs import switch_itself

from emulator.bmv2.engine.engine import Engine
from emulator.bmv2.interpreter.path import Interpreter
from emulator.bmv2.loader import load

COMPILED = Path(__file__).parents[2] / "p4" / "compiled"


@functools.cache
def program(variant: str):
    return load(COMPILED / f"{variant}.json")


@pytest.fixture(params=[Interpreter, Engine], ids=["interpreter", "compiled"])
def switch(request):
    """A fresh switch with an address, on each engine."""
    made = switch_on(request.param, program("switchml"))
    p4_programming.apply(made.state, switch_itself())
    return made
