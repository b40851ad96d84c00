"""The arithmetic of ranks that meet, against the replay of the same program as a graph."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.jobs.replay.conditions import Conditions
from emulator.jobs.replay.engine import replay
from emulator.peers.program import Program
from emulator.peers.timing import OWN, CollectiveTimes, CommunicatorTimes, Progress, blocked
from tests.support.examples import examples

SECONDS = st.floats(0, 2, allow_nan=False)


@st.composite
def programs(draw):
    """(world, paces, groups, steps): steps as a script takes them; a wait names calls by their number."""
    world = draw(st.integers(2, 5))
    paces = [1.0, *draw(st.lists(st.sampled_from([0.5, 1.0, 1.5, 3.0]), min_size=world - 1, max_size=world - 1))]
    others = st.sets(st.integers(1, world - 1), min_size=1)
    groups = draw(st.lists(others.map(lambda ranks: (0, *sorted(ranks))), min_size=1, max_size=3))
    steps, calls = [], 0
    for _ in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(["compute", "call", "wait"]))
        if kind == "compute":
            steps.append(("compute", draw(SECONDS)))
        elif kind == "call":
            steps.append(("call", draw(st.integers(0, len(groups) - 1)), draw(SECONDS)))
            calls += 1
        elif calls:
            steps.append(("wait", draw(st.sets(st.integers(0, calls - 1), min_size=1))))
    return world, paces, groups, [*steps, ("compute", 0.25)]


@given(programs())
@examples(150)
def test_equals_the_replay(program):
    """Where every rank has come at the end, and when each collective began and ended for this rank."""
    world, paces, groups, steps = program
    progress = Progress(0, np.arange(1, world), np.array(paces))
    everyone = np.ones(world, bool)
    lines = [CommunicatorTimes(progress, np.isin(progress.ranks, group), everyone) for group in groups]
    written, times, numbers = Program(), [], []
    for step in steps:
        if step[0] == "compute":
            progress.compute(step[1])
            written.compute(step[1])
        elif step[0] == "call":
            ready_s, last_s = lines[step[1]].arrive(progress.at_s.copy())
            times.append(lines[step[1]].complete(ready_s, last_s, step[2]))
            numbers.append(written.call(step[1], groups[step[1]], "all_reduce", 1.0, step[2]))
        else:
            progress.wait(np.max([times[call].end_s for call in step[1]], axis=0))
            written.wait([numbers[call] for call in step[1]])
    graph, costs = written.graph(list(range(world)), np.array(paces))
    played = replay(graph, costs, Conditions())
    names = np.array([graph.streams.name[stream] for stream in graph.ops.stream])
    for rank in range(world):
        mine = graph.op_rank() == rank
        assert progress.at_s[rank] == pytest.approx(played.end_s[mine & (names == "compute")].max())
        ends = sorted(played.end_s[mine & (names != "compute")])
        assert ends == pytest.approx(sorted(each.end_s[rank] for each in times))
    assert sorted(played.transfer_start_s) == pytest.approx(sorted(each.start_s for each in times))


def times_of(came_s: float, start_s: float, end_s: float) -> CollectiveTimes:
    return CollectiveTimes(came_s, start_s, np.array([end_s]))


@pytest.mark.parametrize(
    ("from_s", "times", "transfer_s", "peers_s"),
    [
        (0.0, [times_of(0.0, 0.0, 2.0)], 2.0, 0.0),
        (1.0, [times_of(0.0, 0.0, 2.0)], 1.0, 0.0),  # half of it was hidden
        (3.0, [times_of(0.0, 0.0, 2.0)], 0.0, 0.0),
        (0.0, [times_of(0.0, 1.5, 2.0)], 0.5, 1.5),
        (1.0, [times_of(0.0, 1.5, 2.0)], 0.5, 0.5),
        (1.0, [times_of(0.5, 0.5, 3.0), times_of(3.0, 3.0, 4.0)], 3.0, 0.0),  # the second queued behind the first
        (1.0, [times_of(3.0, 5.0, 6.0), times_of(0.5, 0.5, 3.0)], 3.0, 2.0),
    ],
)
def test_blocked(from_s, times, transfer_s, peers_s):
    assert blocked(from_s, times) == (transfer_s, peers_s)


def test_a_straggler_holds_up_everyone_who_waits():
    progress = Progress(0, np.array([1, 2]), np.array([1.0, 1.0, 2.0]))
    line = CommunicatorTimes(progress, np.ones(3, bool), np.ones(3, bool))
    for iteration in range(1, 4):
        progress.compute(1.0)
        done = line.complete(*line.arrive(progress.at_s.copy()), 0.5)
        progress.wait(done.end_s)
        assert progress.at_s.tolist() == [2.5 * iteration] * 3
        assert done.end_s[OWN] - done.came_s == 1.5
