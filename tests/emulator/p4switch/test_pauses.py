"""What a large table takes of the garbage collector."""

import gc

from emulator.p4switch import pauses
from emulator.p4switch.program import ir
from emulator.p4switch.state.action_profiles import RunAction


def test_entries_are_taken_from_the_collector(switch, monkeypatch):
    monkeypatch.setattr(pauses, "N_ADDED", 10)
    running = switch("lpm")
    pauses.avoid_pauses(running)
    try:
        table = next(table for table in running.state.tables if table.name.endswith("v6"))
        run = RunAction(table.action("NoAction"))
        before = gc.get_freeze_count()
        for number in range(9):
            table.add([ir.MatchParam("lpm", number, 128)], run)
        after_nine = gc.get_freeze_count()
        assert after_nine <= before  # other threads, such as a test runner's, may let go of frozen objects of theirs
        table.add([ir.MatchParam("lpm", 9, 128)], run)
        assert gc.get_freeze_count() >= after_nine + 10
    finally:
        gc.unfreeze()
