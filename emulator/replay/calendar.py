"""The engine for jobs in which things compete: streams that take what is ready, transfers that share links, compute
that communication slows, ranks that pause. At each moment

1. everything that ends at it ends, and what waited for that alone becomes ready. Streams in program order take their
next op at once; it holds the stream while it waits for the other members of its meeting. 2. Streams of order READY
choose, when nothing more ends at this moment: of all ops and complete meetings whose streams are idle the first by
priority, ready time and number starts; again, until none is left. 3. Rates follow: shares of links, and how fast each
rank computes.

`reference.py` is a plain writing of the same rules.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from emulator.replay import fairness, queues
from emulator.replay.conditions import Flat, noise
from emulator.replay.fairness import Sharing
from emulator.replay.queues import Agenda, Lines
from emulator.workload.costs import Costs
from emulator.workload.graph import Graph, Kind, Order
from switchml.jit import kernel

IDLE, ALONE, LATENCY, MOVING, FOLLOWING = range(5)
"""What a stream does: nothing; an op without a meeting, or with one that is not complete; leading a meeting through its
fixed time; leading it while bytes move; being in a meeting that another stream leads."""


class Plan(NamedTuple):
    """What does not change while a job is played."""

    work: np.ndarray
    stream: np.ndarray
    meeting: np.ndarray
    after_start: np.ndarray
    """int64 (ops + 1,): op i is waited for by `after[after_start[i]:after_start[i + 1]]`."""
    after: np.ndarray
    """int32."""
    following: np.ndarray
    """int32 (ops,): the next op on a stream in program order, −1: none."""
    member_start: np.ndarray
    """int64 (meetings + 1,)."""
    member: np.ndarray
    """int32: the ops of each meeting, in the order of the graph."""
    meeting_work: np.ndarray
    stream_rank: np.ndarray
    is_ready_order: np.ndarray
    """bool (streams,)."""
    rank_start: np.ndarray
    """int64 (ranks + 1,): the streams of each rank are `rank_stream[rank_start[r]:rank_start[r + 1]]`."""
    rank_stream: np.ndarray
    first_start: np.ndarray
    """int64 (ranks + 1,): the ops of each rank that wait for nothing, in `first`."""
    first: np.ndarray
    priority: np.ndarray
    """int32 (works,)."""
    is_slowed: np.ndarray
    """bool (works,): computing, which communication slows."""
    slows: np.ndarray
    """bool (works,): communicating, which slows it."""
    work_s: np.ndarray
    """float64 (works,)."""
    fixed_s: np.ndarray
    """float64 (meetings,): a meeting's time before its bytes move, or all of it where it has no route."""
    bytes: np.ndarray
    """float64 (meetings,)."""
    limit: np.ndarray
    """float64 (meetings,): bytes/s."""
    route: np.ndarray
    """int32 (meetings,): −1: none."""


class State(NamedTuple):
    """What does."""

    start_s: np.ndarray
    """float64 (ops,): when an op took its stream; of one that stands in line, since when it is ready."""
    end_s: np.ndarray
    """float64 (ops,): NaN: not yet."""
    meeting_start_s: np.ndarray
    """float64 (meetings,): when it began; NaN: not yet."""
    meeting_last: np.ndarray
    """int32 (meetings,): the member that came last."""
    waits: np.ndarray
    """int32 (ops,): for how many ops it still waits."""
    left: np.ndarray
    """int32 (meetings,): members still to come."""
    running: np.ndarray
    """int32 (streams,): the op that holds a stream, −1: none."""
    phase: np.ndarray
    """int8 (streams,)."""
    remaining: np.ndarray
    """float64 (streams,): seconds or bytes that are left of what runs, at `since_s`."""
    since_s: np.ndarray
    """float64 (streams,)."""
    speed: np.ndarray
    """float64 (streams,): how many of its seconds pass in one second."""
    parked: np.ndarray
    """int32 (streams,): first complete meeting that stands in line for a stream, −1: none."""
    next_parked: np.ndarray
    """int32 (meetings,)."""
    drag: np.ndarray
    """int32 (ranks,): transfers in progress."""
    next_pause: np.ndarray
    """int64 (ranks,): −1 before the rank has begun, then twice the number of its next pause, and one more inside
    one."""
    dirty: np.ndarray
    """int32 (streams,): streams that must choose."""
    is_dirty: np.ndarray
    changed: np.ndarray
    """int32 (ranks,): ranks whose speed may have changed."""
    is_changed: np.ndarray
    counts: np.ndarray
    """int64 (4,): dirty streams, changed ranks, events, ended ops."""
    now_s: np.ndarray
    """float64 (1,)."""
    agenda: Agenda
    lines: Lines
    sharing: Sharing


