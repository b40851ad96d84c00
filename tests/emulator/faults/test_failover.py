"""Seeds in which aggregators die, one after the other or at once: no call fails."""

import pytest

from emulator.faults import checks
from emulator.faults.failover_plan import KINDS, SUSPICION, draw_failover
from emulator.faults.plan import JobPlan
from emulator.faults.world import play
from switchml.errors import AggregatorLost, PeerLost

SEEDS = 12


def test_seeds_pass_and_jobs_move():
    lines: list[str] = []
    outcomes = [play(seed, lines.append, failover=True) for seed in range(SEEDS)]
    assert [(outcome.seed, outcome.problem) for outcome in outcomes if outcome.problem] == []
    assert sum(" moved " in line for line in lines) > SEEDS // 3
    assert play(3, failover=True) == outcomes[3], "a seed repeats itself"


def test_what_seeds_draw():
    plans = [draw_failover(seed) for seed in range(200)]
    assert {fault.kind for plan in plans for fault in plan.faults} == {*KINDS, SUSPICION}
    assert {plan.aggregators for plan in plans} == {1, 2, 3}
    assert any(fault.site for plan in plans for fault in plan.faults), "standbys die as well"
    assert not any(call.timeout_s for plan in plans for job in plan.jobs for call in job.calls)
    assert "aggregators, 40 s to go on" in "\n".join(plans[0].describe())


@pytest.mark.parametrize("error", [AggregatorLost(""), PeerLost("", (1,))], ids=["aggregator", "peer"])
@pytest.mark.parametrize(("started", "is_right"), [({0, 1, 2}, False), ({0, 2}, True)])
def test_a_call_may_fail_only_where_the_job_did_not_begin_for_all(started, is_right, error):
    job = JobPlan("j", (0, 1, 2), 4, 256, "int32", (), (0.0,) * 3, (True,) * 3, True)
    found = checks.Checks(True, goes_on=True)
    found.ledgers[1, 1] = checks.Ledger(job, (5, 1, 1), departed={1: "lost"}, started=started)
    if is_right:
        found.error((1, 1), 0, 0, error, False, True)
    else:
        with pytest.raises(checks.Violation, match="Lost without a cause"):
            found.error((1, 1), 0, 0, error, False, True)
