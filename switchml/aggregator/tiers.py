"""The compiled loops of two tiers (docs/protocol.md, section 14): in front a software switch whose slots all jobs
share, and behind it the aggregator that completes every round. Datagrams between them end in a trailer.

Neither loop holds the GIL. `best_effort.py` owns their state, and changes it only while they are paused.
"""

import socket
from typing import NamedTuple

import numpy as np

from switchml import counters
from switchml.aggregator.loop import JOB_ENTRY, MAX_JOBS, pool_of
from switchml.aggregator.senders import TABLE, find_sender
from switchml.net import impair, libc, udp
from switchml.protocol import packet as wire_format
from switchml.protocol.best_effort import (
    PARTIAL_BYTES,
    TRAILER_BYTES,
    Shared,
    first_rank,
    new_shared,
    put_trailer,
    receive_partial,
    release,
    take,
)
from switchml.protocol.pool_state import JOB, MULTICAST, UNICAST, WAITING
from switchml.protocol.pool_v2 import cut, result_of, size_for
from switchml.runtime.jit import Address, int64, kernel
from switchml.runtime.memory import be16, be32, borrowed, copy_bytes, u8_at, u64_at

_HEADER = wire_format.HEADER_BYTES
_WAIT_BYTES = _HEADER + wire_format.BITMAP_BYTES
_IDLE_ROUNDS = 32
"""Number of rounds without packets before a loop sleeps."""
_BATCH = 2 * udp.RECEIVE_PACKETS + 2 * impair.MAX_DELAYED
_ROOM = 4096
_RANKS = wire_format.V2_MAX_WORKERS


class Front(NamedTuple):
    """State of `serve_front`.

    `jobs` JOB[MAX_JOBS], tag 0: none. Each rank's `endpoints` uint64[MAX_JOBS, 256] and `counters` int64[MAX_JOBS, 256,
    len(COUNTERS)]. `job_of_tag` int64[65536], -1: no job. `senders` as in `Loop`. `behind` uint64[1]: endpoint of the
    aggregator behind. `made` uint8[n, PARTIAL_BYTES]: packets for it. `down` int64[n]: indices of the packets of a
    batch that came from it. `totals` int64[2]: refused packets, send failures."""

    io: udp.UdpIO
    shared: Shared
    jobs: np.ndarray
    endpoints: np.ndarray
    counters: np.ndarray
    job_of_tag: np.ndarray
    senders: np.ndarray
    behind: np.ndarray
    incoming: udp.Packets
    delayed: udp.Packets
    outgoing: udp.Packets
    impaired: udp.Packets
    made: np.ndarray
    down: np.ndarray
    bad_uplink: impair.Impairment
    bad_downlink: impair.Impairment
    totals: np.ndarray
    wake: np.ndarray
    spin_after: np.ndarray


class Behind(NamedTuple):
    """State of `serve_behind`. `jobs` JOB_ENTRY[MAX_JOBS]. `front` uint64[1]: endpoint that packets come from and
    `made` is sent to. `ranks` uint64[4]: scratch."""

    io: udp.UdpIO
    jobs: np.ndarray
    job_of_tag: np.ndarray
    front: np.ndarray
    incoming: udp.Packets
    outgoing: udp.Packets
    made: np.ndarray
    ranks: np.ndarray
    totals: np.ndarray
    wake: np.ndarray
    spin_after: np.ndarray


def new_front(
    sock: socket.socket, wake: int, slots: int, behind: int, uplink: impair.Impairment, downlink: impair.Impairment
) -> Front:
    """Create a switch of `slots` slots, around a bound UDP socket, an eventfd, the endpoint of the aggregator behind,
    and the impairments of incoming and outgoing packets."""
    return Front(
        io=udp.new_udp_io(sock),
        shared=new_shared(slots),
        jobs=np.zeros(MAX_JOBS, JOB),
        endpoints=np.zeros((MAX_JOBS, _RANKS), np.uint64),
        counters=np.zeros((MAX_JOBS, _RANKS, len(counters.COUNTERS)), np.int64),
        job_of_tag=np.full(1 << 16, -1, np.int64),
        senders=np.zeros((TABLE, 2), np.uint64),
        behind=np.array([behind], np.uint64),
        incoming=udp.new_packets(udp.RECEIVE_PACKETS),
        delayed=udp.new_packets(_BATCH),
        outgoing=udp.new_packets(_ROOM),
        impaired=udp.new_packets(2 * _ROOM + 2 * impair.MAX_DELAYED),
        made=np.zeros((_ROOM, PARTIAL_BYTES), np.uint8),
        down=np.zeros(_BATCH, np.int64),
        bad_uplink=uplink,
        bad_downlink=downlink,
        totals=np.zeros(2, np.int64),
        wake=np.array([wake], np.int64),
        spin_after=np.zeros(1, np.int64),
    )


