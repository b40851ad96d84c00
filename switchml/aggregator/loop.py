"""The aggregator's compiled loop: applies the rules of pool.py to packets from a UDP socket and from shared memory, and
sends the results.

It does not hold the GIL and creates no Python objects. `software.py` owns its state, and changes it only while the loop
is paused.
"""

import socket
from typing import Any, NamedTuple

import numba
import numpy as np

from switchml import counters
from switchml.aggregator.senders import TABLE, find_sender
from switchml.net import impair, libc, shm, udp
from switchml.protocol import authentication
from switchml.protocol import packet as wire_format
from switchml.protocol.authentication import EVERYBODY, TAG_BYTES, TO_AGGREGATOR, TO_RANKS
from switchml.protocol.pool_state import DROP, JOB, MULTICAST, SLOT, SLOT_V1, UNICAST, WAITING, State, StateV1
from switchml.protocol.pool_v1 import receive_v1
from switchml.protocol.pool_v2 import (
    cut,
    gets_result,
    is_partial,
    number_of,
    query_v2,
    receive_v2,
    receivers_of,
    result_of,
    size_for,
)
from switchml.runtime.jit import Address, int64, kernel
from switchml.runtime.memory import be32, borrowed, copy_bytes, i64_at, pointer, prefetch, record, u8_at, u64_at

MAX_JOBS = 512
_WAIT_BYTES = wire_format.HEADER_BYTES + wire_format.BITMAP_BYTES

JOB_ENTRY = record(
    "i8 protocol workers",
    "u8 job slots seen rows",
    "i8 row_bytes",
    "u8 wide",
    "i8 wide_bytes",
    "u8 parts",
    "i8 part_count part_bytes",
    "u8 results counters endpoints",
    "i8 slot_count",
    "u8 segment local",
    "i8 replies",
    "u8 key0 key1",
    "i8 tag_bytes",
)
"""Locations of a job's arrays. `protocol` 0: no job. `results`: address of row 0's packet (protocol 1). `segment`:
address of its shared memory's `at` (0: none); `local`: address of a uint8 per rank, 1 once a packet of the rank came
through shared memory: from then on none is accepted from its UDP address. `key0`, `key1`: key of the authentication
tags of its UDP packets, which have `tag_bytes` each (0: none)."""

LOCAL = np.uint64(1 << 63)
"""Endpoint of a packet from shared memory: this bit, then job << 16 | rank."""
_BATCH_BYTES = 64 * (64 + 1024)
"""Bytes of rows whose packets are taken from one rank's ring before the next rank's turn: their slots stay in the cache
until all ranks are added."""
_IDLE_ROUNDS = 32
"""Number of rounds without packets before the loop sleeps, and of rounds of ring work between two polls of the socket.
"""
_AHEAD, _LINE, _FETCHED = 2, 64, 2048
"""Prefetching of packets in shared memory: number of packets ahead of the current one, bytes of a cache line, and
maximum bytes of a packet. Ranks wrote them on other cores, so each line would otherwise be a cache miss."""
_WAKE_ROUNDS = 4
"""Number of rounds of ring work after which sleeping ranks are woken, unless the rings are empty before. A rank woken
for a few results soon sleeps again, and each wake-up costs as much as some twenty packets."""


class Loop(NamedTuple):
    """State of `serve`. `senders` uint64[TABLE, 2]: endpoint (0 = free), job << 16 | rank. `totals` int64[2]: refused
    packets, send failures. `rings` int64[1 + MAX_JOBS]: number of jobs with shared memory, and their indices.
    `authenticated` int64[1]: 1 while packets of any job have tags, and `signed` the packets whose tags are computed
    together. `spin_after`: of libc.yield_with_backoff."""

    io: udp.UdpIO
    jobs: np.ndarray
    senders: np.ndarray
    incoming: udp.Packets
    nearby: udp.Packets
    delayed: udp.Packets
    outgoing: udp.Packets
    impaired: udp.Packets
    replies: np.ndarray
    done: np.ndarray
    bad_uplink: impair.Impairment
    bad_downlink: impair.Impairment
    totals: np.ndarray
    wake: np.ndarray
    rings: np.ndarray
    authenticated: np.ndarray
    signed: authentication.Batch
    spin_after: np.ndarray


@kernel(forceinline=True)
def _counters_of(entry: Any) -> np.ndarray:
    return numba.carray(pointer(np.uintp(entry.counters)), (entry.workers, len(counters.COUNTERS)), np.int64)


