"""Transitions of ops and transfers in the event engine: ready, start, rendezvous, data movement and end. All functions
are inlined into the driving loop (`forceinline`): a call would pass the tables as a hundred words, several times per
op.
"""

import numpy as np

from emulator.jobs.replay import fairness, queues
from emulator.jobs.replay.conditions import noise
from emulator.jobs.replay.tables import ALONE, CHANGED, DIRTY, ENDED, FOLLOWING, IDLE, LATENCY, MOVING
from switchml.runtime.jit import kernel


@kernel(forceinline=True)
def ready(world, flat, op, now_s):
    """Process an op whose dependencies have all ended."""
    streams, transfers = world.streams, world.transfers
    stream, transfer = world.ops[op].stream, world.ops[op].transfer
    world.ops[op].start_s = now_s
    if not streams[stream].takes_ready:
        streams[stream].running = op
        if transfer < 0:
            start(world, flat, op, now_s)
    elif transfer < 0:
        streams[stream].line = queues.join(world.ops, streams[stream].line, op)
        mark(world, stream)
    if transfer < 0:
        return
    transfers[transfer].left -= 1
    transfers[transfer].last = op
    if transfers[transfer].left > 0:
        return
    for i in range(transfers[transfer].member, transfers[transfer + 1].member):
        stream = world.ops[world.member[i]].stream
        if streams[stream].takes_ready:
            transfers[transfer].start_s = now_s
            park(world, transfer, stream)
            mark(world, stream)
            return
    meet(world, transfer, now_s)


@kernel(forceinline=True)
def mark(world, stream):
    """Mark `stream` as having to choose before time advances."""
    if not world.streams[stream].is_dirty:
        world.streams[stream].is_dirty = 1
        world.dirty[world.counts[DIRTY]] = stream
        world.counts[DIRTY] += 1


@kernel(forceinline=True)
def park(world, transfer, stream):
    """Queue `transfer`, which is complete, for `stream`."""
    world.transfers[transfer].parked = world.streams[stream].parked
    world.streams[stream].parked = transfer


@kernel(forceinline=True)
def change(world, rank):
    """Mark the speed of `rank` as possibly changed."""
    if not world.ranks[rank].is_changed:
        world.ranks[rank].is_changed = 1
        world.changed[world.counts[CHANGED]] = rank
        world.counts[CHANGED] += 1


@kernel(forceinline=True)
def speed_of(world, flat, op):
    """Return the current speed of `op`: work seconds per second."""
    rank = world.streams[world.ops[op].stream].rank
    if world.ranks[rank].pause & 1:
        return 0.0
    if world.ranks[rank].slowing and world.op_types[world.ops[op].op_type].is_slowed:
        return 1.0 / (1.0 + flat.slowdown[rank])
    return 1.0


@kernel(forceinline=True)
def start(world, flat, op, now_s):
    """Start `op`, which is not part of a transfer, on its stream."""
    streams, stream = world.streams, world.ops[op].stream
    seconds = world.op_types[world.ops[op].op_type].seconds * flat.slowness[streams[stream].rank]
    if flat.sigma > 0:
        seconds *= noise(flat.seed, op, flat.sigma)
    speed = speed_of(world, flat, op)
    world.ops[op].start_s = now_s
    streams[stream].running = op
    streams[stream].phase = ALONE
    streams[stream].remaining = seconds
    streams[stream].since_s = now_s
    streams[stream].speed = speed
    at_s = now_s + seconds if speed == 1.0 or seconds == 0 else now_s + seconds / speed
    queues.put(world.items, world.heap, stream, at_s)


@kernel(forceinline=True)
def meet(world, transfer, now_s):
    """Start a transfer whose members are all present with idle streams."""
    streams, transfers = world.streams, world.transfers
    transfers[transfer].start_s = now_s
    first = transfers[transfer].member
    for i in range(first, transfers[transfer + 1].member):
        op = world.member[i]
        stream = world.ops[op].stream
        if streams[stream].takes_ready:
            world.ops[op].start_s = now_s
        streams[stream].running = op
        streams[stream].phase = FOLLOWING
        if transfers[transfer].slows:
            world.ranks[streams[stream].rank].slowing += 1
            change(world, streams[stream].rank)
    leader = world.ops[world.member[first]].stream
    streams[leader].phase = LATENCY
    queues.put(world.items, world.heap, leader, now_s + transfers[transfer].fixed_s)


@kernel(forceinline=True)
def move(world, sharing, leader, now_s):
    """End a transfer's fixed time: its bytes enter the fabric."""
    transfer = world.ops[world.streams[leader].running].transfer
    world.streams[leader].phase = MOVING
    world.streams[leader].remaining = world.transfers[transfer].bytes
    world.streams[leader].since_s = now_s
    queues.put(world.items, world.heap, leader, np.inf)
    fairness.enter(sharing, leader, world.transfers[transfer].route, world.transfers[transfer].limit)


@kernel(forceinline=True)
def part(world, flat, transfer, now_s):
    """Complete a transfer."""
    transfers = world.transfers
    for i in range(transfers[transfer].member, transfers[transfer + 1].member):
        op = world.member[i]
        if transfers[transfer].slows:
            rank = world.streams[world.ops[op].stream].rank
            world.ranks[rank].slowing -= 1
            change(world, rank)
        end(world, flat, op, now_s)


@kernel(forceinline=True)
def end(world, flat, op, now_s):
    """Complete `op`: free its stream, and decrement the wait counts of its dependents."""
    ops, stream = world.ops, world.ops[op].stream
    ops[op].end_s = now_s
    world.streams[stream].running = -1
    world.streams[stream].phase = IDLE
    world.counts[ENDED] += 1
    # The next op of its own stream comes last, after the explicit dependents.
    last = ops[op + 1].after
    for i in range(ops[op].after, last + 1):
        after = world.after[i] if i < last else ops[op].following
        if after >= 0:
            ops[after].waits -= 1
            if ops[after].waits == 0:
                ready(world, flat, after, now_s)
    if world.streams[stream].takes_ready:
        mark(world, stream)