DIRTY, CHANGED, EVENTS, ENDED = range(4)


def begin(graph: Graph, costs: Costs, flat: Flat, fixed_s: np.ndarray, route: np.ndarray, bytes: np.ndarray):
    """(Plan, State) before anything has run. `fixed_s`, `route` and `bytes` are (meetings,), noise included."""
    ops, streams, meetings, ranks = len(graph.ops), len(graph.streams), len(graph.meetings), len(graph.ranks)
    is_ready_order = graph.streams.order == Order.READY
    waits, after_start, after, following = _successors(
        graph.ops.dep_start, graph.ops.deps, graph.ops.stream, is_ready_order
    )
    member_start, member = _grouped(graph.ops.meeting, meetings)
    rank_start, rank_stream = _grouped(graph.streams.rank, ranks)
    first = np.flatnonzero(waits == 0).astype(np.int32)
    first_start, by_rank = _grouped(graph.streams.rank[graph.ops.stream[first]], ranks)
    kinds = graph.works.kind
    plan = Plan(
        work=graph.ops.work,
        stream=graph.ops.stream,
        meeting=graph.ops.meeting,
        after_start=after_start,
        after=after,
        following=following,
        member_start=member_start,
        member=member,
        meeting_work=graph.meetings.work,
        stream_rank=graph.streams.rank,
        is_ready_order=is_ready_order,
        rank_start=rank_start,
        rank_stream=rank_stream,
        first_start=first_start,
        first=first[by_rank],
        priority=graph.works.priority,
        is_slowed=np.isin(kinds, (Kind.COMPUTE, Kind.CODEC)),
        slows=np.isin(kinds, (Kind.COLLECTIVE, Kind.SEND, Kind.RECV)),
        work_s=costs.work_s,
        fixed_s=fixed_s,
        bytes=bytes,
        limit=np.asarray(costs.meeting_bytes_per_s, np.float64),
        route=np.asarray(route, np.int32),
    )
    start_s = np.full(ops, np.nan)
    agenda = queues.empty_agenda(streams + ranks)
    for rank in range(ranks):
        queues.put(agenda, streams + rank, flat.start_s[rank])
    used = route[route >= 0]
    hops = np.diff(costs.fabric.start)[used]
    line_ops = ops if is_ready_order.any() else 0
    state = State(
        start_s=start_s,
        end_s=np.full(ops, np.nan),
        meeting_start_s=np.full(meetings, np.nan),
        meeting_last=np.full(meetings, -1, np.int32),
        waits=waits,
        left=np.diff(member_start).astype(np.int32),
        running=np.full(streams, -1, np.int32),
        phase=np.zeros(streams, np.int8),
        remaining=np.zeros(streams),
        since_s=np.zeros(streams),
        speed=np.ones(streams),
        parked=np.full(streams, -1, np.int32),
        next_parked=np.full(meetings, -1, np.int32),
        drag=np.zeros(ranks, np.int32),
        next_pause=np.full(ranks, -1, np.int64),
        dirty=np.zeros(streams, np.int32),
        is_dirty=np.zeros(streams, np.bool_),
        changed=np.zeros(ranks, np.int32),
        is_changed=np.zeros(ranks, np.bool_),
        counts=np.zeros(4, np.int64),
        now_s=np.zeros(1),
        agenda=agenda,
        lines=Lines(
            root=np.full(streams, -1, np.int32),
            child=np.full(line_ops, -1, np.int32),
            sibling=np.full(line_ops, -1, np.int32),
            priority=graph.works.priority,
            work=graph.ops.work,
            ready_s=start_s,
        ),
        sharing=fairness.empty_sharing(costs.fabric, streams if len(used) else 0, int(hops.max()) if len(used) else 0),
    )
    return plan, state


