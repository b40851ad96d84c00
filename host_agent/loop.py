"""The agent's compiled loop: passes received datagrams to the worker, sends the worker's packets, and sleeps when idle.

It runs on the agent's own thread without the GIL, and returns to Python only if a task is done, an error occurred, the
wake descriptor was written to, or a timeout has passed.
"""

import socket
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from host_agent import density, packet_log
from switchml.net import frames, impair, libc, shm, udp
from switchml.protocol import authentication, handover, results, sending, timers
from switchml.protocol.authentication import EVERYBODY, TAG_BYTES, TO_AGGREGATOR, TO_RANKS
from switchml.protocol.chunks import packet_at
from switchml.protocol.packet import HEADER_BYTES, R_FLAG, WAIT
from switchml.protocol.worker import Worker
from switchml.protocol.worker_state import State, seq_of
from switchml.runtime.jit import compile_once, int64, kernel
from switchml.runtime.memory import be32, borrowed, copy_bytes, serial_difference, u8_at

WOKEN, TASK_DONE, FAILED, TICK = range(4)
"""Reasons for which the loop returns."""


_SPINS = 16
"""Number of polls of the ring, with the processor yielded in between, before the loop sleeps."""

PLAIN, FRAMED, RAW = range(3)
"""Kinds of transport: UDP (or shared memory), Ethernet frames in UDP, frames through an interface."""
_NEVER = 0x7FFFFFFFFFFFFFFF


class Loop(NamedTuple):
    """State of the loop. `out` int32[>= 2S]: slots to send. `fds` int64[1]: wake descriptor. `aggregator` uint64[2]:
    the endpoint that packets are sent to, and the one that results come from; with frames, the inner endpoints.
    `shared` int64[shm.FIELDS]: the segment's `at`, whose first element is 0 if packets use UDP. `transport` int64[1]:
    one of the kinds above. `flow`: matches the frames of this agent. `raw`: the interface's socket. `delayed` and
    `impaired`: incoming and outgoing packets after `downlink` and `uplink` have impaired them. `log`: packet log, if it
    has any room. `key` uint64[2]: key with which packets are signed (switchml/protocol/authentication.py), or
    uint64[0]; `signed`: packets whose tags are computed together. `spin_after`: of libc.yield_with_backoff."""

    worker: State
    io: udp.UdpIO
    incoming: udp.Packets
    outgoing: udp.Packets
    out: np.ndarray
    fds: np.ndarray
    aggregator: np.ndarray
    shared: np.ndarray
    transport: np.ndarray
    flow: frames.Flow
    raw: frames.FrameIO
    downlink: impair.Impairment
    uplink: impair.Impairment
    delayed: udp.Packets
    impaired: udp.Packets
    log: packet_log.PacketLog
    key: np.ndarray
    signed: authentication.Batch
    spin_after: np.ndarray


@dataclass(frozen=True)
class Impaired:
    """Artificial loss and reordering: probabilities, in each direction. The same `seed` gives the same impairments."""

    loss_rate: float = 0.0
    reorder_rate: float = 0.0
    seed: int = 0


def new_loop(
    worker: Worker,
    sock: socket.socket,
    wake: int,
    aggregator: tuple[str, int],
    segment: shm.Segment | None = None,
    kind: int = PLAIN,
    raw: socket.socket | None = None,
    ends: frames.Ends | None = None,
    impaired: Impaired | None = None,
    key: bytes = b"",
) -> Loop:
    """Create the state for `run`: `wake` is an eventfd, `aggregator` the address that packets are sent to, `segment`
    the memory shared with it, if any. With a `kind` other than PLAIN, packets are frames between `ends`, preceded by
    prepared headers; for RAW, `raw` is the interface's socket. `key`: given if packets carry authentication tags, for
    which there is room after them."""
    slots = len(worker.state.slots)
    most_in, most_out = max(udp.RECEIVE_PACKETS, frames.RECEIVE_PACKETS, 4 * slots), 2 * slots + 64
    bad = impaired or Impaired()
    held = 2 * impair.MAX_DELAYED if impaired else 0
    there = udp.endpoint(*aggregator)
    return Loop(
        worker.state,
        udp.new_udp_io(sock),
        udp.new_packets(most_in),
        udp.new_packets(most_out),
        np.zeros(most_out, np.int32),
        np.array([wake], np.int64),
        np.array([there, udp.endpoint(ends.switch_ip, ends.switch_port) if ends else there], np.uint64),
        (segment or shm.no_segment()).at,
        np.array([kind], np.int64),
        frames.new_flow(ends),
        frames.new_frame_io(raw),
        impair.new_impairment(bad.loss_rate, bad.reorder_rate, 0.0, 2 * bad.seed + 1),
        impair.new_impairment(bad.loss_rate, bad.reorder_rate, 0.0, 2 * bad.seed + 2),
        udp.new_packets(2 * most_in + held if impaired else 1),
        udp.new_packets(2 * most_out + held if impaired else 1),
        packet_log.new_packet_log(0, slots),
        authentication.key_words(key),
        authentication.new_batch(2 * max(most_in, most_out) + held if key else 1),
        np.zeros(1, np.int64),
    )


