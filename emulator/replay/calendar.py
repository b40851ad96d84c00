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
from emulator.workload.costs import Costs
from emulator.workload.graph import Graph, Kind, Order
from switchml.jit import kernel
from switchml.memory import borrowed

IDLE, ALONE, LATENCY, MOVING, FOLLOWING = range(5)
"""What a stream does: nothing, or an op that waits for its meeting; an op without a meeting; leading a meeting
through its fixed time; leading it while bytes move; being in a meeting that another stream leads."""

OP = np.dtype(
    [
        (
            "start_s",
            "f8",
        ),  # when it took its stream; of an op that stands in line, since when it is ready; NaN: not yet
        ("end_s", "f8"),  # NaN: not yet
        ("after", "i8"),  # ops that wait for it: from here in `World.after` to where those of the next op begin
        ("waits", "i4"),  # for how many ops it still waits
        ("following", "i4"),  # the next op on a stream in program order, −1: none
        ("stream", "i4"),
        ("work", "i4"),
        ("meeting", "i4"),
        ("priority", "i4"),
        ("child", "i4"),  # see queues.join
        ("sibling", "i4"),
    ],
    align=True,
)
STREAM = np.dtype(
    [
        ("remaining", "f8"),  # seconds or bytes that are left of what runs, at `since_s`
        ("since_s", "f8"),
        ("speed", "f8"),  # how many of its seconds pass in one second
        ("rank", "i4"),
        ("running", "i4"),  # the op that holds it, −1: none
        ("phase", "i4"),
        ("line", "i4"),  # the op that is next in line, −1: none
        ("parked", "i4"),  # first complete meeting that stands in line for it, −1: none
        ("takes_ready", "i4"),  # whether its order is READY
        ("is_dirty", "i4"),  # whether it must choose
    ],
    align=True,
)
MEETING = np.dtype(
    [
        ("start_s", "f8"),  # when it began; of one that stands in line, since when it is complete; NaN: not yet
        ("fixed_s", "f8"),  # its time before bytes move, or all of it where it has no route
        ("bytes", "f8"),
        ("limit", "f8"),  # bytes/s
        ("member", "i8"),  # its ops: from here in `World.member` to where those of the next one begin
        ("last", "i4"),  # the member that came last
        ("left", "i4"),  # members still to come
        ("route", "i4"),  # −1: none
        ("slows", "i4"),  # whether it slows compute
        ("priority", "i4"),
        ("parked", "i4"),  # the next one that stands in line for the same stream
    ],
    align=True,
)
RANK = np.dtype(
    [
        ("first", "i8"),  # ops that wait for nothing: from here in `World.first`
        ("stream", "i8"),  # its streams: from here in `World.rank_stream`
        ("pause", "i8"),  # −1 before it has begun, then twice the number of its next pause, and one more inside one
        ("transfers", "i4"),  # in progress, of those that slow compute
        ("is_changed", "i4"),  # whether its speed may have changed
    ],
    align=True,
)
WORK = np.dtype([("seconds", "f8"), ("is_slowed", "i4")], align=True)
"""What an op takes alone, and whether communication slows it."""

DIRTY, CHANGED, EVENTS, ENDED = range(4)
"""Places in `World.counts`."""


class World(NamedTuple):
    """Tables of what is played and where it stands; each has one record more than there are things, so that runs of
    record i end where those of i + 1 begin."""

    ops: np.ndarray
    after: np.ndarray
    """int32."""
    streams: np.ndarray
    meetings: np.ndarray
    member: np.ndarray
    """int32: the ops of each meeting, in the order of the graph."""
    ranks: np.ndarray
    rank_stream: np.ndarray
    """int32: streams by rank."""
    first: np.ndarray
    """int32: ops by rank."""
    works: np.ndarray
    items: np.ndarray
    heap: np.ndarray
    dirty: np.ndarray
    """int32 (streams,): streams that must choose."""
    changed: np.ndarray
    """int32 (ranks,): ranks whose speed may have changed."""
    counts: np.ndarray
    """int64 (4,): dirty streams, changed ranks, events, ended ops."""
    now_s: np.ndarray
    """float64 (1,)."""