@kernel
def _successors(dep_start, deps, stream, is_ready_order):
    """int32 (ops,): how many ops each waits for, its predecessor on a stream in program order included; who waits for
    it, as runs; the next op on such a stream."""
    ops = len(stream)
    waits = np.zeros(ops, np.int32)
    after_start = np.zeros(ops + 2, np.int64)
    following = np.full(ops, -1, np.int32)
    last = np.full(len(is_ready_order), -1, np.int32)
    for op in range(ops):
        waits[op] = dep_start[op + 1] - dep_start[op]
        for i in range(dep_start[op], dep_start[op + 1]):
            after_start[deps[i] + 2] += 1
        if not is_ready_order[stream[op]]:
            if last[stream[op]] >= 0:
                following[last[stream[op]]] = op
                waits[op] += 1
            last[stream[op]] = op
    for op in range(ops + 1):
        after_start[op + 1] += after_start[op]
    after = np.empty(len(deps), np.int32)
    for op in range(ops):
        for i in range(dep_start[op], dep_start[op + 1]):
            after[after_start[deps[i] + 1]] = op
            after_start[deps[i] + 1] += 1
    return waits, after_start[:-1], after, following


@kernel
def _grouped(label, count):
    """Who has each label from 0 to count − 1, as runs: int64 (count + 1,), int32. Negative labels are left out."""
    start = np.zeros(count + 2, np.int64)
    for i in range(len(label)):
        if label[i] >= 0:
            start[label[i] + 2] += 1
    for i in range(count + 1):
        start[i + 1] += start[i]
    who = np.empty(start[count + 1], np.int32)
    for i in range(len(label)):
        if label[i] >= 0:
            who[start[label[i] + 1]] = i
            start[label[i] + 1] += 1
    return start[:-1], who


@kernel
def run(budget, plan, flat, state):
    """Play until nothing is left to happen, or about `budget` more events have."""
    last_event = state.counts[EVENTS] + budget
    agenda = state.agenda
    streams = len(state.running)
    while agenda.size[0] and state.counts[EVENTS] < last_event:
        now_s = agenda.at_s[agenda.heap[0]]
        if now_s == np.inf:
            break
        state.now_s[0] = now_s
        while agenda.size[0] and agenda.at_s[agenda.heap[0]] == now_s:
            item = queues.take(agenda)
            state.counts[EVENTS] += 1
            if item >= streams:
                _begin_or_pause(plan, flat, state, item - streams, now_s)
            elif state.phase[item] == LATENCY and plan.route[plan.meeting[state.running[item]]] >= 0:
                _move(plan, state, item, now_s)
            elif state.phase[item] == ALONE:
                _end(plan, flat, state, state.running[item], now_s)
            else:
                _part(plan, flat, state, item, now_s)
        if state.counts[DIRTY]:
            _choose(plan, flat, state, now_s)
        if agenda.size[0] and agenda.at_s[agenda.heap[0]] == now_s:
            continue
        if state.counts[CHANGED]:
            _settle_ranks(plan, flat, state, now_s)
        if len(state.sharing.route) and state.sharing.listed[0]:
            _settle_links(state, now_s)


@kernel
def _begin_or_pause(plan, flat, state, rank, now_s):
    """A rank's moment: its job begins, or a pause of it begins or ends."""
    if state.next_pause[rank] < 0:
        state.next_pause[rank] = 2 * flat.pause_start[rank]
        for i in range(plan.first_start[rank], plan.first_start[rank + 1]):
            _ready(plan, flat, state, plan.first[i], now_s)
    else:
        state.next_pause[rank] += 1
        _change(state, rank)
    pause, is_inside = state.next_pause[rank] >> 1, state.next_pause[rank] & 1
    if is_inside:
        queues.put(state.agenda, len(state.running) + rank, max(now_s, flat.pause_until_s[pause]))
    elif pause < flat.pause_start[rank + 1]:
        queues.put(state.agenda, len(state.running) + rank, max(now_s, flat.pause_from_s[pause]))


@kernel
def _ready(plan, flat, state, op, now_s):
    """All that `op` waited for has ended."""
    stream, meeting = plan.stream[op], plan.meeting[op]
    state.start_s[op] = now_s
    if not plan.is_ready_order[stream]:
        state.running[stream] = op
        if meeting < 0:
            _start(plan, flat, state, op, now_s)
    elif meeting < 0:
        state.lines.root[stream] = queues.join(state.lines, state.lines.root[stream], op)
        _mark(state, stream)
    if meeting < 0:
        return
    state.left[meeting] -= 1
    state.meeting_last[meeting] = op
    if state.left[meeting] > 0:
        return
    for i in range(plan.member_start[meeting], plan.member_start[meeting + 1]):
        stream = plan.stream[plan.member[i]]
        if plan.is_ready_order[stream]:
            state.meeting_start_s[meeting] = now_s
            _park(state, meeting, stream)
            _mark(state, stream)
            return
    _meet(plan, state, meeting, now_s)


