"""The agent's compiled loop: datagrams to the worker's rules, the worker's packets to the socket, sleep when there is nothing to do.

It runs on the agent's own thread without the GIL, and returns to Python only when a Python matter comes up: a task is done, something
went wrong, somebody writes to the wake descriptor, or nothing has moved for a while.
"""

import socket
from typing import NamedTuple

import numpy as np

from switchml import worker as rules
from switchml.io import libc, udp
from switchml.jit import kernel
from switchml.packet import HEADER_BYTES

WOKEN, TASK_DONE, FAILED, TICK = range(4)
"""Why the loop returned."""


class Loop(NamedTuple):
    """What the loop touches. `out` int32[>= 2S]: slots to send. `fds` int64[1]: wake descriptor. `aggregator` uint64[1]: endpoint."""

    worker: rules.State
    io: udp.UdpIO
    incoming: udp.Packets
    outgoing: udp.Packets
    out: np.ndarray
    fds: np.ndarray
    aggregator: np.ndarray


def new_loop(worker: rules.Worker, sock: socket.socket, wake: int, aggregator: tuple[str, int]) -> Loop:
    """Everything for `run`: `wake` is an eventfd, `aggregator` its data address."""
    slots = len(worker.state.slots)
    return Loop(worker.state, udp.new_udp_io(sock), udp.new_packets(udp.RECEIVE_PACKETS), udp.new_packets(2 * slots + 64),
                np.zeros(2 * slots + 64, np.int32), np.array([wake], np.int64), np.array([udp.endpoint(*aggregator)], np.uint64))


@kernel
def run(loop, reported, tick_ns):
    """Move data until there is a reason to return (above). `reported`: tasks that Python knows to be done already.

    TICK comes after `tick_ns` from the call at the latest (negative: never).
    """
    clock = np.zeros(8, np.int64)
    me = loop.worker.me[0]
    started = libc.now_ns(clock)
    size = HEADER_BYTES + me.payload
    while True:
        count = udp.receive_batch(loop.io, loop.incoming)
        now = libc.now_ns(clock)
        n = 0
        for i in range(count):
            n = rules.receive(loop.worker, loop.incoming.address[i], loop.incoming.length[i], now, loop.out, n)
            if n + 1 >= me.slots:
                _send(loop, n, size)
                n = 0
            if me.error:
                return FAILED
        n = rules.fill(loop.worker, now, loop.out, n)
        if me.error:
            return FAILED
        n = rules.timeouts(loop.worker, now, loop.out, n)
        if n:
            _send(loop, n, size)
        if me.completed > reported:
            return TASK_DONE
        if 0 <= tick_ns <= now - started:
            return TICK
        if count:
            continue
        pause = me.earliest - now if me.base < me.next else np.int64(-1)
        if tick_ns >= 0 and (pause < 0 or pause > tick_ns):
            pause = tick_ns
        if libc.wait_readable(loop.io.config[0], loop.fds[0], max(pause, 0) if pause != -1 else -1, clock) & 2:
            return WOKEN


@kernel
def _send(loop, n, size):
    for i in range(n):
        loop.outgoing.address[i] = loop.worker.packets[loop.out[i], rules.PACKET_OFFSET:].ctypes.data
        loop.outgoing.length[i] = size
        loop.outgoing.endpoint[i] = loop.aggregator[0]
    udp.send_batch(loop.io, loop.outgoing, n)
