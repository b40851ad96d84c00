"""Jobs whose host carries the accelerator's gradients: communication is found between the copies, and all that waits
for it, so that a replay takes what the job did, and with another network what it takes then."""

import dataclasses

import numpy as np
import pytest

from emulator.jobs.replay.engine import replay
from emulator.jobs.replay.parts import parts
from emulator.traces.events import LaneKind, What
from emulator.traces.join import MEAN, join
from emulator.traces.readers.read import read
from emulator.traces.whatif.edits import with_transfer_seconds
from tests.support.staged_traces import Staged, capture

JOBS = {
    "copies back": Staged(),
    "views of buckets": Staged(copies_back=False),
    "captured": Staged(captured=True),
    "captured, views of buckets": Staged(captured=True, copies_back=False),
    "agents": Staged(captured=True, agents=True),
    "agents, views of buckets": Staged(captured=True, agents=True, copies_back=False),
    "threads without names": Staged(named=False),
    "more buckets than streams": Staged(buckets=7, iterations=6),
    "hidden": Staged(all_reduce=100.0),
}


@pytest.fixture(params=JOBS)
def job(request):
    return JOBS[request.param]


def test_communication_is_what_lies_between_the_copies(job, tmp_path):
    capture(tmp_path, job)
    trace = read(tmp_path)[0]
    events, names = trace.events, np.array(trace.names)[trace.events.name]
    works = np.flatnonzero(events.what == What.COLLECTIVE)
    assert len(works) == job.buckets * job.iterations
    if not job.agents:  # theirs queue up
        assert events.duration_s[works] == pytest.approx(job.all_reduce * 1e-6)
    up = np.flatnonzero(names == "Memcpy HtoD (Pinned -> Device)")
    assert len(up) == len(works)
    causes = {(names[cause], caused) for cause, caused in trace.causes.tolist()}
    assert {("Memcpy DtoH (Device -> Pinned)", work) for work in works} <= causes
    assert {(names[works[0]], copy) for copy in up} <= causes
    assert {trace.lanes[lane].kind for lane in events.lane[works]} == {LaneKind.TRANSPORT}


def test_a_replay_takes_what_was_traced(job, tmp_path):
    elapsed_s = capture(tmp_path, job)
    joined = join(read(tmp_path))
    assert joined.iteration == MEAN and not any("left out" in line for line in joined.assumptions)
    assert joined.iteration_s == pytest.approx(elapsed_s, rel=0.01)
    played = replay(joined.graph, joined.costs)
    assert played.makespan_s == pytest.approx(joined.iteration_s, rel=0.005)


@pytest.mark.parametrize("all_reduce", [300.0, 1500.0, 9000.0])
def test_another_network_takes_what_the_job_takes_on_it(job, all_reduce, tmp_path):
    """So nothing waits for communication by a gap of its own."""
    capture(tmp_path, job)
    joined = join(read(tmp_path))
    every = np.arange(len(joined.graph.transfers))
    changed = with_transfer_seconds(joined, every, np.full(len(every), all_reduce * 1e-6))
    expected_s = capture(tmp_path, dataclasses.replace(job, all_reduce=all_reduce))
    assert replay(changed.graph, changed.costs).makespan_s == pytest.approx(expected_s, rel=0.03)


def test_waiting_for_sums_is_communication(tmp_path):
    job = Staged()
    elapsed_s = capture(tmp_path, job)
    joined = join(read(tmp_path))
    mean = parts(replay(joined.graph, joined.costs)).mean()
    # Two threads sum two buckets each, one after the other, and what is left of backward hides some of the first.
    hidden_s = (job.buckets - 1) * job.kernel * 1e-6
    assert mean["exposed communication"] == pytest.approx(2 * job.all_reduce * 1e-6 - hidden_s / 2, rel=0.1)
    assert mean["exposed communication"] > 0.6 * elapsed_s
    assert mean["host"] < 0.05 * elapsed_s