@kernel(forceinline=True)
def pool_of(entry: Any) -> State:
    """The arrays of a v2 job."""
    rows = 2 * entry.slot_count
    return State(
        numba.carray(pointer(np.uintp(entry.job)), (1,), JOB),
        numba.carray(pointer(np.uintp(entry.slots)), (rows,), SLOT),
        numba.carray(pointer(np.uintp(entry.seen)), (rows, 4), np.uint64),
        numba.carray(pointer(np.uintp(entry.rows)), (rows, entry.row_bytes), np.uint8),
        numba.carray(pointer(np.uintp(entry.wide)), (rows, entry.wide_bytes), np.uint8),
        _counters_of(entry),
        numba.carray(pointer(np.uintp(entry.parts)), (entry.part_count, entry.part_bytes), np.uint8),
    )


@kernel(forceinline=True)
def _pool_v1_of(entry: Any) -> StateV1:
    """The arrays of a v1 session."""
    rows = 2 * entry.slot_count
    return StateV1(
        numba.carray(pointer(np.uintp(entry.job)), (1,), JOB),
        numba.carray(pointer(np.uintp(entry.slots)), (rows,), SLOT_V1),
        numba.carray(pointer(np.uintp(entry.rows)), (rows, entry.row_bytes), np.uint8),
        _counters_of(entry),
    )


@kernel(forceinline=True)
def _apply(entry: Any, rank: int, address: Address, length: int, reply: np.ndarray) -> tuple[int, int]:
    """Apply the rules of a packet's job to it; returns (action, row)."""
    if entry.protocol == 1:
        return receive_v1(_pool_v1_of(entry), reply, rank, address, length)
    pool = pool_of(entry)
    # A rank that shares memory loses no packets; it queries the ranks that a round waits for.
    if length == 0 and entry.segment:
        return query_v2(pool, reply, rank, int64(address)), 0
    return receive_v2(pool, reply, rank, address, length)


@kernel(forceinline=True)
def _result_of(entry: Any, row: int, length: int) -> tuple[Address, int]:
    """(address, length) of the result in a row; `length` is that of the packet it answers."""
    if entry.protocol == 1:
        return entry.results + np.uint64(row * entry.row_bytes), length
    return result_of(pool_of(entry), row)


@kernel
def _answer_size(entry: Any, row: int, rank: int, length: int) -> Any:
    """Length of the result in a row as sent to one rank; `length` is that of the packet it answers."""
    if entry.protocol == 1 or entry.tag_bytes:
        return int64(_result_of(entry, row, length)[1])
    return size_for(pool_of(entry), row, rank)


@kernel
def apply_one(
    senders: np.ndarray, jobs: np.ndarray, endpoint: np.uint64, address: Address, length: int, reply: np.ndarray
) -> tuple[int, int, int]:
    """Process one datagram of `endpoint`, for a caller with its own clock and network: (job << 16 | rank, or -1 for an
    unknown sender; action; row). `reply` uint8[>= 1034] receives the packet to send for UNICAST and WAITING."""
    value = find_sender(senders, endpoint)
    if value < 0:
        value = find_sender(senders, endpoint & ~np.uint64(0xFFFF))
    if value < 0:
        return value, int64(DROP), int64(0)
    action, row = _apply(jobs[value >> 16], value & 0xFFFF, address, length, reply)
    return value, int64(action), int64(row)


@kernel(forceinline=True)
def _emit(outgoing: udp.Packets, n: int, entry: Any, rank: int, address: Address, length: int, port: int) -> int:
    """Append one packet for a rank to `outgoing`, which has room. `port` overrides the rank's (v1: the port of the
    completing packet)."""
    mine = _counters_of(entry)[rank]
    mine[counters.SENT_PACKETS] += 1
    mine[counters.SENT_BYTES] += length
    if entry.local and u8_at(entry.local, entry.workers)[rank]:
        _hand_over(entry, rank, address, length)
        return n
    to = u64_at(entry.endpoints, entry.workers)[rank]
    if to == 0:
        return n  # v1: this rank has not registered its address yet
    outgoing.address[n], outgoing.length[n] = address, length + entry.tag_bytes
    outgoing.endpoint[n] = (to | np.uint64(port)) if port else to
    return n + 1


@kernel(forceinline=True)
def _hand_over(entry: Any, rank: int, address: Address, length: int) -> None:
    """Publish a result or a wait packet to a rank that shares the job's memory."""
    at = i64_at(entry.segment, shm.FIELDS)
    if u8_at(address, 1)[0] >> 4 == wire_format.WAIT:  # not in shared memory yet: copy it there
        row = np.uint64(at[shm.BASE] + at[shm.ROWS] + (2 * at[shm.SLOTS] + entry.replies % shm.REPLIES) * at[shm.ROW])
        entry.replies += 1
        copy_bytes(row, address, length)
        shm.push_down(at, rank, row, length, 2 * at[shm.SLOTS])
    else:
        shm.push_down(at, rank, address, length, 0)


