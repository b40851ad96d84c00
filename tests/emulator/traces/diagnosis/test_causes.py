"""Where time goes, and who waits for whom."""

import numpy as np
import pytest
from hypothesis import given

from emulator.jobs.replay.engine import replay
from emulator.jobs.replay.parts import IDLE, WAITING
from emulator.jobs.workload.graph import Order
from emulator.traces.diagnosis.causes import causes
from emulator.traces.diagnosis.context import DiagnosisContext, iterations
from tests.support.examples import examples
from tests.support.replay_graphs import cases
from tests.support.traced_jobs import Job, traced


def late(rank, name, iteration):
    return 2.0 if rank == 2 and name.startswith("backward") else 1.0


def test_waiting_is_charged_to_who_is_late():
    found = DiagnosisContext.of(traced(Job(slowness=late))).causes
    assert np.all(found.waiting_s[[0, 1, 3], 2] > 0.02)
    assert found.waiting_s[:, [0, 1, 3]].sum() == pytest.approx(0, abs=1e-9)
    assert found.waiting_s[2].sum() == pytest.approx(0, abs=1e-9)


@examples(60)
@given(cases(orders=(Order.PROGRAM, Order.READY)))
def test_who_is_waited_for_sums_to_the_waiting(case):
    played = replay(case.graph, case.costs)
    found = causes(played)
    waited_s = found.parts.by_rank[:, WAITING] + found.parts.by_rank[:, IDLE]
    assert found.waiting_s.sum(axis=1) == pytest.approx(waited_s, abs=1e-9)
    assert np.all(found.waiting_s >= 0)


def test_iterations_hold_what_starts_in_them():
    joined = traced(Job(slowness=lambda rank, name, iteration: 1.0 + iteration), iterations=3)
    found = iterations(joined.traces[0])
    assert found.own_s() == pytest.approx(np.array([1, 2, 3]) * (8 * 0.006 + 0.001))
    assert found.duration_s()[0] == pytest.approx(joined.iteration_s)


def test_replaying_with_the_same_changes_nothing():
    context = DiagnosisContext.of(traced(Job(gap_s=0.001, load_s=0.003)))
    assert context.replayed_s(own_s=context.own_s, transfer_s=context.transfer_s) == pytest.approx(context.iteration_s)
    assert context.replayed_s(own_s=context.own_s * 2, transfer_s=context.transfer_s * 2) == pytest.approx(
        2 * context.iteration_s
    )
