"""The agent's compiled loop: datagrams to the worker's rules, the worker's packets to the socket, sleep when there is
nothing to do.

It runs on the agent's own thread without the GIL, and returns to Python only when a Python matter comes up: a task is
done, something went wrong, somebody writes to the wake descriptor, or nothing has moved for a while.
"""

import socket
from typing import NamedTuple

import numpy as np

from switchml import worker as rules
from switchml.io import libc, shm, udp
from switchml.jit import kernel
from switchml.memory import borrowed

WOKEN, TASK_DONE, FAILED, TICK = range(4)
"""Why the loop returned."""


_PATIENCE = 16
"""Looks at the ring, giving way in between, before the loop sleeps."""


class Loop(NamedTuple):
    """What the loop touches. `out` int32[>= 2S]: slots to send. `fds` int64[1]: wake descriptor. `aggregator`
    uint64[1]: endpoint. `shared` int64[8]: the segment's `at`, its first element 0 if packets go by UDP."""

    worker: rules.State
    io: udp.UdpIO
    incoming: udp.Packets
    outgoing: udp.Packets
    out: np.ndarray
    fds: np.ndarray
    aggregator: np.ndarray
    shared: np.ndarray


def new_loop(
    worker: rules.Worker,
    sock: socket.socket,
    wake: int,
    aggregator: tuple[str, int],
    segment: shm.Segment | None = None,
) -> Loop:
    """Everything for `run`: `wake` is an eventfd, `aggregator` its data address, `segment` the memory shared with it,
    if any."""
    slots = len(worker.state.slots)
    return Loop(
        worker.state,
        udp.new_udp_io(sock),
        udp.new_packets(max(udp.RECEIVE_PACKETS, 4 * slots)),
        udp.new_packets(2 * slots + 64),
        np.zeros(2 * slots + 64, np.int32),
        np.array([wake], np.int64),
        np.array([udp.endpoint(*aggregator)], np.uint64),
        (segment or shm.no_segment()).at,
    )


@kernel
def run(loop, reported, tick_ns):
    """Move data until there is a reason to return (above). `reported`: tasks that Python knows to be done already.

    TICK comes after `tick_ns` from the call at the latest (negative: never).
    """
    loop = borrowed(loop)
    clock = np.zeros(8, np.int64)
    me = loop.worker.me[0]
    started = libc.now_ns(clock)
    near = loop.shared[shm.BASE] != 0
    quiet = 0
    while True:
        count = (
            shm.receive_down(loop.shared, me.rank, loop.incoming) if near else udp.receive_batch(loop.io, loop.incoming)
        )
        now = libc.now_ns(clock)
        n = 0
        for i in range(count):
            n = rules.receive(loop.worker, loop.incoming.address[i], loop.incoming.length[i], now, loop.out, n)
            if n + 1 >= me.slots:
                rules.build_streams(loop.worker, loop.out, n)
                if near:
                    _hand_over(loop, n, n)
                else:
                    _send(loop, n)
                n = 0
            if me.error:
                return FAILED
        n = rules.fill(loop.worker, now, loop.out, n)
        if me.error:
            return FAILED
        rules.build_streams(loop.worker, loop.out, n)
        fresh = n
        n = rules.timeouts(loop.worker, now, loop.out, n)
        if near:
            _hand_over(loop, fresh, n)
        elif n:
            _send(loop, n)
        if me.completed > reported:
            return TASK_DONE
        if 0 <= tick_ns <= now - started:
            return TICK
        if count:
            quiet = 0
            continue
        if quiet < _PATIENCE and me.base < me.next:
            quiet += 1
            libc.give_way()
            continue
        quiet = 0
        pause = max(me.earliest - now, 0) if me.base < me.next else np.int64(-1)
        if tick_ns >= 0 and (pause < 0 or pause > tick_ns):
            pause = tick_ns
        if near:
            shm.announce_sleep(loop.shared, me.rank, 1)
            if shm.down_waits(loop.shared, me.rank):
                pause = 0
        woken = libc.wait_readable(loop.io.config[0], loop.fds[0], pause, clock)
        if near:
            shm.announce_sleep(loop.shared, me.rank, 0)
            if woken & 1:
                udp.receive_batch(loop.io, loop.incoming)  # the aggregator's knock: nothing in it
        if woken & 2:
            return WOKEN


@kernel
def _send(loop, n):
    """Send the packets of the listed slots by UDP, those with data first: packets of one length travel as trains."""
    payload = loop.worker.me[0].payload
    count = 0
    for has_data in range(1, -1, -1):
        for i in range(n):
            length = loop.worker.slots[loop.out[i]].length
            if (length > payload) == has_data:
                loop.outgoing.address[count] = rules.packet_at(loop.worker, loop.out[i])
                loop.outgoing.length[count] = length
                loop.outgoing.endpoint[count] = loop.aggregator[0]
                count += 1
    udp.send_batch(loop.io, loop.outgoing, n)


@kernel
def _hand_over(loop, fresh, n):
    """Name the listed slots' packets in shared memory; those from `fresh` on are there already, and are only asked
    about."""
    me = loop.worker.me[0]
    for i in range(fresh):
        packet = rules.packet_at(loop.worker, loop.out[i])
        shm.push_up(loop.shared, me.rank, packet, loop.worker.slots[loop.out[i]].length)
    for i in range(fresh, n):
        slot = loop.worker.slots[loop.out[i]]
        shm.ask_up(loop.shared, me.rank, (me.isn + slot.round * me.slots + loop.out[i]) & 0xFFFFFFFF)
    # Who asks has waited long: perhaps the aggregator sleeps because an earlier knock was lost, and its flag is gone.
    if n and (shm.must_wake(loop.shared, -1) or n > fresh):
        loop.outgoing.address[0], loop.outgoing.length[0], loop.outgoing.endpoint[0] = (
            loop.outgoing.address.ctypes.data,
            0,
            loop.aggregator[0],
        )
        udp.send_batch(loop.io, loop.outgoing, 1)
