"""Seeds of jobs whose sums don't wait for late ranks: they pass, they go through what they are for, and wrong books are
found."""

import dataclasses
from contextlib import nullcontext

import numpy as np
import pytest

from emulator.networks.faults.checks import Checks, Ledger, Violation
from emulator.networks.faults.deadlines_plan import KINDS, draw_deadlines
from emulator.networks.faults.late import CallRecord, Entry, audit
from emulator.networks.faults.plan import JobPlan, PlannedCall
from emulator.networks.faults.world import World, play
from switchml.errors import LeftBehind

SEEDS = 10


def test_seeds_pass_and_ranks_are_late():
    lines: list[str] = []
    outcomes = [play(seed, lines.append, "deadlines") for seed in range(SEEDS)]
    assert [(outcome.seed, outcome.problem) for outcome in outcomes if outcome.problem] == []
    assert sum(outcome.sums for outcome in outcomes) > 20 * SEEDS
    assert sum("LeftBehind" in line for line in lines) > SEEDS // 3
    assert play(3, kind="deadlines") == outcomes[3], "a seed repeats itself"


def test_sums_are_with_some_ranks_and_late_gradients_in_the_next():
    world = World(draw_deadlines(1000))
    assert world.run().problem == ""
    books = [book for ledger in world.checks.ledgers.values() for book in ledger.books.values()]
    entries = [entry for book in books for entry in book.entries.values()]
    assert any(0 < entry.late_chunks < entry.chunks or entry.kept.any() for entry in entries)
    assert len({entry.ranks for entry in entries}) > 1


def test_what_seeds_draw():
    plans = [draw_deadlines(seed) for seed in range(150)]
    jobs = [job for plan in plans for job in plan.jobs]
    assert {fault.kind for plan in plans for fault in plan.faults} == set(KINDS)
    assert {job.wire for job in jobs} == {"int32", "int16", "int8"}
    assert any(plan.is_calm for plan in plans) and any(plan.link.loss for plan in plans)
    assert any(job.may_be_late for job in jobs) and all(job.deadline_s for job in jobs)
    assert any(call.bucket < 0 for job in jobs for call in job.calls), "some calls wait for every rank"
    assert "a deadline of" in "\n".join(plans[0].describe())


# -- what must not pass --

CALL = PlannedCall("float32", 100, "sum", None, 0, 0, "", "late", bucket=0)
JOB = JobPlan("j", (0, 1, 2), 4, 256, "int32", (CALL,), (0.0,) * 3, (True,) * 3, True, deadline_s=0.02)


def book() -> CallRecord:
    """Rank 2 is late for the second of two chunks, of 64 and 36 elements."""
    parts = [np.arange(100, dtype=np.float32) + 1000 * rank for rank in range(3)]
    kept = [np.zeros(100, np.float32) for _ in range(3)]
    kept[2][64:] = parts[2][64:]
    result = sum(parts)
    result[64:] = (parts[0] + parts[1])[64:] * np.float32(1.5)
    late = (0, 0, 1)
    return CallRecord(dict(enumerate(parts)), {r: Entry(result.copy(), kept[r], 2, late[r], 2) for r in range(3)})


def test_a_balanced_book_passes_and_so_does_one_that_a_rank_does_not_live_to_see():
    assert audit(JOB, CALL, book(), False) == ""
    without = book()
    del without.entries[2]
    assert audit(JOB, CALL, without, False) == ""


def change(which, rank, **fields):
    which.entries[rank] = dataclasses.replace(which.entries[rank], **fields)


@pytest.mark.parametrize(("rank", "fields", "problem"), [
    (2, {"kept": np.zeros(100, np.float32)}, "elements 64 ff. are not the sum of ranks"),
    (1, {"kept": np.full(100, 7, np.float32)}, "memory of rank 1 is neither what it contributed nor zeros"),
    (1, {"result": np.ones(100, np.float32)}, "bits of rank 1 differ from those of rank 0"),
    (1, {"ranks": 3}, "rank 1 says that 3 ranks are in it, rank 0 2"),
    (2, {"late_chunks": 0}, "rank 2 counts 0 late chunks, but 1 are in its memory"),
])  # fmt: skip
def test_wrong_books_are_found(rank, fields, problem):
    wrong = book()
    change(wrong, rank, **fields)
    assert problem in audit(JOB, CALL, wrong, False)


def test_a_gradient_counted_twice_or_scaled_wrong_is_found():
    twice, scaled, calm = book(), book(), book()
    for rank in range(3):
        change(twice, rank, result=twice.entries[rank].result + np.where(np.arange(100) < 64, calm.contributed[1], 0))
        change(scaled, rank, result=np.where(np.arange(100) < 64, 1, 2 / 3) * scaled.entries[rank].result)
    assert "elements 0 ff. are not the sum" in audit(JOB, CALL, twice, False)
    assert "fits no chunk" in audit(JOB, CALL, scaled, False)
    assert "nobody was late" in audit(JOB, CALL, calm, True)


@pytest.mark.parametrize("is_behind", [False, True])
def test_who_is_left_behind_must_be_behind(is_behind):
    found = Checks(True)
    found.ledgers[1, 1] = Ledger(JOB, (5, 1, 1))
    with nullcontext() if is_behind else pytest.raises(Violation, match="LeftBehind without a cause"):
        found.error((1, 1), 0, 0, LeftBehind(""), False, False, is_behind)
