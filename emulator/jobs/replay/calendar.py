"""The event-driven engine for jobs with contention: streams that run ready ops in any order, transfers that share
links, compute slowed by communication, paused ranks. At each point in time

1. everything due ends, and ops that waited for it alone become ready. Streams in program order take their next op at
   once; it holds the stream while it waits for the other members of its transfer.
2. Streams of order READY choose once nothing more ends at this time: of all ops and complete transfers whose streams
   are idle, the first by priority, ready time and number starts; repeated until none is left. A transfer whose stream
   is busy queues for that stream.
3. Rates are updated: shares of links, and the speed of each rank.

`reference.py` is a plain implementation of the same rules.
"""

import numpy as np

from emulator.jobs.replay import events, fairness, queues
from emulator.jobs.replay.tables import ALONE, CHANGED, DIRTY, ENDED, EVENTS, LATENCY, MOVING, begin
from switchml.runtime.jit import kernel
from switchml.runtime.memory import borrowed

__all__ = ["ENDED", "EVENTS", "begin", "run"]


@kernel
def run(budget, world, flat, sharing):
    """Run until no event is left, or for about `budget` more events. `sharing`: None where no link is shared; numba
    then omits all code for it."""
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
                events.end(world, flat, streams[item].running, now_s)
            else:
                transfer = world.ops[streams[item].running].transfer
                if sharing is not None:
                    if streams[item].phase == LATENCY and world.transfers[transfer].route >= 0:
                        events.move(world, sharing, item, now_s)
                        continue
                    if streams[item].phase == MOVING:
                        fairness.leave(sharing, item)
                events.part(world, flat, transfer, now_s)
        if counts[DIRTY]:
            _choose(world, flat, now_s)
        if items[0].size and items[heap[0]].at_s == now_s:
            continue
        if counts[CHANGED]:
            _settle_ranks(world, flat, now_s)
        if sharing is not None and sharing.listed[0]:
            _settle_links(world, sharing, now_s)


@kernel
def _begin_or_pause(world, flat, rank, now_s):
    """Process a rank's own event: its job begins, or one of its pauses begins or ends."""
    ranks = world.ranks
    if ranks[rank].pause < 0:
        ranks[rank].pause = 2 * flat.pause_start[rank]
        for i in range(ranks[rank].first, ranks[rank + 1].first):
            events.ready(world, flat, world.first[i], now_s)
    else:
        ranks[rank].pause += 1
        events.change(world, rank)
    pause, is_inside = ranks[rank].pause >> 1, ranks[rank].pause & 1
    item = len(world.streams) - 1 + rank
    if is_inside:
        queues.put(world.items, world.heap, item, max(now_s, flat.pause_until_s[pause]))
    elif pause < flat.pause_start[rank + 1]:
        queues.put(world.items, world.heap, item, max(now_s, flat.pause_from_s[pause]))


@kernel(forceinline=True)
def _settle_ranks(world, flat, now_s):
    """Update the speed and end time of ops running on changed ranks."""
    for at in range(world.counts[CHANGED]):
        rank = world.changed[at]
        world.ranks[rank].is_changed = 0
        for i in range(world.ranks[rank].stream, world.ranks[rank + 1].stream):
            stream = world.streams[world.rank_stream[i]]
            if stream.phase != ALONE:
                continue
            speed = events.speed_of(world, flat, stream.running)
            if speed == stream.speed:
                continue
            passed = (now_s - stream.since_s) * stream.speed
            stream.remaining = max(0.0, stream.remaining - passed)
            stream.since_s = now_s
            stream.speed = speed
            at_s = now_s + stream.remaining / speed if stream.remaining > 0 else now_s
            queues.put(world.items, world.heap, world.rank_stream[i], at_s)
    world.counts[CHANGED] = 0


@kernel(forceinline=True)
def _settle_links(world, sharing, now_s):
    """Update the rates of transfers connected to a link on which a transfer entered or left."""
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


@kernel(forceinline=True)
def _choose(world, flat, now_s):
    """Start the first queued entry of each dirty stream, where possible."""
    streams, dirty, choices = world.streams, world.dirty, world.choices
    count, transfers = _collect(world)
    if transfers:
        _sort(world.choice_order, choices, count)
    for at in range(count):
        who = choices[world.choice_order[at]].who if transfers else choices[at].who
        if who < 0:
            _meet_or_park(world, -1 - who, now_s)
        elif streams[world.ops[who].stream].running < 0:
            streams[world.ops[who].stream].line = queues.without_first(world.ops, who)
            events.start(world, flat, who, now_s)
    for at in range(world.counts[DIRTY]):
        streams[dirty[at]].is_dirty = 0
    world.counts[DIRTY] = 0


@kernel(forceinline=True)
def _collect(world):
    """List the first op in the queue of each dirty, idle stream, and all transfers that queue for it; return their
    total number and the number of transfers."""
    ops, streams, transfers, choices = world.ops, world.streams, world.transfers, world.choices
    count = met = 0
    for at in range(world.counts[DIRTY]):
        stream = world.dirty[at]
        transfer = streams[stream].parked
        streams[stream].parked = -1
        while transfer >= 0:
            choices[count].who = -1 - transfer
            choices[count].number = world.member[transfers[transfer].member]
            choices[count].ready_s = transfers[transfer].start_s
            choices[count].priority = transfers[transfer].priority
            count += 1
            met += 1
            transfer = transfers[transfer].parked
        op = streams[stream].line
        if op >= 0 and streams[stream].running < 0:
            choices[count].who = choices[count].number = op
            choices[count].ready_s = ops[op].start_s
            choices[count].priority = ops[op].priority
            count += 1
    return count, met


@kernel(forceinline=True)
def _meet_or_park(world, transfer, now_s):
    streams, first = world.streams, world.transfers[transfer].member
    busy = -1
    for i in range(first, world.transfers[transfer + 1].member):
        stream = world.ops[world.member[i]].stream
        if streams[stream].takes_ready and streams[stream].running >= 0:
            busy = stream
    if busy >= 0:
        events.park(world, transfer, busy)
    else:
        events.meet(world, transfer, now_s)


@kernel
def _sort(order, choices, count):
    """Sort indexes into `order` by falling priority, then rising `ready_s`, then rising `number` (Shell sort: numba's
    argsort takes seconds to compile)."""
    for at in range(count):
        order[at] = at
    gap = max(1, count // 2)
    while gap:
        for i in range(gap, count):
            one = order[i]
            at = i
            while at >= gap and _is_before(choices, one, order[at - gap]):
                order[at] = order[at - gap]
                at -= gap
            order[at] = one
        gap //= 2


@kernel(forceinline=True)
def _is_before(choices, one, other):
    if choices[one].priority != choices[other].priority:
        return choices[one].priority > choices[other].priority
    if choices[one].ready_s != choices[other].ready_s:
        return choices[one].ready_s < choices[other].ready_s
    return choices[one].number < choices[other].number