@kernel(inline=True)
def _mark(state, stream):
    if not state.is_dirty[stream]:
        state.is_dirty[stream] = True
        state.dirty[state.counts[DIRTY]] = stream
        state.counts[DIRTY] += 1


@kernel(inline=True)
def _park(state, meeting, stream):
    state.next_parked[meeting] = state.parked[stream]
    state.parked[stream] = meeting


@kernel(inline=True)
def _change(state, rank):
    if not state.is_changed[rank]:
        state.is_changed[rank] = True
        state.changed[state.counts[CHANGED]] = rank
        state.counts[CHANGED] += 1


@kernel
def _speed(plan, flat, state, op):
    """How many seconds of `op` pass in one second now."""
    rank = plan.stream_rank[plan.stream[op]]
    if state.next_pause[rank] & 1:
        return 0.0
    if state.drag[rank] and plan.is_slowed[plan.work[op]]:
        return 1.0 / (1.0 + flat.slowdown)
    return 1.0


@kernel
def _start(plan, flat, state, op, now_s):
    """`op`, which no meeting holds up, takes its stream."""
    stream = plan.stream[op]
    seconds = plan.work_s[plan.work[op]] * flat.slowness[plan.stream_rank[stream]]
    if flat.sigma > 0:
        seconds *= noise(flat.seed, op, flat.sigma)
    state.start_s[op] = now_s
    state.running[stream] = op
    state.phase[stream] = ALONE
    state.remaining[stream] = seconds
    state.since_s[stream] = now_s
    speed = _speed(plan, flat, state, op)
    state.speed[stream] = speed
    queues.put(state.agenda, stream, now_s + seconds if speed == 1.0 else now_s + seconds / speed)


@kernel
def _meet(plan, state, meeting, now_s):
    """All members are there, and all their streams free: the meeting begins."""
    state.meeting_start_s[meeting] = now_s
    slows = plan.slows[plan.meeting_work[meeting]]
    for i in range(plan.member_start[meeting], plan.member_start[meeting + 1]):
        op = plan.member[i]
        stream = plan.stream[op]
        if plan.is_ready_order[stream]:
            state.start_s[op] = now_s
        state.running[stream] = op
        state.phase[stream] = FOLLOWING
        if slows:
            state.drag[plan.stream_rank[stream]] += 1
            _change(state, plan.stream_rank[stream])
    leader = plan.stream[plan.member[plan.member_start[meeting]]]
    state.phase[leader] = LATENCY
    queues.put(state.agenda, leader, now_s + plan.fixed_s[meeting])


@kernel
def _move(plan, state, leader, now_s):
    """A meeting's fixed time is over: its bytes enter the fabric."""
    meeting = plan.meeting[state.running[leader]]
    state.phase[leader] = MOVING
    state.remaining[leader] = plan.bytes[meeting]
    state.since_s[leader] = now_s
    queues.put(state.agenda, leader, np.inf)
    fairness.enter(state.sharing, leader, plan.route[meeting], plan.limit[meeting])


@kernel
def _part(plan, flat, state, leader, now_s):
    """A meeting is over."""
    meeting = plan.meeting[state.running[leader]]
    if state.phase[leader] == MOVING:
        fairness.leave(state.sharing, leader)
    slows = plan.slows[plan.meeting_work[meeting]]
    for i in range(plan.member_start[meeting], plan.member_start[meeting + 1]):
        rank = plan.stream_rank[plan.stream[plan.member[i]]]
        if slows:
            state.drag[rank] -= 1
            _change(state, rank)
        _end(plan, flat, state, plan.member[i], now_s)


@kernel
def _end(plan, flat, state, op, now_s):
    """`op` is done: its stream is free, and who waited for it waits for one less."""
    stream = plan.stream[op]
    state.end_s[op] = now_s
    state.running[stream] = -1
    state.phase[stream] = IDLE
    state.counts[ENDED] += 1
    for i in range(plan.after_start[op], plan.after_start[op + 1]):
        after = plan.after[i]
        state.waits[after] -= 1
        if state.waits[after] == 0:
            _ready(plan, flat, state, after, now_s)
    after = plan.following[op]
    if after >= 0:
        state.waits[after] -= 1
        if state.waits[after] == 0:
            _ready(plan, flat, state, after, now_s)
    if plan.is_ready_order[stream]:
        _mark(state, stream)