def begin(
    graph: Graph, costs: Costs, flat: Flat, fixed_s: np.ndarray, route: np.ndarray, bytes: np.ndarray
) -> tuple[World, Sharing | None]:
    """The tables before anything has run; no `Sharing` where no link is used. `fixed_s`, `route` and `bytes` are
    (meetings,), noise included."""
    count, streams, meetings, ranks = len(graph.ops), len(graph.streams), len(graph.meetings), len(graph.ranks)
    takes_ready = graph.streams.order == Order.READY
    kinds = graph.works.kind

    ops = np.zeros(count + 1, OP)
    ops["start_s"] = ops["end_s"] = np.nan
    ops["child"] = ops["sibling"] = -1
    for name in ("stream", "work", "meeting"):
        ops[name][:-1] = getattr(graph.ops, name)
    ops["priority"][:-1] = graph.works.priority[graph.ops.work]
    after = _link(ops, graph.ops.dep_start, graph.ops.deps, takes_ready)

    table = np.zeros(meetings + 1, MEETING)
    table["start_s"], table["last"], table["parked"] = np.nan, -1, -1
    table["member"], member = _grouped(graph.ops.meeting, meetings)
    table["left"][:-1] = np.diff(table["member"])
    if flat.slowdown > 0:
        table["slows"][:-1] = np.isin(kinds, (Kind.COLLECTIVE, Kind.SEND, Kind.RECV))[graph.meetings.work]
    table["priority"][:-1] = graph.works.priority[graph.meetings.work]
    for name, values in (
        ("fixed_s", fixed_s),
        ("bytes", bytes),
        ("limit", costs.meeting_bytes_per_s),
        ("route", route),
    ):
        table[name][:-1] = values

    rank_table = np.zeros(ranks + 1, RANK)
    first = np.flatnonzero(ops["waits"][:-1] == 0).astype(np.int32)
    rank_table["first"], by_rank = _grouped(graph.streams.rank[graph.ops.stream[first]], ranks)
    rank_table["stream"], rank_stream = _grouped(graph.streams.rank, ranks)
    rank_table["pause"] = -1

    stream_table = np.zeros(streams + 1, STREAM)
    stream_table["running"] = stream_table["line"] = stream_table["parked"] = -1
    stream_table["rank"][:-1], stream_table["takes_ready"][:-1] = graph.streams.rank, takes_ready

    works = np.zeros(len(graph.works), WORK)
    works["seconds"], works["is_slowed"] = costs.work_s, np.isin(kinds, (Kind.COMPUTE, Kind.CODEC))

    items, heap = queues.empty_agenda(streams + ranks)
    for rank in range(ranks):
        queues.put(items, heap, streams + rank, flat.start_s[rank])
    used = route[route >= 0]
    hops = int(np.diff(costs.fabric.start)[used].max()) if len(used) else 0
    world = World(
        ops=ops,
        after=after,
        streams=stream_table,
        meetings=table,
        member=member,
        ranks=rank_table,
        rank_stream=rank_stream,
        first=first[by_rank],
        works=works,
        items=items,
        heap=heap,
        dirty=np.zeros(streams, np.int32),
        changed=np.zeros(ranks, np.int32),
        counts=np.zeros(4, np.int64),
        now_s=np.zeros(1),
    )
    return world, fairness.empty_sharing(costs.fabric, streams, hops) if len(used) else None


