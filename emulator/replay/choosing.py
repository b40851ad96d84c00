"""How streams of order READY choose: of all ops and complete transfers whose streams are idle the first by priority,
ready time and number starts; again, until none is left. A transfer that finds one of its streams busy stands in line
for that stream: until it is free, the transfer can't begin.
"""

from __future__ import annotations

from emulator.replay import queues
from emulator.replay.events import meet, park, start
from emulator.replay.tables import DIRTY
from switchml.runtime.jit import kernel


@kernel(forceinline=True)
def choose(world, flat, now_s):
    """Let the dirty streams take what is first in line."""
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
            start(world, flat, who, now_s)
    for at in range(world.counts[DIRTY]):
        streams[dirty[at]].is_dirty = 0
    world.counts[DIRTY] = 0


@kernel(forceinline=True)
def _collect(world):
    """List the first op in each dirty stream's line, where it is idle, and all transfers that stand in line for it;
    returns how many there are, and how many are transfers."""
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
        park(world, transfer, busy)
    else:
        meet(world, transfer, now_s)


@kernel
def _sort(order, choices, count):
    """Fill `order` with places by falling priority, then rising `ready_s`, then rising `number` (Shell's sort: numba's
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