@kernel(forceinline=True)
def _size_of(loop: Loop, k: int, entry: Any, rank: int) -> int:
    """Bytes of the result of the `k`-th round in `done` for a rank, or -1 if it does not receive it."""
    done = loop.done
    if done[k, 5] >= 0 and not gets_result(pool_of(entry), done[k, 5], rank):
        return int64(-1)
    return cut(done[k, 2], done[k, 4], rank)


@kernel
def _hand_over_all(loop: Loop, entry: Any, rank: int, first: int, last: int) -> None:
    """Publish the results of the rounds `first` … `last` - 1 in `done` to a rank that shares their job's memory."""
    loop = borrowed(loop)
    at, mine, count, size_sum = i64_at(entry.segment, shm.FIELDS), _counters_of(entry)[rank], int64(0), int64(0)
    ring, head, end = shm.open_down(at, rank)
    for k in range(first, last):
        size = _size_of(loop, k, entry, rank)
        if size >= 0:
            head = shm.add(at, ring, head, end, np.uint64(loop.done[k, 1]), size)
            count, size_sum = count + 1, size_sum + size
    shm.publish(ring, head)
    mine[counters.SENT_PACKETS] += count
    mine[counters.SENT_BYTES] += size_sum


@kernel
def _remove_tags(loop: Loop, packets: udp.Packets, count: int) -> None:
    """Replace the lengths of authenticated packets by those without their tags, or by a negative value if the tag is
    not the rank's for its round (authentication.check). No packet of a batch is so far from its row's round that the
    ones before it would change the result."""
    n = int64(0)
    for i in range(count):
        key = packets.endpoint[i]
        value = int64(-1) if key & LOCAL else find_sender(loop.senders, key)
        if value < 0:
            continue
        entry, rank, length = loop.jobs[value >> 16], value & 0xFFFF, int64(packets.length[i])
        if entry.tag_bytes == 0 or (entry.segment and (length == 0 or u8_at(entry.local, entry.workers)[rank])):
            continue
        size, address = int64(length - entry.tag_bytes), packets.address[i]
        if size < wire_format.HEADER_BYTES:
            packets.length[i] = ~length
            continue
        number = number_of(pool_of(entry), be32(u8_at(address, wire_format.HEADER_BYTES), 2))
        key0, key1 = entry.key0, entry.key1
        n = authentication.add(loop.signed, n, i, key0, key1, TO_AGGREGATOR, rank, number, address, size)
    authentication.check(loop.signed, n, packets.length)


@kernel
def _refuse(entry: Any, rank: int, length: int) -> None:
    """Count a packet from a rank's address with a wrong tag."""
    mine = _counters_of(entry)[rank]
    mine[counters.RECEIVED_PACKETS] += 1
    mine[counters.RECEIVED_BYTES] += length
    mine[counters.REFUSED_AUTH] += 1


@kernel
def _add_signed(loop: Loop, n: int, entry: Any, receiver: int, row: int, address: Address, length: int) -> int:
    """Add a packet about the round in a row to the batch of `authentication.sign`, as its `n`-th, if any rank receives
    it by UDP; returns the new size of the batch."""
    if entry.tag_bytes == 0 or (entry.local and u8_at(entry.local, entry.workers).all()):
        return n
    number = pool_of(entry).slots[row].seq
    return authentication.add(loop.signed, n, 0, entry.key0, entry.key1, TO_RANKS, receiver, number, address, length)


@kernel
def _send(loop: Loop, n: int, now: int) -> None:
    if impair.active(loop.bad_downlink):
        n = impair.impair(loop.bad_downlink, loop.outgoing, n, now, loop.impaired)
        loop.totals[1] += udp.send_batch(loop.io, loop.impaired, n)
    elif n:
        loop.totals[1] += udp.send_batch(loop.io, loop.outgoing, n)


@kernel(forceinline=True)
def _fetch(address: Address, length: int) -> None:
    """Prefetch a packet into the cache, except for the line of its header, which is there (shm.receive_up); of a large
    packet only the beginning, after which the hardware prefetcher follows."""
    for at in range(_LINE, min(length, _FETCHED), _LINE):
        prefetch(address + np.uint64(at))