@kernel
def run(loop: Any, completed: int, tick_ns: int) -> Any:
    """Move data until there is a reason to return (above). `completed`: number of completed tasks that Python has
    processed. TICK is returned at the latest `tick_ns` after the call (negative: never).

    Comments with L cite the numbered steps of docs/protocol.md, section 6.
    """
    loop = borrowed(loop)
    clock = np.zeros(8, np.int64)
    me = loop.worker.scalars[0]
    window = me.window
    started = libc.now_ns(clock)
    near = loop.shared[shm.BASE] != 0
    source = np.uint64(0) if near else loop.aggregator[1]
    authenticated = len(loop.key) > 0
    impaired = impair.active(loop.downlink) or impair.active(loop.uplink)
    recording = len(loop.log.packets) > 0
    quiet = 0
    if window.moved:  # the job has moved to another aggregator
        n = handover.send_all(loop.worker, loop.out)
        _dispatch(loop, n, n, started, clock)
    while True:
        # L1. Receive arrived packets.
        count = shm.receive_down(loop.shared, me.identity.rank, loop.incoming) if near else _receive(loop)
        now = libc.now_ns(clock)
        incoming = loop.incoming
        if impaired:
            count, incoming = impair.impair(loop.downlink, loop.incoming, count, now, loop.delayed), loop.delayed
        if authenticated:
            _remove_tags(loop, incoming, count)
        # L2. Process each packet, and send the resulting packets as soon as they fill a window.
        n = int64(0)  # a plain 0 has another type, for which `receive` would be compiled a second time
        for i in range(count):
            if incoming.endpoint[i] != source:
                me.counters.refused += 1
                continue
            address, length, received = incoming.address[i], int64(incoming.length[i]), me.counters.received
            if length < 0:
                me.counters.refused_auth += 1
                continue
            awaited = recording and packet_log.is_awaited(loop.worker, address)
            n = results.receive(loop.worker, address, length, now, loop.out, n)
            if recording and me.counters.received > received:
                packet_log.log_received(loop.log, loop.worker, address, length, awaited, now)
            if n + 1 >= me.identity.slots:
                sending.build_streams(loop.worker, loop.out, n)
                _dispatch(loop, n, n, now, clock)
                n = 0
            if me.failure.code:
                return FAILED
        # L3. Start new chunks.
        n = sending.fill(loop.worker, now, loop.out, n)
        if me.failure.code:
            return FAILED
        sending.build_streams(loop.worker, loop.out, n)
        # L4. Retransmit, and send everything.
        fresh = n
        n = timers.timeouts(loop.worker, now, loop.out, n)
        _dispatch(loop, fresh, n, now, clock)
        # L5. Return if Python has work to do.
        if me.counters.completed > completed:
            return TASK_DONE
        if 0 <= tick_ns <= now - started:
            return TICK
        # L6. Continue while packets arrive, and for a few iterations after.
        if count:
            quiet = 0
            continue
        if quiet < _SPINS and window.first_task < window.next_task and libc.may_spin(loop.spin_after, now):
            quiet += 1
            libc.yield_with_backoff(loop.spin_after, libc.now_ns(clock), clock)
            continue
        # L7. Sleep until a packet, a deadline, or a write to the wake descriptor.
        quiet = 0
        if _sleep(loop, now, tick_ns, clock):
            return WOKEN


@kernel
def _remove_tags(loop, packets, count):
    """Replace the lengths of authenticated packets by those without their tags, or by -1 where the tag is not the
    aggregator's, for this rank and round. No packet of a batch is so far from its slot's round that the ones before it
    would change the result."""
    worker, n = loop.worker, int64(0)
    identity = worker.scalars[0].identity
    for i in range(count):
        if packets.endpoint[i] != loop.aggregator[1]:
            continue
        address, size = packets.address[i], int64(packets.length[i]) - TAG_BYTES
        if size < HEADER_BYTES:
            packets.length[i] = -1
            continue
        header = u8_at(address, HEADER_BYTES)
        seq = be32(header, 2)
        ours = seq_of(worker, seq & (identity.slots - 1))
        number = ours + serial_difference(seq, ours)
        is_for_all = header[0] >> 4 != WAIT and not header[0] & R_FLAG
        receiver = EVERYBODY if is_for_all else identity.rank
        key0, key1 = loop.key[0], loop.key[1]
        n = authentication.add(loop.signed, n, i, key0, key1, TO_RANKS, receiver, number, address, size)
    authentication.check(loop.signed, n, packets.length)


@kernel
def _dispatch(loop, fresh, n, now, clock):
    """Send the packets of the listed slots, `out[:n]`; those from `fresh` on are retransmissions."""
    near = loop.shared[shm.BASE] != 0
    if n and len(loop.log.packets):  # logged before they are sent, so that no response is logged earlier
        packet_log.log_sent(loop.log, loop.worker, loop.out, fresh, n, near, libc.now_ns(clock))
    if near:
        _hand_over(loop, fresh, n)
    elif n or impair.active(loop.uplink):
        _send(loop, n, now)


