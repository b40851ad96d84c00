"""A v1 agent's compiled loop: passes received datagrams to the worker and sends the worker's packets, one tensor at a
time."""

import socket
from typing import NamedTuple

import numpy as np

from host_agent.loop import TASK_DONE, TICK, WOKEN, Impaired
from switchml.net import impair, libc, udp
from switchml.protocol import worker_v1
from switchml.protocol.worker_v1 import State, WorkerV1
from switchml.runtime.jit import compile_once, int64, kernel
from switchml.runtime.memory import borrowed


class Loop(NamedTuple):
    """State of the loop. `out` int64[2 windows]: rows to send. `fds` int64[1]: wake descriptor. `switch` uint64[1]: the
    endpoint that packets are sent to and results come from. `arrived` and `departing`: incoming and outgoing packets
    after `downlink` and `uplink` have impaired them."""

    worker: State
    io: udp.UdpIO
    incoming: udp.Packets
    outgoing: udp.Packets
    out: np.ndarray
    fds: np.ndarray
    switch: np.ndarray
    downlink: impair.Impairment
    uplink: impair.Impairment
    arrived: udp.Packets
    departing: udp.Packets


def new_loop(worker: WorkerV1, sock: socket.socket, wake: int, switch: tuple[str, int], lossy: Impaired | None) -> Loop:
    """Create the state for `run`: `wake` is an eventfd, `switch` (IPv4, port), `lossy` artificial loss, if any."""
    most_in, most_out = udp.RECEIVE_PACKETS, 2 * len(worker.state.rows)
    bad = lossy or Impaired()
    return Loop(
        worker.state,
        udp.new_udp_io(sock),
        udp.new_packets(most_in),
        udp.new_packets(most_out),
        np.zeros(most_out, np.int64),
        np.array([wake], np.int64),
        np.array([udp.endpoint(*switch)], np.uint64),
        impair.new_impairment(bad.loss_rate, 0.0, 0.0, 2 * bad.seed + 1),
        impair.new_impairment(bad.loss_rate, 0.0, 0.0, 2 * bad.seed + 2),
        udp.new_packets(most_in if lossy else 1),
        udp.new_packets(most_out if lossy else 1),
    )


@kernel
def run(loop: Loop, tick_ns: int) -> int:
    """Move the tensor's packets until it is done, the wake descriptor is written to, or `tick_ns` have passed: returns
    TASK_DONE, WOKEN or TICK."""
    loop = borrowed(loop)
    clock = np.zeros(8, np.int64)
    me = loop.worker.me[0]
    started = libc.now_ns(clock)
    _send(loop, worker_v1.start(loop.worker, started, loop.out), started)
    while me.done < me.packets:
        count = int64(udp.receive_batch(loop.io, loop.incoming))
        now = libc.now_ns(clock)
        incoming = loop.incoming
        if impair.active(loop.downlink):
            count, incoming = impair.impair(loop.downlink, loop.incoming, count, now, loop.arrived), loop.arrived
        n = int64(0)
        for i in range(count):
            if incoming.endpoint[i] == loop.switch[0]:
                n = worker_v1.receive(loop.worker, incoming.address[i], int64(incoming.length[i]), now, loop.out, n)
            else:
                me.refused += 1
        n = worker_v1.timeouts(loop.worker, now, loop.out, n)
        _send(loop, n, now)
        if me.done == me.packets:
            break
        if now - started >= tick_ns:
            return TICK
        if count == 0:
            pause = max(min(me.earliest - now, tick_ns), 0)
            if libc.wait_readable(loop.io.config[0], loop.fds[0], pause, clock) & 2:
                return WOKEN
    return TASK_DONE


@kernel
def _send(loop, n, now):
    """Send the packets of the rows listed in `out`."""
    outgoing = loop.outgoing
    loop.worker.me[0].sent += n
    for i in range(n):
        outgoing.address[i] = worker_v1.packet_at(loop.worker, loop.out[i])
        outgoing.length[i] = loop.worker.packets.shape[1]
        outgoing.endpoint[i] = loop.switch[0]
    if impair.active(loop.uplink):
        n, outgoing = impair.impair(loop.uplink, outgoing, n, now, loop.departing), loop.departing
    udp.send_batch(loop.io, outgoing, n)


def warm_up() -> None:
    """Compile the kernels, or load them, before other ranks wait for this one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        worker = WorkerV1(workers=1, window=1, payload_bytes=256)
        compile_once(run, new_loop(worker, sock, 0, ("127.0.0.1", 1), None), 0)
