"""The edits of graphs, on a job small enough to work out by hand."""

import numpy as np
import pytest

from emulator.jobs.workload.graph import Kind
from emulator.traces.whatif import edits
from tests.support import ddp_jobs
from tests.support.ddp_jobs import takes_s


@pytest.fixture
def job():
    """Forward 10 ms, two gradients of 4 and 6 ms, an all-reduce of 3 ms each, the optimizer 1 and 2 ms."""
    return ddp_jobs.ddp([1e5, 1e5], [0.004, 0.006], ranks=2, caps=[1], fixed_s=0.002, bytes_per_s=1e8)


def names(joined) -> list[str]:
    return [joined.graph.op_types.name[op_type] for op_type in joined.graph.ops.op_type]


def ops(joined, name: str) -> np.ndarray:
    return np.array([op for op, each in enumerate(names(joined)) if each == name])


def test_durations(job):
    assert takes_s(job) == pytest.approx(0.010 + 0.004 + 0.006 + 0.003 + 0.003)
    longer = edits.with_durations(job, ops(job, "forward"), np.array([0.011, 0.015]))
    assert takes_s(longer) == pytest.approx(takes_s(job) + 0.005)
    assert edits.durations(longer)[ops(longer, "forward")].tolist() == [0.011, 0.015]


def test_before_and_after_stand_in_line(job):
    reduces = np.flatnonzero(job.graph.ops.transfer == 1)
    for edit in (edits.before, edits.after):
        changed = edit(job, reduces, "codec", Kind.CODEC, np.full(2, 0.005))
        assert takes_s(changed) == pytest.approx(takes_s(job) + 0.005)
        assert len(changed.graph.ops) == len(job.graph.ops) + 2
    last = ops(job, "backward 1")
    behind = edits.after(job, last, "copy", Kind.COPY, np.full(2, 0.001))
    assert [names(behind)[op] for op, *_ in behind.gradients] == ["backward 0", "copy"] * 2, "final once it is copied"


def test_what_waited_for_a_dropped_op_waits_for_what_that_waited_for(job):
    changed = edits.drop(job, ops(job, "backward 1"))
    assert "backward 1" not in names(changed)
    assert takes_s(changed) == pytest.approx(takes_s(job) - 0.006 + 0.003), "the second all-reduce waits for the first"
    alone = edits.drop(job, np.flatnonzero(job.graph.ops.transfer >= 0))
    assert len(alone.graph.transfers) == 0
    assert takes_s(alone) == pytest.approx(0.010 + 0.004 + 0.006 + 0.003)


def test_order_is_that_of_the_key(job):
    backwards = edits.reorder(job, -np.arange(len(job.graph.ops), dtype=float))
    assert names(backwards) == names(job)[::-1]
    again = edits.reorder(backwards, -np.arange(len(job.graph.ops), dtype=float))
    assert takes_s(again) == takes_s(job) and again.gradients == job.gradients