@kernel
def _sleep(loop, now, tick_ns, clock):
    """Sleep until a packet or a deadline; returns whether the wake descriptor was written to."""
    me, near = loop.worker.scalars[0], loop.shared[shm.BASE] != 0
    waits = me.window.in_flight > 0 or me.window.first_task < me.window.next_task
    pause = max(me.timers.earliest - now, 0) if waits else np.int64(-1)
    if tick_ns >= 0 and (pause < 0 or pause > tick_ns):
        pause = tick_ns
    if impair.active(loop.downlink) or impair.active(loop.uplink):
        release = min(impair.next_release(loop.downlink), impair.next_release(loop.uplink))
        if release != _NEVER and (pause < 0 or release - now < pause):
            pause = max(release - now, 0)
    if near:
        shm.announce_sleep(loop.shared, me.identity.rank, 1)
        if shm.down_waits(loop.shared, me.identity.rank):
            pause = 0
    socket_fd = loop.raw.config[0] if loop.transport[0] == RAW else loop.io.config[0]
    woken = libc.wait_readable(socket_fd, loop.fds[0], pause, clock)
    if near:
        shm.announce_sleep(loop.shared, me.identity.rank, 0)
        if woken & 1:
            count = udp.receive_batch(loop.io, loop.incoming)
            for i in range(count):  # the aggregator's wake-up datagrams are empty
                if loop.incoming.length[i] != 0:
                    me.counters.refused += 1
    return woken & 2 != 0


@kernel
def _receive(loop):
    """Receive packets from the sockets; returns the number of packets in `loop.incoming`."""
    if loop.transport[0] == RAW:
        return frames.receive_batch(loop.raw, loop.incoming, loop.flow)
    count = udp.receive_batch(loop.io, loop.incoming)
    if loop.transport[0] == FRAMED:
        return frames.strip(loop.incoming, count, loop.flow, loop.aggregator[0])
    return count


@kernel
def _send(loop, n, now):
    """Send the packets of the listed slots through the socket, those with data first: consecutive packets of the same
    length are sent as one train."""
    payload, rank = loop.worker.scalars[0].identity.payload, loop.worker.scalars[0].identity.rank
    before = frames.HEADER_BYTES if loop.transport[0] != PLAIN else 0
    outgoing = loop.outgoing
    count = 0
    for has_data in range(1, -1, -1):
        for i in range(n):
            slot = loop.worker.slots[loop.out[i]]
            length = int64(slot.length)
            if (length > payload) == has_data:
                address = packet_at(loop.worker, loop.out[i])
                if len(loop.key):
                    key0, key1, number = loop.key[0], loop.key[1], seq_of(loop.worker, loop.out[i])
                    authentication.add(
                        loop.signed, count, count, key0, key1, TO_AGGREGATOR, rank, number, address, length
                    )
                    length += TAG_BYTES
                outgoing.address[count] = address - np.uint64(before)
                outgoing.length[count] = before + length
                outgoing.endpoint[count] = loop.aggregator[0]
                if before:
                    if slot.words:
                        rows = loop.worker.packets
                        headers = rows.ctypes.data + np.uint64(loop.out[i] * rows.shape[1])
                        copy_bytes(outgoing.address[count], headers, before)
                    frames.fit(outgoing.address[count], before + length)
                count += 1
    if len(loop.key):
        authentication.sign(loop.signed, count)
    if impair.active(loop.uplink):
        n, outgoing = impair.impair(loop.uplink, outgoing, n, now, loop.impaired), loop.impaired
    if loop.transport[0] == RAW:
        frames.send_batch(loop.raw, outgoing, n)
    else:
        udp.send_batch(loop.io, outgoing, n)


@kernel
def _hand_over(loop, fresh, n):
    """Publish the listed slots' packets in shared memory; those from `fresh` on are already there, and are
    only probed."""
    rank = loop.worker.scalars[0].identity.rank
    ring, head, end = shm.open_up(loop.shared, rank)
    for i in range(fresh):
        packet = packet_at(loop.worker, loop.out[i])
        head = shm.add(loop.shared, ring, head, end, packet, int64(loop.worker.slots[loop.out[i]].length))
    shm.publish(ring, head)
    for i in range(fresh, n):
        shm.query_up(loop.shared, rank, seq_of(loop.worker, loop.out[i]) & 0xFFFFFFFF)
    # A probe means a long wait: an earlier wake-up may have been lost while the aggregator sleeps with its flag
    # cleared.
    if n and (shm.must_wake(loop.shared, -1) or n > fresh):
        loop.outgoing.address[0], loop.outgoing.length[0], loop.outgoing.endpoint[0] = (
            loop.outgoing.address.ctypes.data,
            0,
            loop.aggregator[0],
        )
        udp.send_batch(loop.io, loop.outgoing, 1)


def warm_up() -> None:
    """Compile the agent's kernels (a minute or more the first time on a machine) or load them from the cache (a
    fraction of a second). Call it before joining a job, so that no rank delays the others."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        worker = Worker(rank=0, workers=1, slots=2, job_tag=0, isn=0)
        compile_once(run, new_loop(worker, sock, wake=0, aggregator=("127.0.0.1", 1)), 0, 0)
    density.warm_up()
