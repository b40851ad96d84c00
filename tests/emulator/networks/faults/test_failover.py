"""Seeds in which aggregators die, one after the other or at once: no call fails."""

from contextlib import nullcontext

import pytest

from emulator.networks.faults import checks
from emulator.networks.faults.failover_plan import KINDS, SUSPICION, draw_failover
from emulator.networks.faults.plan import JobPlan
from emulator.networks.faults.world import play
from switchml.errors import AggregatorLost, PeerLost

SEEDS = 12


def test_seeds_pass_and_jobs_move():
    lines: list[str] = []
    outcomes = [play(seed, lines.append, kind="failover") for seed in range(SEEDS)]
    assert [(outcome.seed, outcome.problem) for outcome in outcomes if outcome.problem] == []
    moves = [line.rpartition(" ")[2] for line in lines if " moved " in line]
    assert len(moves) > SEEDS // 3 and "2" in moves, "some ranks move on"
    assert play(3, kind="failover") == outcomes[3], "a seed repeats itself"


def test_what_seeds_draw():
    plans = [draw_failover(seed) for seed in range(200)]
    assert {fault.kind for plan in plans for fault in plan.faults} == {*KINDS, SUSPICION}
    assert {plan.aggregators for plan in plans} == {1, 2, 3}
    crashes = [[fault for fault in plan.faults if fault.kind == "aggregator"] for plan in plans]
    assert sum(any(fault.aggregator for fault in each) for each in crashes) > 40, "standbys die as well"
    assert sum(len(each) > 1 for each in crashes) > 80, "two in a row"
    assert any(len({clock.gain_ppm for clock in plan.clocks}) > 1 for plan in plans), "clocks differ"
    assert not any(call.timeout_s for plan in plans for job in plan.jobs for call in job.calls)
    assert "aggregators, 40 s to go on" in "\n".join(plans[0].describe())


@pytest.mark.parametrize("error", [AggregatorLost(""), PeerLost("", (1,))], ids=["aggregator", "peer"])
@pytest.mark.parametrize(("started", "is_right"), [({0, 1, 2}, False), ({0, 2}, True)])
def test_a_call_may_fail_only_where_the_job_did_not_begin_for_all(started, is_right, error):
    job = JobPlan("j", (0, 1, 2), 4, 256, "int32", (), (0.0,) * 3, (True,) * 3, True)
    found = checks.Checks(True, goes_on=True)
    found.ledgers[1, 1] = checks.Ledger(job, (5, 1, 1), departed={1: "lost"}, started=started)
    with nullcontext() if is_right else pytest.raises(checks.Violation, match="Lost without a cause"):
        found.error((1, 1), 0, 0, error, False, True)