@kernel
def _choose(plan, flat, state, now_s):
    """Let the dirty streams take what is first in line. A meeting that finds one of its streams busy stands in line for
    that stream: until it is free, the meeting can't begin."""
    meetings = 0
    for at in range(state.counts[DIRTY]):
        meeting = state.parked[state.dirty[at]]
        while meeting >= 0:
            meetings += 1
            meeting = state.next_parked[meeting]
    if meetings:
        _choose_with_meetings(plan, flat, state, now_s, meetings)
    else:
        for at in range(state.counts[DIRTY]):
            stream = state.dirty[at]
            if state.running[stream] < 0 and state.lines.root[stream] >= 0:
                _start(plan, flat, state, queues.step_up(state.lines, stream), now_s)
    for at in range(state.counts[DIRTY]):
        state.is_dirty[state.dirty[at]] = False
    state.counts[DIRTY] = 0


@kernel
def _choose_with_meetings(plan, flat, state, now_s, meetings):
    most = meetings + state.counts[DIRTY]
    who = np.empty(most, np.int64)  # an op, or −1 − a meeting
    number, ready_s, priority = np.empty(most), np.empty(most), np.empty(most)
    count = 0
    for at in range(state.counts[DIRTY]):
        stream = state.dirty[at]
        meeting = state.parked[stream]
        state.parked[stream] = -1
        while meeting >= 0:
            who[count] = -1 - meeting
            number[count] = plan.member[plan.member_start[meeting]]
            ready_s[count] = state.meeting_start_s[meeting]
            priority[count] = plan.priority[plan.meeting_work[meeting]]
            count += 1
            meeting = state.next_parked[meeting]
        op = state.lines.root[stream]
        if op >= 0 and state.running[stream] < 0:
            who[count] = op
            number[count] = op
            ready_s[count] = state.start_s[op]
            priority[count] = plan.priority[plan.work[op]]
            count += 1
    order = np.argsort(number[:count], kind="mergesort")
    order = order[np.argsort(ready_s[order], kind="mergesort")]
    order = order[np.argsort(-priority[order], kind="mergesort")]
    for at in order:
        if who[at] >= 0:
            stream = plan.stream[who[at]]
            if state.running[stream] < 0:
                _start(plan, flat, state, queues.step_up(state.lines, stream), now_s)
            continue
        meeting = -1 - who[at]
        busy = -1
        for i in range(plan.member_start[meeting], plan.member_start[meeting + 1]):
            stream = plan.stream[plan.member[i]]
            if plan.is_ready_order[stream] and state.running[stream] >= 0:
                busy = stream
                break
        if busy >= 0:
            _park(state, meeting, busy)
        else:
            _meet(plan, state, meeting, now_s)


@kernel
def _settle_ranks(plan, flat, state, now_s):
    """Let what runs on ranks that changed go on at its new speed."""
    for at in range(state.counts[CHANGED]):
        rank = state.changed[at]
        state.is_changed[rank] = False
        for i in range(plan.rank_start[rank], plan.rank_start[rank + 1]):
            stream = plan.rank_stream[i]
            if state.phase[stream] != ALONE:
                continue
            speed = _speed(plan, flat, state, state.running[stream])
            if speed == state.speed[stream]:
                continue
            passed = (now_s - state.since_s[stream]) * state.speed[stream]
            state.remaining[stream] = max(0.0, state.remaining[stream] - passed)
            state.since_s[stream] = now_s
            state.speed[stream] = speed
            at_s = now_s + state.remaining[stream] / speed if speed > 0 else np.inf
            queues.put(state.agenda, stream, at_s)
    state.counts[CHANGED] = 0


@kernel
def _settle_links(state, now_s):
    """Let transfers that share links with one that came or went go on at their new rates."""
    sharing = state.sharing
    for at in range(fairness.collect(sharing)):
        flow = sharing.flows[at]
        passed = (now_s - state.since_s[flow]) * sharing.rate[flow]
        state.remaining[flow] = max(0.0, state.remaining[flow] - passed)
        state.since_s[flow] = now_s
    flows = sharing.listed[1]
    fairness.share_out(sharing)
    for at in range(flows):
        flow = sharing.flows[at]
        queues.put(state.agenda, flow, now_s + state.remaining[flow] / sharing.rate[flow])