def new_behind(sock: socket.socket, wake: int, front: int) -> Behind:
    """Create the state around a bound UDP socket, an eventfd, and the endpoint of the switch in front."""
    return Behind(
        io=udp.new_udp_io(sock),
        jobs=np.zeros(MAX_JOBS, JOB_ENTRY),
        job_of_tag=np.full(1 << 16, -1, np.int64),
        front=np.array([front], np.uint64),
        incoming=udp.new_packets(udp.RECEIVE_PACKETS),
        outgoing=udp.new_packets(udp.RECEIVE_PACKETS),
        made=np.zeros((udp.RECEIVE_PACKETS, PARTIAL_BYTES), np.uint8),
        ranks=np.zeros(4, np.uint64),
        totals=np.zeros(2, np.int64),
        wake=np.array([wake], np.int64),
        spin_after=np.zeros(1, np.int64),
    )


@kernel
def _list(packets: udp.Packets, n: int, address: Address, length: int, endpoint: np.uint64) -> int:
    packets.address[n], packets.length[n], packets.endpoint[n] = address, length, endpoint
    return n + 1


@kernel
def _send(front: Front, n: int, now: int) -> None:
    if impair.active(front.bad_downlink):
        n = impair.impair(front.bad_downlink, front.outgoing, n, now, front.impaired)
        front.totals[1] += udp.send_batch(front.io, front.impaired, n)
    elif n:
        front.totals[1] += udp.send_batch(front.io, front.outgoing, n)


@kernel
def _size_for(data: np.ndarray, length: int, rank: int) -> int:
    """Size of a packet from behind as sent to a rank: an addressed result is truncated for ranks that get no data."""
    if data[0] & wire_format.SPARSE == 0 or data[1] != wire_format.ADDRESSED or data[0] >> 4 == wire_format.WAIT:
        return length
    return cut(length, (int64(data[_HEADER]) << 8) | int64(data[_HEADER + 1]), rank)


@kernel
def _take_up(front: Front, n: int, value: int, address: Address, length: int, now: int) -> int:
    """Process a rank's packet: sum it, or list it for the aggregator behind; returns the new number of listed packets.
    There is room for two."""
    number, rank = value >> 16, value & 0xFFFF
    job, mine = front.jobs[number], front.counters[number, rank]
    mine[counters.RECEIVED_PACKETS] += 1
    mine[counters.RECEIVED_BYTES] += length
    if length < _HEADER or length > wire_format.MAX_SPARSE_BYTES:
        mine[counters.REFUSED_FORMAT] += 1
        return n
    if be16(u8_at(address, length), 6) != job.job_tag:
        mine[counters.REFUSED_TAG] += 1
        return n
    size, passed = take(front.shared, job, rank, address, length, now, front.made[n])
    if size:
        n = _list(front.outgoing, n, front.made[n].ctypes.data, size, front.behind[0])
    if passed:
        at, ranks = np.uint64(front.made[n].ctypes.data), np.zeros(4, np.uint64)
        ranks[rank >> 6] = np.uint64(1) << np.uint64(rank & 63)
        copy_bytes(at, address, length)
        put_trailer(at + np.uint64(length), ranks, 0)
        n = _list(front.outgoing, n, at, length + TRAILER_BYTES, front.behind[0])
    return n


@kernel(forceinline=True)
def _free_round(front: Front, data: np.ndarray) -> None:
    """Free the slot of the round that a result from behind completes."""
    if data[0] >> 4 != wire_format.WAIT:
        release(front.shared, be16(data, 6), be32(data, 2))


@kernel(forceinline=True)
def _list_down(front: Front, n: int, number: int, rank: int, address: Address, length: int) -> int:
    """List a packet from behind, of `length` bytes plus its trailer, for a rank of a job if it is addressed to the
    rank; returns the new number of listed packets."""
    ranks = u64_at(address + np.uint64(length), 4)
    if ranks[rank >> 6] >> np.uint64(rank & 63) & np.uint64(1) == 0:
        return n
    size = _size_for(u8_at(address, length), length, rank)
    mine = front.counters[number, rank]
    mine[counters.SENT_PACKETS] += 1
    mine[counters.SENT_BYTES] += size
    return _list(front.outgoing, n, address, size, front.endpoints[number, rank])


@kernel
def _bring_down(front: Front, packets: udp.Packets, count: int, now: int) -> None:
    """Send the `count` packets in `front.down` to their ranks, grouped by rank so that they are sent as trains."""
    first = n = int64(0)
    while first < count:
        number = front.job_of_tag[be16(u8_at(packets.address[front.down[first]], _HEADER), 6)]
        last = first
        while last < count:
            data = u8_at(packets.address[front.down[last]], _HEADER)
            if front.job_of_tag[be16(data, 6)] != number:
                break
            _free_round(front, data)
            last += 1
        for rank in range(front.jobs[number].workers if number >= 0 else 0):
            for k in range(first, last):
                address = packets.address[front.down[k]]
                length = int64(packets.length[front.down[k]]) - TRAILER_BYTES
                if n == _ROOM:
                    _send(front, n, now)
                    n = int64(0)
                n = _list_down(front, n, number, rank, address, length)
        first = last
    _send(front, n, now)


