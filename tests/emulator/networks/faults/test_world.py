"""Fault runs: seeds pass, a seed repeats itself to the last packet, and what is wrong is found."""

import dataclasses
from contextlib import nullcontext

import numpy as np
import pytest

from emulator.networks.faults import tensors, world
from emulator.networks.faults.checks import Checks, Ledger, Violation
from emulator.networks.faults.plan import KINDS, JobPlan, PlannedCall, draw
from emulator.networks.faults.world import World, play
from emulator.networks.netsim.config import LinkConfig
from emulator.networks.netsim.rank import SteppedWorker
from switchml.errors import AggregatorLost, CollectiveTimeout, JobError, PeerLost, RanksDisagree, SumOverflow

SEEDS = 30


@pytest.fixture(scope="module")
def outcomes():
    return [play(seed) for seed in range(SEEDS)]


def test_seeds_pass(outcomes):
    assert [(outcome.seed, outcome.problem) for outcome in outcomes if outcome.problem] == []


def test_what_seeds_go_through(outcomes):
    """A run that checks nothing passes too: these did not."""
    assert sum(outcome.sums for outcome in outcomes) > 5 * SEEDS
    assert sum(outcome.errors for outcome in outcomes) > SEEDS
    assert len({outcome.trace for outcome in outcomes}) == SEEDS
    plans = [draw(seed) for seed in range(100)]
    assert {fault.kind for plan in plans for fault in plan.faults} == set(KINDS)
    assert {job.misfit for plan in plans for job in plan.jobs} == {"", "dtype", "kind", "leaves"}
    assert {job.wire for plan in plans for job in plan.jobs} == {"int32", "int16", "int8", "exact"}
    assert any(not plan.faults for plan in plans)


def test_a_seed_repeats_itself(outcomes):
    for seed in range(0, SEEDS, 15):
        assert play(seed) == outcomes[seed]
        lines: list[str] = []
        assert play(seed, lines.append) == outcomes[seed], "reading along changes nothing"
        assert len(lines) > 10


# -- what must not pass --

JOB = JobPlan(
    "j", (0, 1, 2), 4, 256, "int32", (PlannedCall("float32", 40, "sum", None, 0, 0, ""),) * 2, (0,) * 3, (True,) * 3,
    True,
)  # fmt: skip
KEY = (1, 1)


def checks(job: JobPlan = JOB, has_faults: bool = False, **ledger) -> Checks:
    found = Checks(has_faults)
    found.ledgers[KEY] = Ledger(job, (5, *KEY), **ledger)
    return found


def test_a_wrong_element_is_named():
    found = checks()
    right = found.ledgers[KEY].exact(0).values
    found.result(KEY, 0, 1, right.copy())
    wrong = right.copy()
    wrong[7] += 1
    with pytest.raises(Violation, match=r"j rank 2 call 0 .*: 1 elements are wrong, the first at 7"):
        found.result(KEY, 0, 2, wrong)


def test_other_bits_are_wrong_even_where_rounding_is_allowed():
    job = dataclasses.replace(JOB, wire="int8")
    found = checks(job)
    right = found.ledgers[KEY].exact(0).values
    found.result(KEY, 0, 0, right.copy())
    with pytest.raises(Violation, match="bits differ from another rank's"):
        found.result(KEY, 0, 1, np.nextafter(right, np.float32(np.inf)))


def test_a_result_where_an_error_was_due():
    overflowing = dataclasses.replace(JOB, calls=(PlannedCall("int32", 9, "sum", None, 0, 0, "overflow"),))
    with pytest.raises(Violation, match="does not fit"):
        checks(overflowing).result(KEY, 0, 0, np.zeros(9, np.int32))
    misfit = dataclasses.replace(JOB, misfit="dtype", misfit_rank=1, misfit_call=0)
    with pytest.raises(Violation, match="called with another dtype"):
        checks(misfit, disagrees=True).result(KEY, 0, 0, np.zeros(40, np.float32))