@kernel
def _link(ops, dep_start, deps, takes_ready):
    """Fill in `waits` (the predecessor on a stream in program order counts), `following` and `after`; returns the
    runs that `after` begins."""
    count = len(ops) - 1
    last = np.full(len(takes_ready), -1, np.int32)
    for op in range(count):
        ops[op].waits = dep_start[op + 1] - dep_start[op]
        ops[op].following = -1
        for i in range(dep_start[op], dep_start[op + 1]):
            ops[deps[i] + 1].after += 1
        stream = ops[op].stream
        if not takes_ready[stream]:
            if last[stream] >= 0:
                ops[last[stream]].following = op
                ops[op].waits += 1
            last[stream] = op
    for op in range(count):
        ops[op + 1].after += ops[op].after
    # Fill each run from its end; `after` of an op then stands where its run begins.
    after = np.empty(len(deps), np.int32)
    for op in range(count - 1, -1, -1):
        for i in range(dep_start[op], dep_start[op + 1]):
            ops[deps[i] + 1].after -= 1
            after[ops[deps[i] + 1].after] = op
    for op in range(count):
        ops[op].after = ops[op + 1].after
    ops[count].after = len(deps)
    return after


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
def run(budget, world, flat, chooses, sharing):
    """Play until nothing is left to happen, or about `budget` more events have. `chooses`: None where no stream takes
    what is ready, and `sharing`: None where no link is shared; numba then leaves out all that is about them, which
    halves the time that a first run spends compiling."""
    world, flat = borrowed(world), borrowed(flat)
    items, heap, streams, counts = world.items, world.heap, world.streams, world.counts
    last_event = counts[EVENTS] + budget
    stream_count = len(streams) - 1
    while items[0].size and counts[EVENTS] < last_event:
        now_s = items[heap[0]].at_s
        if now_s == np.inf:
            break
        world.now_s[0] = now_s
        while items[0].size and items[heap[0]].at_s == now_s:
            item = queues.take(items, heap)
            counts[EVENTS] += 1
            if item >= stream_count:
                _begin_or_pause(world, flat, item - stream_count, now_s)
            elif streams[item].phase == ALONE:
                _end(world, flat, streams[item].running, now_s)
            else:
                meeting = world.ops[streams[item].running].meeting
                if sharing is not None:
                    if streams[item].phase == LATENCY and world.meetings[meeting].route >= 0:
                        _move(world, sharing, item, now_s)
                        continue
                    if streams[item].phase == MOVING:
                        fairness.leave(sharing, item)
                _part(world, flat, meeting, now_s)
        if chooses is not None and counts[DIRTY]:
            _choose(world, flat, now_s)
        if items[0].size and items[heap[0]].at_s == now_s:
            continue
        if counts[CHANGED]:
            _settle_ranks(world, flat, now_s)
        if sharing is not None and sharing.listed[0]:
            _settle_links(world, sharing, now_s)


@kernel
def _begin_or_pause(world, flat, rank, now_s):
    """A rank's moment: its job begins, or a pause of it begins or ends."""
    ranks = world.ranks
    if ranks[rank].pause < 0:
        ranks[rank].pause = 2 * flat.pause_start[rank]
        for i in range(ranks[rank].first, ranks[rank + 1].first):
            _ready(world, flat, world.first[i], now_s)
    else:
        ranks[rank].pause += 1
        _change(world, rank)
    pause, is_inside = ranks[rank].pause >> 1, ranks[rank].pause & 1
    item = len(world.streams) - 1 + rank
    if is_inside:
        queues.put(world.items, world.heap, item, max(now_s, flat.pause_until_s[pause]))
    elif pause < flat.pause_start[rank + 1]:
        queues.put(world.items, world.heap, item, max(now_s, flat.pause_from_s[pause]))


@kernel
def _ready(world, flat, op, now_s):
    """All that `op` waited for has ended."""
    streams, meetings = world.streams, world.meetings
    stream, meeting = world.ops[op].stream, world.ops[op].meeting
    world.ops[op].start_s = now_s
    if not streams[stream].takes_ready:
        streams[stream].running = op
        if meeting < 0:
            _start(world, flat, op, now_s)
    elif meeting < 0:
        streams[stream].line = queues.join(world.ops, streams[stream].line, op)
        _mark(world, stream)
    if meeting < 0:
        return
    meetings[meeting].left -= 1
    meetings[meeting].last = op
    if meetings[meeting].left > 0:
        return
    for i in range(meetings[meeting].member, meetings[meeting + 1].member):
        stream = world.ops[world.member[i]].stream
        if streams[stream].takes_ready:
            meetings[meeting].start_s = now_s
            _park(world, meeting, stream)
            _mark(world, stream)
            return
    _meet(world, meeting, now_s)


@kernel(forceinline=True)
def _mark(world, stream):
    if not world.streams[stream].is_dirty:
        world.streams[stream].is_dirty = 1
        world.dirty[world.counts[DIRTY]] = stream
        world.counts[DIRTY] += 1


@kernel(forceinline=True)
def _park(world, meeting, stream):
    world.meetings[meeting].parked = world.streams[stream].parked
    world.streams[stream].parked = meeting


@kernel(forceinline=True)
def _change(world, rank):
    if not world.ranks[rank].is_changed:
        world.ranks[rank].is_changed = 1
        world.changed[world.counts[CHANGED]] = rank
        world.counts[CHANGED] += 1