@kernel
def _step_front(front: Front, packets: udp.Packets, count: int, now: int) -> None:
    n = down = int64(0)
    for i in range(count):
        sender, length = packets.endpoint[i], int64(packets.length[i])
        if sender == front.behind[0]:
            if length >= _HEADER + TRAILER_BYTES:
                front.down[down] = i
                down += 1
            continue
        value = find_sender(front.senders, sender)
        if value < 0:
            front.totals[0] += 1
            continue
        if n + 2 > _ROOM:
            _send(front, n, now)
            n = int64(0)
        n = _take_up(front, n, value, packets.address[i], length, now)
    _send(front, n, now)
    if down:
        _bring_down(front, packets, down, now)


@kernel
def apply_front(front: Front, sender: np.uint64, address: Address, length: int, now: int) -> int:
    """Process one datagram; returns the number of resulting packets in `front.outgoing`, none of which is sent."""
    if sender != front.behind[0]:
        value = find_sender(front.senders, sender)
        if value < 0:
            front.totals[0] += 1
            return int64(0)
        return int64(_take_up(front, 0, value, address, length, now))
    n = int64(0)
    if length < _HEADER + TRAILER_BYTES:
        return n
    data = u8_at(address, _HEADER)
    number = front.job_of_tag[be16(data, 6)]
    _free_round(front, data)
    for rank in range(front.jobs[number].workers if number >= 0 else 0):
        n = _list_down(front, n, number, rank, address, length - TRAILER_BYTES)
    return n


@kernel
def apply_behind(behind: Behind, n: int, sender: np.uint64, address: Address, length: int) -> int:
    """Process one datagram, and list the reply to it in `behind.outgoing` after `n` others; returns the new number of
    listed packets."""
    number = int64(-1)
    if sender == behind.front[0] and length >= _HEADER + TRAILER_BYTES:
        number = behind.job_of_tag[be16(u8_at(address, _HEADER), 6)]
    if number < 0:
        behind.totals[0] += 1
        return n
    pool, made = pool_of(behind.jobs[number]), behind.made[n]
    action, row = receive_partial(pool, made, address, length)
    if action not in (MULTICAST, UNICAST, WAITING):
        return n
    behind.ranks[:] = 0
    size, at = int64(_WAIT_BYTES), np.uint64(made.ctypes.data)
    if action == MULTICAST:
        for rank in range(pool.job[0].workers):
            behind.ranks[rank >> 6] |= np.uint64(1) << np.uint64(rank & 63)
        result, size = result_of(pool, row)
        copy_bytes(at, result, size)
    else:
        rank = first_rank(address + np.uint64(length - TRAILER_BYTES))
        behind.ranks[rank >> 6] = np.uint64(1) << np.uint64(rank & 63)
        if action == UNICAST:
            size = size_for(pool, row, rank)
    put_trailer(at + np.uint64(size), behind.ranks, 0)
    return int64(_list(behind.outgoing, n, at, size + TRAILER_BYTES, behind.front[0]))


@kernel
def _step_behind(behind: Behind, count: int) -> None:
    n, packets = int64(0), behind.incoming
    for i in range(count):
        n = apply_behind(behind, n, packets.endpoint[i], packets.address[i], int64(packets.length[i]))
    behind.totals[1] += udp.send_batch(behind.io, behind.outgoing, n)


@kernel
def serve_behind(behind: Behind) -> None:
    """Serve until the wake descriptor is written to."""
    behind = borrowed(behind)
    clock = np.zeros(8, np.int64)
    quiet = _IDLE_ROUNDS
    while True:
        count = udp.receive_batch(behind.io, behind.incoming)
        now = libc.now_ns(clock)
        if count:
            _step_behind(behind, count)
            quiet = 0
        elif quiet < _IDLE_ROUNDS and libc.may_spin(behind.spin_after, now):
            quiet += 1
            libc.yield_with_backoff(behind.spin_after, now, clock)
            continue
        if libc.wait_readable(behind.io.config[0], behind.wake[0], 0 if count else -1, clock) & 2:
            return


@kernel
def serve_front(front: Front) -> None:
    """Serve until the wake descriptor is written to."""
    front = borrowed(front)
    clock = np.zeros(8, np.int64)
    quiet = _IDLE_ROUNDS
    while True:
        count = udp.receive_batch(front.io, front.incoming)
        now, lossy = libc.now_ns(clock), impair.active(front.bad_uplink)
        if lossy:
            released = impair.impair(front.bad_uplink, front.incoming, count, now, front.delayed)
            _step_front(front, front.delayed, released, now)
        elif count:
            _step_front(front, front.incoming, count, now)
        timeout = int64(0)
        if count:
            quiet = 0
        elif quiet < _IDLE_ROUNDS and libc.may_spin(front.spin_after, now):
            quiet += 1
            libc.yield_with_backoff(front.spin_after, now, clock)
            continue
        else:
            timeout = int64(-1)
            if lossy:
                due = min(impair.next_release(front.bad_uplink), impair.next_release(front.bad_downlink))
                timeout = -1 if due == 0x7FFFFFFFFFFFFFFF else max(due - now, 50_000)
        if libc.wait_readable(front.io.config[0], front.wake[0], timeout, clock) & 2:
            return
