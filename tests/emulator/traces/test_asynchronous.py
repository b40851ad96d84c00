"""Jobs whose host runs ahead of its device: replays of all iterations take what the trace did, and with a device of
another speed what the job takes then. The job is played here by a few lines of its own, which share nothing with the
replay."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest

from emulator.jobs.replay.engine import replay
from emulator.jobs.workload.checks import check
from emulator.traces.events import Lane, LaneKind, What
from emulator.traces.iterations import chain
from emulator.traces.join import BACKLOG, join, join_each
from emulator.traces.steps import Steps
from emulator.traces.whatif import changes
from emulator.traces.whatif.predict import predicted, traced
from tests.support.ddp_traces import Recorder

US = 1e-6
ROOM = 300


@dataclasses.dataclass(frozen=True)
class Job:
    """Times in µs. One stream; a launch waits for room in its queue, a copy to the host for all before it."""

    kernel: float = 20.0
    launch: float = 4.0
    apart: float = 2.0
    """Of the host between two launches."""
    latency: float = 6.0
    """From the end of a launch to the start of its kernel on an idle device."""
    kernels: int = 200
    iterations: int = 5
    copies: Sequence[int] = ()
    """Iterations that end with a copy to pageable memory."""


def play(job: Job) -> tuple[Recorder, float]:
    """The trace of `job`, and when all of it was done, in seconds."""
    recorder = Recorder(0, 1)
    recorder.lanes = [Lane("main", LaneKind.HOST), Lane("stream 7", LaneKind.DEVICE)]
    at, free, done = 0.0, 0.0, []

    def enqueue(name: str, what: What, lasts: float, call: str, blocks: bool) -> None:
        nonlocal at, free
        at += job.apart
        begun = at
        if len(done) >= ROOM:
            at = max(at, done[-ROOM])
        at += job.launch
        start = max(at + job.latency, free)
        free = start + lasts
        done.append(free)
        at = max(at, free + 3.0) if blocks else at
        launch = recorder.add(call, What.LAUNCH, begun * US, at * US)
        recorder.causes.append((launch, recorder.add(name, what, start * US, free * US, lane=1)))

    for step in range(job.iterations):
        begun = at
        for number in range(job.kernels):
            enqueue(f"gemm {number % 7}", What.COMPUTE, job.kernel * (1 + number % 3), "cudaLaunchKernel", False)
        if step in job.copies:
            enqueue("Memcpy DtoH (Device -> Pageable)", What.COPY, 2.0, "cudaMemcpyAsync", True)
        recorder.steps.append((begun * US, at * US))
        at += job.apart
    return recorder, max(free, at) * US


JOBS = {
    "bound by its host": Job(kernel=1.0),
    "never waiting": Job(iterations=2, kernels=140),
    "held up by its queue": Job(),
    "waiting for copies": Job(kernels=120, copies=range(5)),
    "waiting now and then": Job(kernels=120, iterations=7, copies=(1, 4)),
}


@pytest.mark.parametrize("name", JOBS)
def test_all_iterations_take_what_they_took(name):
    recorder, elapsed_s = play(JOBS[name])
    each = join_each([recorder.trace()])
    check(chain(each)[0])
    was, again = traced(each), predicted(each)
    assert was.iteration_s * len(each) == pytest.approx(elapsed_s, rel=0.001)
    assert again.iteration_s == pytest.approx(was.iteration_s, rel=0.005)
    assert again.mean()["compute"] == pytest.approx(was.mean()["compute"], rel=0.005)
    assert "waiting for peers" not in was.mean() | again.mean()


@pytest.mark.parametrize("faster", [0.4, 2.0, 8.0])
@pytest.mark.parametrize("name", JOBS)
def test_a_device_of_another_speed(name, faster):
    job = JOBS[name]
    each = [changes.accelerator(one, faster) for one in join_each([play(job)[0].trace()])]
    _, elapsed_s = play(dataclasses.replace(job, kernel=job.kernel / faster))
    assert predicted(each).iteration_s * len(each) == pytest.approx(elapsed_s, rel=0.05)


def test_one_iteration_begins_with_the_work_of_those_before():
    recorder, elapsed_s = play(JOBS["held up by its queue"])
    last = join([recorder.trace()], iteration=4)
    backlog = [work == BACKLOG for work in last.graph.op_types.name]
    assert any(backlog)
    assert predicted([last]).iteration_s == pytest.approx(elapsed_s - recorder.steps[4][0], rel=0.005)
    assert predicted([last]).iteration_s == pytest.approx(traced([last]).iteration_s, rel=0.005)


def test_a_mean_iteration_takes_what_the_device_does():
    """However far ahead the host is."""
    recorder, elapsed_s = play(JOBS["held up by its queue"])
    mean = join([recorder.trace()])
    assert mean.iteration_s * 5 == pytest.approx(elapsed_s, rel=1e-9)
    assert predicted([mean]).iteration_s == pytest.approx(mean.iteration_s, rel=0.01)
    assert any("ahead of their devices" in line for line in mean.assumptions)


def test_a_mean_iteration_begins_with_its_host_ahead():
    """Its devices are free at once, and what the host did until then takes no time."""
    last = join_each([play(JOBS["held up by its queue"])[0].trace()])[-1]
    mean = join([play(JOBS["held up by its queue"])[0].trace()])
    played = replay(mean.graph, mean.costs)
    kernels = np.flatnonzero(
        [name.startswith("gemm") for name in np.array(mean.graph.op_types.name)[mean.graph.ops.op_type]]
    )
    assert played.start_s[kernels].min() < 20 * US
    host = mean.graph.ops.stream == mean.main[0]
    busy_s = played.end_s[host] - played.start_s[host]
    whole_s = last.costs.op_type_s[last.graph.ops.op_type[last.graph.ops.stream == last.main[0]]]
    assert busy_s.sum() < 0.9 * whole_s.sum()


def test_room_in_the_queue_is_seen_where_launches_wait_for_it():
    steps = Steps(play(JOBS["held up by its queue"])[0].trace())
    pairs = np.concatenate([steps.causes(step) for step in range(5)])
    is_room = steps.lane_kind[pairs[:, 0]] == LaneKind.DEVICE
    kernels = np.flatnonzero(steps.lane_kind == LaneKind.DEVICE)
    calls = np.flatnonzero(steps.lane_kind == LaneKind.HOST)
    apart = np.searchsorted(calls, pairs[is_room, 1]) - np.searchsorted(kernels, pairs[is_room, 0])
    assert is_room.sum() == 5 * 200 - ROOM
    assert set(apart.tolist()) <= {ROOM, ROOM - 1}
    steps = Steps(play(JOBS["never waiting"])[0].trace())
    pairs = steps.causes(1)
    assert not (steps.lane_kind[pairs[:, 0]] == LaneKind.DEVICE).any()


def test_copies_that_block_are_known_by_their_kind():
    recorder, _ = play(JOBS["waiting for copies"])
    steps = Steps(recorder.trace())
    blocked = steps.blocks[steps.blocks >= 0]
    assert [recorder.trace().names[name] for name in recorder.trace().events.name[blocked]] == [
        "Memcpy DtoH (Device -> Pageable)"
    ] * 5
    for row in recorder.rows:
        row["name"] = row["name"].replace("Pageable", "Pinned")
    assert not (Steps(recorder.trace()).blocks >= 0).any()


def test_a_stream_that_was_idle_waited_for_another():
    """A kernel of stream 9 is launched first of all and begins when stream 7 has come as far; nothing says why."""
    recorder = Recorder(0, 1)
    recorder.lanes = [Lane("main", LaneKind.HOST), *(Lane(f"stream {number}", LaneKind.DEVICE) for number in (7, 9))]
    rows = [("gemm", 1, 10.0, 400.0), ("gemm", 1, 401.0, 800.0), ("copy", 2, 402.0, 440.0), ("gemm", 1, 801.0, 900.0)]
    for number, (name, lane, start, end) in enumerate(rows):
        launch = recorder.add("cudaLaunchKernel", What.LAUNCH, number * 6.0 * US, (number * 6.0 + 4) * US)
        recorder.causes.append((launch, recorder.add(name, What.COMPUTE, start * US, end * US, lane=lane)))
    recorder.steps = [(0.0, 30.0 * US)]
    trace = recorder.trace()
    names = [trace.names[name] for name in trace.events.name]
    steps = Steps(trace)
    first = names.index("gemm")
    assert [first, names.index("copy")] in steps.causes(0).tolist()
    (twice,) = [changes.accelerator(one, 2.0) for one in join_each([trace])]
    played = replay(twice.graph, twice.costs)
    op = [twice.graph.op_types.name[work] for work in twice.graph.ops.op_type].index("copy")
    assert played.start_s[op] == pytest.approx((10 + 390 / 2 + 2) * US, abs=2 * US)