@kernel(forceinline=True)
def _speed(world, flat, op):
    """How many seconds of `op` pass in one second now."""
    rank = world.streams[world.ops[op].stream].rank
    if world.ranks[rank].pause & 1:
        return 0.0
    if world.ranks[rank].transfers and world.works[world.ops[op].work].is_slowed:
        return 1.0 / (1.0 + flat.slowdown)
    return 1.0


@kernel
def _start(world, flat, op, now_s):
    """`op`, which no meeting holds up, takes its stream."""
    streams, stream = world.streams, world.ops[op].stream
    seconds = world.works[world.ops[op].work].seconds * flat.slowness[streams[stream].rank]
    if flat.sigma > 0:
        seconds *= noise(flat.seed, op, flat.sigma)
    speed = _speed(world, flat, op)
    world.ops[op].start_s = now_s
    streams[stream].running = op
    streams[stream].phase = ALONE
    streams[stream].remaining = seconds
    streams[stream].since_s = now_s
    streams[stream].speed = speed
    at_s = now_s + seconds if speed == 1.0 or seconds == 0 else now_s + seconds / speed
    queues.put(world.items, world.heap, stream, at_s)


@kernel
def _meet(world, meeting, now_s):
    """All members are there, and all their streams free: the meeting begins."""
    streams, meetings = world.streams, world.meetings
    meetings[meeting].start_s = now_s
    first = meetings[meeting].member
    for i in range(first, meetings[meeting + 1].member):
        op = world.member[i]
        stream = world.ops[op].stream
        if streams[stream].takes_ready:
            world.ops[op].start_s = now_s
        streams[stream].running = op
        streams[stream].phase = FOLLOWING
        if meetings[meeting].slows:
            world.ranks[streams[stream].rank].transfers += 1
            _change(world, streams[stream].rank)
    leader = world.ops[world.member[first]].stream
    streams[leader].phase = LATENCY
    queues.put(world.items, world.heap, leader, now_s + meetings[meeting].fixed_s)


@kernel
def _move(world, sharing, leader, now_s):
    """A meeting's fixed time is over: its bytes enter the fabric."""
    meeting = world.ops[world.streams[leader].running].meeting
    world.streams[leader].phase = MOVING
    world.streams[leader].remaining = world.meetings[meeting].bytes
    world.streams[leader].since_s = now_s
    queues.put(world.items, world.heap, leader, np.inf)
    fairness.enter(sharing, leader, world.meetings[meeting].route, world.meetings[meeting].limit)


@kernel
def _part(world, flat, meeting, now_s):
    """A meeting is over."""
    meetings = world.meetings
    for i in range(meetings[meeting].member, meetings[meeting + 1].member):
        op = world.member[i]
        if meetings[meeting].slows:
            rank = world.streams[world.ops[op].stream].rank
            world.ranks[rank].transfers -= 1
            _change(world, rank)
        _end(world, flat, op, now_s)


@kernel
def _end(world, flat, op, now_s):
    """`op` is done: its stream is free, and who waited for it waits for one less."""
    ops, stream = world.ops, world.ops[op].stream
    ops[op].end_s = now_s
    world.streams[stream].running = -1
    world.streams[stream].phase = IDLE
    world.counts[ENDED] += 1
    # Last the next op of its own stream, in the place behind those that depend on it.
    last = ops[op + 1].after
    for i in range(ops[op].after, last + 1):
        after = world.after[i] if i < last else ops[op].following
        if after >= 0:
            ops[after].waits -= 1
            if ops[after].waits == 0:
                _ready(world, flat, after, now_s)
    if world.streams[stream].takes_ready:
        _mark(world, stream)


@kernel
def _choose(world, flat, now_s):
    """Let the dirty streams take what is first in line. A meeting that finds one of its streams busy stands in line for
    that stream: until it is free, the meeting can't begin."""
    streams, dirty, counts = world.streams, world.dirty, world.counts
    parked = 0
    for at in range(counts[DIRTY]):
        meeting = streams[dirty[at]].parked
        while meeting >= 0:
            parked += 1
            meeting = world.meetings[meeting].parked
    if parked:
        _choose_with_meetings(world, flat, now_s, parked)
    else:
        for at in range(counts[DIRTY]):
            if streams[dirty[at]].running < 0 and streams[dirty[at]].line >= 0:
                _step_up(world, flat, dirty[at], now_s)
    for at in range(counts[DIRTY]):
        streams[dirty[at]].is_dirty = 0
    counts[DIRTY] = 0