@pytest.mark.parametrize(("error", "ledger", "is_late", "broke", "is_right"), [
    (PeerLost("", (1,)), {"departed": {1: "lost"}}, False, False, True), (PeerLost("", (1,)), {}, False, False, False),
    (PeerLost("", (2,)), {"departed": {1: "lost"}}, False, False, False),
    (PeerLost("", ()), {"departed": {1: "lost"}}, False, False, False),
    (PeerLost("", (0,)), {"departed": {0: "lost"}}, False, False, False),
    (PeerLost("", (1,)), {"departed": {1: "left"}, "finished": {1: 0}}, False, False, True),
    (PeerLost("", (1,)), {"departed": {1: "left"}, "finished": {1: 1}}, False, False, False),
    (AggregatorLost(""), {}, False, True, True), (AggregatorLost(""), {}, True, False, False),
    (CollectiveTimeout(""), {}, True, False, True),
    (CollectiveTimeout(""), {"departed": {1: "lost"}}, False, True, False),
    (RanksDisagree(""), {"disagrees": True}, False, False, True),
    (RanksDisagree(""), {"departed": {1: "lost"}}, True, True, False), (SumOverflow(""), {}, True, True, False),
    (JobError(""), {"departed": {1: "lost"}, "disagrees": True}, True, True, False),
])  # fmt: skip
def test_errors_need_their_cause(error, ledger, is_late, broke, is_right):
    found = checks(**ledger)
    with nullcontext() if is_right else pytest.raises(Violation, match=f"{type(error).__name__} without a cause"):
        found.error(KEY, 0, 0, error, is_late, broke)


def test_a_job_that_hangs_is_found():
    """Links that carry nothing, for ever."""
    plan = next(draw(seed) for seed in range(SEEDS) if not draw(seed).faults and draw(seed).hosts > 1)
    world = World(plan)
    for link in world.down:
        link.is_cut = True
    outcome = world.run()
    assert "not done 90 s after the last fault" in outcome.problem and "job0 rank 0" in outcome.problem


def test_a_livelock_is_found(monkeypatch):
    """An agent whose timer is always due: time stands still."""
    monkeypatch.setattr(SteppedWorker, "deadline", property(lambda turns: 0))
    outcome = play(0)
    assert outcome.problem.startswith("livelock: time stands still after 1,000 events at once: job0 rank 0")
    assert outcome.events < 5000


def test_a_run_of_too_many_events_is_found(monkeypatch):
    monkeypatch.setattr(world, "_MAX_EVENTS", 100)
    outcome = play(0)
    assert outcome.problem.startswith("livelock: not done after 100 events: job0 rank 0") and outcome.events == 101


def test_ranks_that_were_stopped_after_their_peers_left():
    """A rank of this seed is stopped for 1.8 s while it waits for a sum that is complete."""
    assert play(1514).problem == ""


def test_sums_of_different_calls_may_overflow():
    """A rank of this seed calls with another dtype at first; its chunks meet those of its peer's later calls."""
    assert play(72686).problem == ""


def test_slots_that_are_never_given_back_are_found():
    plan = next(draw(seed) for seed in range(SEEDS) if not draw(seed).faults)
    world = World(plan)
    world.control.leave = lambda connection: None
    assert "the aggregator still holds" in world.run().problem


# -- tensors --


@pytest.mark.parametrize("special", ["", "nan", "inf", "infs", "zeros"])
def test_expected_sums_are_those_of_exact_arithmetic(special):
    """Fractions have no rounding: the sum is exact in the type that it is given in."""
    from fractions import Fraction

    call = PlannedCall("float32", 100, "sum", None, 0, -20, special)
    parts = [tensors.source(JOB, call, (1, 2, 3), rank) for rank in range(3)]
    exact = tensors.expected(JOB, call, (1, 2, 3)).values
    for i in range(100):
        values = [float(part[i]) for part in parts]
        if all(np.isfinite(values)):
            assert Fraction(float(exact[i])) == sum(map(Fraction, values))
        else:
            assert np.isnan(exact[i]) == (special != "inf")


def test_calm_links_are_calm():
    assert LinkConfig().loss == 0  # what `heal` gives back
