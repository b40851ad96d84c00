"""What the switch's tests share: the programs of tests/programs by name, switches whose clock a test moves, and entries
written short."""

import functools

import pytest

from emulator.p4switch.program import ir
from emulator.p4switch.program.loader import loader
from emulator.p4switch.state.action_profiles import RunAction
from emulator.p4switch.switch import Switch
from tests.support.p4_programs import NAMES, PATHS

load_program = functools.cache(lambda name: loader.load(PATHS[name]))


class Clocked(Switch):
    """A switch with the clock `now` (µs), and short ways to say things."""

    def __init__(self, program: ir.Program, **options) -> None:
        self.now = 0
        super().__init__(program, clock=lambda: self.now, seed=1, **options)

    def add(self, table: str, keys: list, action: str, args: tuple = (), priority: int = 0) -> int:
        """Add an entry. A key is an int (exact), or a pair (value, prefix length, mask or upper end)."""
        match_table = self.state.table(table)
        match = [
            ir.MatchParam(field.kind, *(key if isinstance(key, tuple) else (key,)))
            for field, key in zip(match_table.table.key, keys, strict=True)
        ]
        return match_table.add(match, RunAction(match_table.action(action), args), priority)


@pytest.fixture
def program():
    """The function from a program's name to it."""
    return load_program


@pytest.fixture
def switch():
    """The function from a program's name to a new switch that runs it."""
    return lambda name, **options: Clocked(load_program(name), **options)


@pytest.fixture
def names() -> list[str]:
    """All programs of tests/programs."""
    return NAMES