@kernel
def _step_up(world, flat, stream, now_s):
    """Start the op that is first in the line of `stream`."""
    op = world.streams[stream].line
    world.streams[stream].line = queues.without_first(world.ops, op)
    _start(world, flat, op, now_s)


@kernel
def _choose_with_meetings(world, flat, now_s, parked):
    ops, streams, meetings = world.ops, world.streams, world.meetings
    most = parked + world.counts[DIRTY]
    who = np.empty(most, np.int64)  # an op, or −1 − a meeting
    number, ready_s, priority = np.empty(most), np.empty(most), np.empty(most)
    count = 0
    for at in range(world.counts[DIRTY]):
        stream = world.dirty[at]
        meeting = streams[stream].parked
        streams[stream].parked = -1
        while meeting >= 0:
            who[count] = -1 - meeting
            number[count] = world.member[meetings[meeting].member]
            ready_s[count] = meetings[meeting].start_s
            priority[count] = meetings[meeting].priority
            count += 1
            meeting = meetings[meeting].parked
        op = streams[stream].line
        if op >= 0 and streams[stream].running < 0:
            who[count] = number[count] = op
            ready_s[count] = ops[op].start_s
            priority[count] = ops[op].priority
            count += 1
    for at in _order(count, priority, ready_s, number):
        if who[at] >= 0:
            if streams[ops[who[at]].stream].running < 0:
                _step_up(world, flat, ops[who[at]].stream, now_s)
            continue
        meeting = -1 - who[at]
        busy = -1
        for i in range(meetings[meeting].member, meetings[meeting + 1].member):
            stream = ops[world.member[i]].stream
            if streams[stream].takes_ready and streams[stream].running >= 0:
                busy = stream
        if busy >= 0:
            _park(world, meeting, busy)
        else:
            _meet(world, meeting, now_s)


@kernel
def _order(count, priority, ready_s, number):
    """int64 (count,): places by falling priority, then rising `ready_s`, then rising `number` (Shell's sort: numba's
    argsort takes seconds to compile)."""
    order = np.arange(count)
    gap = count // 2
    while gap:
        for i in range(gap, count):
            one = order[i]
            at = i
            while at >= gap:
                other = order[at - gap]
                is_behind = priority[one] < priority[other]
                if priority[one] == priority[other]:
                    is_behind = ready_s[one] > ready_s[other]
                    if ready_s[one] == ready_s[other]:
                        is_behind = number[one] >= number[other]
                if is_behind:
                    break
                order[at] = other
                at -= gap
            order[at] = one
        gap //= 2
    return order


@kernel
def _settle_ranks(world, flat, now_s):
    """Let what runs on ranks that changed go on at its new speed."""
    for at in range(world.counts[CHANGED]):
        rank = world.changed[at]
        world.ranks[rank].is_changed = 0
        for i in range(world.ranks[rank].stream, world.ranks[rank + 1].stream):
            stream = world.streams[world.rank_stream[i]]
            if stream.phase != ALONE:
                continue
            speed = _speed(world, flat, stream.running)
            if speed == stream.speed:
                continue
            passed = (now_s - stream.since_s) * stream.speed
            stream.remaining = max(0.0, stream.remaining - passed)
            stream.since_s = now_s
            stream.speed = speed
            at_s = now_s + stream.remaining / speed if stream.remaining > 0 else now_s
            queues.put(world.items, world.heap, world.rank_stream[i], at_s)
    world.counts[CHANGED] = 0


@kernel
def _settle_links(world, sharing, now_s):
    """Let transfers that share links with one that came or went go on at their new rates."""
    flows = fairness.collect(sharing)
    for at in range(flows):
        flow = sharing.listed_flows[at]
        passed = (now_s - world.streams[flow].since_s) * sharing.flows[flow].rate
        world.streams[flow].remaining = max(0.0, world.streams[flow].remaining - passed)
        world.streams[flow].since_s = now_s
    fairness.share_out(sharing)
    for at in range(flows):
        flow = sharing.listed_flows[at]
        at_s = now_s + world.streams[flow].remaining / sharing.flows[flow].rate
        queues.put(world.items, world.heap, flow, at_s)
