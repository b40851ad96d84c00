"""A traced iteration as the passes want it: all-reduces of buckets one after the other on one stream of each rank, and
the time between a call and its all-reduce counted with the all-reduce, so that both move together.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from emulator.optimizer import chains
from emulator.traces.joined import GAP, Joined
from emulator.whatif import edits as edit
from emulator.whatif.buckets import gradients
from emulator.whatif.network import one_at_a_time
from emulator.whatif.transfers import arrivals_s
from emulator.workload.graph import NO_MEETING, Kind


def prepared(joined: Joined) -> Joined:
    """The same iteration, of the same length but for what ranks' gaps differ by."""
    joined = one_at_a_time(joined)
    graph, ops = joined.graph, joined.graph.ops
    members = np.flatnonzero(np.isin(ops.meeting, gradients(joined).meetings))
    before, _ = chains.on_stream(graph)
    gaps = before[members]
    is_gap = (gaps >= 0) & (joined.event[gaps] == GAP) & (ops.meeting[gaps] == NO_MEETING)
    is_gap &= graph.op_kind()[gaps] == Kind.DELAY
    members, gaps = members[is_gap], gaps[is_gap]
    if not len(gaps):
        return joined
    joined = _longer(joined, members, edit.durations(joined)[gaps])
    gap_of = dict(zip(members.tolist(), gaps.tolist(), strict=True))
    stays = np.ones(len(ops), bool)
    stays[gaps] = False
    left = np.flatnonzero(stays)
    place = np.full(len(ops), -1, np.int64)
    place[left] = np.arange(len(left))

    def waits(op: int) -> list[int]:
        found: set[int] = set()
        todo = list(ops.before(op)) + ([gap_of[op]] if op in gap_of else [])
        while todo:
            dep = int(todo.pop())
            if stays[dep]:
                found.add(int(place[dep]))
            else:
                todo += ops.before(dep).tolist()
        return sorted(found)

    return edit.kept(joined, left, [waits(op) for op in left.tolist()], ops.stream[left])


def _longer(joined: Joined, members: np.ndarray, gap_s: np.ndarray) -> Joined:
    """Each meeting takes as much longer as the gap of the member that was last to come."""
    meeting = joined.graph.ops.meeting[members]
    last_s = arrivals_s(joined)
    fixed_s = joined.costs.meeting_fixed_s.copy()
    for number in np.unique(meeting):
        own = np.flatnonzero(meeting == number)
        came_s = joined.start_s[members[own]]
        latest = own[np.argmin(np.abs(came_s - last_s[number]))]
        fixed_s[number] += gap_s[latest]
    return dataclasses.replace(joined, costs=dataclasses.replace(joined.costs, meeting_fixed_s=fixed_s))