@kernel
def _step(loop: Loop, packets: udp.Packets, count: int, now: int) -> None:
    """Handle one batch: apply every packet, then send the results, grouped by rank so that they are sent as trains. A
    row of `done` is a completed round: job, address and size of its result, port, ranks that get its data
    (`receivers_of`), and its row if it is not for all ranks, else -1."""
    loop, packets = borrowed(loop), borrowed(packets)
    unicasts = 0  # stored in `replies` and listed first
    # A plain 0 has another type, for which called functions would be compiled a second time.
    n = finished = signed = int64(0)
    outgoing = loop.outgoing
    capacity = outgoing.address.size
    if loop.authenticated[0]:
        _remove_tags(loop, packets, count)
    for i in range(count):
        if i + _AHEAD < count and packets.endpoint[i + _AHEAD] & LOCAL:
            _fetch(packets.address[i + _AHEAD], int64(packets.length[i + _AHEAD]))
        key = packets.endpoint[i]
        value = int64(key & ~LOCAL) if key & LOCAL else find_sender(loop.senders, key)
        if value < 0:
            value = find_sender(loop.senders, key & ~np.uint64(0xFFFF))
        if value < 0:
            loop.totals[0] += 1
            continue
        entry, rank = loop.jobs[value >> 16], value & 0xFFFF
        reply = loop.replies[unicasts]
        if key & LOCAL:
            u8_at(entry.local, entry.workers)[rank] = 1
        elif entry.segment:
            if packets.length[i] == 0:
                continue  # a wake-up of a rank that shares memory
            if u8_at(entry.local, entry.workers)[rank]:
                loop.totals[0] += 1
                continue
        length = int64(packets.length[i])
        if length < 0:
            _refuse(entry, rank, ~length)
            continue
        action, row = _apply(entry, rank, packets.address[i], length, reply)
        port = int64(key & np.uint64(0xFFFF)) if entry.protocol == 1 else 0
        if action == MULTICAST:
            result, size = _result_of(entry, row, length)
            signed = _add_signed(loop, signed, entry, EVERYBODY, row, result, size)
            loop.done[finished, 0], loop.done[finished, 1], loop.done[finished, 2] = value >> 16, int64(result), size
            loop.done[finished, 3] = port
            receivers, partial = int64(0), False
            if entry.protocol != 1:
                pool = pool_of(entry)
                receivers, partial = receivers_of(pool, row), is_partial(pool, row)
            # One tag covers one packet: in a job with tags no result is truncated.
            loop.done[finished, 4] = receivers if entry.tag_bytes == 0 else 0
            loop.done[finished, 5] = row if partial else -1
            finished += 1
        elif action in (UNICAST, WAITING):
            size = int64(_WAIT_BYTES)
            if action == UNICAST:
                size = _answer_size(entry, row, rank, length)
            signed = _add_signed(loop, signed, entry, rank, row, reply.ctypes.data, size)
            if n == capacity:
                authentication.sign(loop.signed, signed)
                _send(loop, n, now)
                n = signed = int64(0)
            n = _emit(outgoing, n, entry, rank, reply.ctypes.data, size, port)
            unicasts += 1

    authentication.sign(loop.signed, signed)
    first = 0
    while first < finished:
        last = first
        while last < finished and loop.done[last, 0] == loop.done[first, 0]:
            last += 1
        entry = loop.jobs[loop.done[first, 0]]
        for rank in range(entry.workers):
            if entry.local and u8_at(entry.local, entry.workers)[rank]:
                _hand_over_all(loop, entry, rank, first, last)
                continue
            for k in range(first, last):
                size = _size_of(loop, k, entry, rank)
                if size < 0:
                    continue
                if n == capacity:
                    _send(loop, n, now)
                    n = 0
                n = _emit(outgoing, n, entry, rank, np.uint64(loop.done[k, 1]), size, loop.done[k, 3])
        first = last
    _send(loop, n, now)


@kernel
def _take_nearby(loop: Loop) -> int:
    """Take packets from the rings of all jobs with shared memory in turn; returns the number of packets in
    `loop.nearby`."""
    loop = borrowed(loop)
    count = int64(0)
    for k in range(loop.rings[0]):
        index = loop.rings[1 + k]
        entry = loop.jobs[index]
        at = i64_at(entry.segment, shm.FIELDS)
        most = _BATCH_BYTES // at[shm.ROW]
        for rank in range(entry.workers):
            count = shm.receive_up(at, rank, LOCAL | np.uint64(index << 16 | rank), loop.nearby, count, most)
    return count


@kernel
def _wake_ranks(loop: Loop) -> None:
    """Wake the sleeping ranks that have packets in their ring."""
    loop = borrowed(loop)
    n = 0
    for k in range(loop.rings[0]):
        entry = loop.jobs[loop.rings[1 + k]]
        at = i64_at(entry.segment, shm.FIELDS)
        for rank in range(entry.workers):
            if n < loop.outgoing.address.size and shm.down_waits(at, rank) and shm.must_wake(at, rank):
                loop.outgoing.address[n], loop.outgoing.length[n] = entry.endpoints, 0
                loop.outgoing.endpoint[n] = u64_at(entry.endpoints, entry.workers)[rank]
                n += 1
    if n:
        udp.send_batch(loop.io, loop.outgoing, n)


@kernel
def _announce_sleep(loop: Loop, asleep: int) -> bool:
    """Set the flags that ranks with shared memory check; returns whether a rank has sent packets in the meantime."""
    waiting = False
    for k in range(loop.rings[0]):
        entry = loop.jobs[loop.rings[1 + k]]
        at = i64_at(entry.segment, shm.FIELDS)
        shm.announce_sleep(at, -1, asleep)
        for rank in range(entry.workers):
            waiting = waiting or shm.up_waits(at, rank)
    return waiting


@kernel
def serve(loop: Loop) -> None:
    """Serve until the wake descriptor is written to."""
    loop = borrowed(loop)
    clock = np.zeros(8, np.int64)
    quiet, busy = _IDLE_ROUNDS, 0
    while True:
        nearby = _take_nearby(loop)
        if nearby:
            _step(loop, loop.nearby, nearby, int64(0))
            quiet, busy = 0, busy + 1
            if busy % _WAKE_ROUNDS == 0:
                _wake_ranks(loop)
            if busy < _IDLE_ROUNDS:
                continue
        elif quiet == 0:
            _wake_ranks(loop)
        busy = 0
        count = udp.receive_batch(loop.io, loop.incoming)
        lossy = impair.active(loop.bad_uplink)
        now = libc.now_ns(clock)
        if lossy:
            released = impair.impair(loop.bad_uplink, loop.incoming, count, now, loop.delayed)
            _step(loop, loop.delayed, released, now)
        elif count:
            _step(loop, loop.incoming, count, now)
            _wake_ranks(loop)  # a job's ranks may use different transports
        if count or nearby:
            if libc.wait_readable(loop.wake[0], loop.wake[0], 0, clock):
                return
            continue
        if quiet < _IDLE_ROUNDS and libc.may_spin(loop.spin_after, now):
            quiet += 1
            libc.yield_with_backoff(loop.spin_after, now, clock)
            continue
        timeout = int64(-1)
        if lossy or impair.active(loop.bad_downlink):
            due = min(impair.next_release(loop.bad_uplink), impair.next_release(loop.bad_downlink))
            timeout = -1 if due == 0x7FFFFFFFFFFFFFFF else max(due - now, 50_000)
        if _announce_sleep(loop, 1):
            timeout = 0
        woken = libc.wait_readable(loop.io.config[0], loop.wake[0], timeout, clock)
        _announce_sleep(loop, 0)
        if woken & 2:
            return


def new_loop(
    sock: socket.socket, wake: int, uplink: impair.Impairment, downlink: impair.Impairment, packets_out: int = 4096
) -> Loop:
    """Empty tables and lists around a bound UDP socket, an eventfd, and the impairments of packets in each
    direction."""
    batch = 2 * udp.RECEIVE_PACKETS + 2 * impair.MAX_DELAYED
    return Loop(
        io=udp.new_udp_io(sock),
        jobs=np.zeros(MAX_JOBS, JOB_ENTRY),
        senders=np.zeros((TABLE, 2), np.uint64),
        incoming=udp.new_packets(udp.RECEIVE_PACKETS),
        nearby=udp.new_packets(2 * udp.RECEIVE_PACKETS),
        delayed=udp.new_packets(batch),
        outgoing=udp.new_packets(packets_out),
        impaired=udp.new_packets(2 * packets_out + 2 * impair.MAX_DELAYED),
        replies=np.zeros((batch, wire_format.MAX_BEFORE_DATA + wire_format.LARGE_BYTES + TAG_BYTES), np.uint8),
        done=np.zeros((batch, 6), np.int64),
        bad_uplink=uplink,
        bad_downlink=downlink,
        totals=np.zeros(2, np.int64),
        wake=np.array([wake], np.int64),
        rings=np.zeros(1 + MAX_JOBS, np.int64),
        authenticated=np.zeros(1, np.int64),
        signed=authentication.new_batch(batch),
        spin_after=np.zeros(1, np.int64),
    )
