"""The software aggregator: packets from a UDP socket through the rules of pool.py, results back, all in one compiled loop.

`SoftwareDataplane` implements the control plane's `Dataplane`. One thread owns all state and spends its life in `_serve`, which
holds no GIL and makes no Python object; whoever wants to change a job hands that thread a function and wakes it (the loop returns,
the function runs, the loop goes on). Each job has its own slots; a table from sender to (job, rank) is all they share.
"""

import logging
import os
import queue
import socket
import threading
import time
from concurrent.futures import Future
from typing import NamedTuple

import numba
import numpy as np

from . import packet as wire_format
from .controller.dataplane import JobCounters, JobSpec
from .counters import COUNTERS
from .errors import ConfigError
from .io import impair, libc, shm, udp
from .jit import compile_once, kernel
from .memory import copy_bytes, i64_at, pointer, u8_at, u64_at
from .pool import (JOB, MULTICAST, ROW_BYTES, ROW_HEADER, SENT_BYTES, SENT_PACKETS, SLOT, SLOT_V1, UNICAST, WAITING, Pool, PoolV1,
                   ask_v2, receive_v1, receive_v2)

log = logging.getLogger("switchml.aggregator")

MAX_JOBS = 256
_TABLE = 16384
"""Entries of the sender table; at most half are used, so that a look-up ends soon."""
MAX_SENDERS = _TABLE // 2
_WAIT_BYTES = wire_format.HEADER_BYTES + wire_format.BITMAP_BYTES
_OUT = 4096
SOCKET_BUFFER_BYTES = 16 << 20

JOB_ENTRY = np.dtype([("protocol", "i8"), ("workers", "i8"), ("job", "u8"), ("slots", "u8"), ("seen", "u8"), ("rows", "u8"),
                      ("counters", "u8"), ("endpoints", "u8"), ("slot_count", "i8"), ("segment", "u8"), ("local", "u8"), ("replies", "i8")], align=True)
"""Where a job's arrays are. `protocol` 0: no job. `segment`: address of its shared memory's `at` (0: none); `local` that of a uint8 for each rank,
1 if its packets come that way."""

LOCAL = np.uint64(1 << 63)
"""Endpoint of a packet from shared memory: this bit, then job << 16 | rank."""
_BATCH = 64
"""Packets taken from one rank's ring before the next rank's turn: their slots stay in the cache until all ranks are added."""
_PATIENCE = 32
"""Looks at the rings, giving way in between, before the loop sleeps; and rounds of ring work between looks at the sockets."""


class _Loop(NamedTuple):
    """Everything `_serve` touches. `senders` uint64[_TABLE, 2]: endpoint (0 = free), job << 16 | rank. `totals` int64[2]: refused packets, send failures. `rings`
    int64[1 + MAX_JOBS]: how many jobs have shared memory, and which."""

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


@kernel
def _find(senders, key):
    """Value stored for an endpoint, or -1. Linear probing."""
    at = np.int64((key * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(50))
    while senders[at, 0] != 0:
        if senders[at, 0] == key:
            return np.int64(senders[at, 1])
        at = (at + 1) % _TABLE
    return -1


@kernel
def _counters_of(entry):
    return numba.carray(pointer(np.uintp(entry.counters)), (entry.workers, len(COUNTERS)), np.int64)


@kernel
def _ask(entry, job, counters, rank, seq, reply):
    """A rank that shares memory asks whom a round waits for; its packets are never lost, so it has nothing else to resend."""
    slots = numba.carray(pointer(np.uintp(entry.slots)), (2 * entry.slot_count,), SLOT)
    seen = numba.carray(pointer(np.uintp(entry.seen)), (2 * entry.slot_count, 4), np.uint64)
    return ask_v2(job, slots, seen, counters, reply, rank, seq)


@kernel
def _apply(entry, rank, address, length, reply):
    """One packet under the rule of its job; (action, row)."""
    job = numba.carray(pointer(np.uintp(entry.job)), (1,), JOB)[0]
    rows = numba.carray(pointer(np.uintp(entry.rows)), (2 * entry.slot_count, ROW_BYTES), np.uint8)
    counters = _counters_of(entry)
    if length == 0 and entry.segment:
        return _ask(entry, job, counters, rank, np.int64(address), reply), 0
    if entry.protocol == 1:
        slots_v1 = numba.carray(pointer(np.uintp(entry.slots)), (2 * entry.slot_count,), SLOT_V1)
        return receive_v1(job, slots_v1, rows, counters, reply, rank, address, length)
    slots = numba.carray(pointer(np.uintp(entry.slots)), (2 * entry.slot_count,), SLOT)
    seen = numba.carray(pointer(np.uintp(entry.seen)), (2 * entry.slot_count, 4), np.uint64)
    return receive_v2(job, slots, seen, rows, counters, reply, rank, address, length)


@kernel
def _emit(loop, n, entry, rank, address, length, port):
    """List one packet for a rank; a full list is sent first. `port` overrides the rank's (v1: the port of the completing packet)."""
    if n == loop.outgoing.address.size:
        _send(loop, n, 0)
        n = 0
    mine = _counters_of(entry)[rank]
    mine[SENT_PACKETS] += 1
    mine[SENT_BYTES] += length
    if entry.local and u8_at(entry.local, entry.workers)[rank]:
        _hand_over(entry, rank, address, length)
        return n
    to = u64_at(entry.endpoints, entry.workers)[rank]
    if to == 0:
        return n  # v1: this rank has not told its address yet
    loop.outgoing.address[n], loop.outgoing.length[n] = address, length
    loop.outgoing.endpoint[n] = (to | np.uint64(port)) if port else to
    return n + 1


@kernel
def _hand_over(entry, rank, address, length):
    """Name a result or a wait packet to a rank that shares the job's memory."""
    at = i64_at(entry.segment, 8)
    if length == _WAIT_BYTES:  # lies in our own memory: copy it into theirs
        row = np.uint64(at[shm.BASE] + at[shm.ROWS] + (2 * at[shm.SLOTS] + entry.replies % shm.REPLIES) * ROW_BYTES)
        entry.replies += 1
        copy_bytes(row, address, length)
        shm.push_down(at, rank, row, length, 2 * at[shm.SLOTS])
    else:
        shm.push_down(at, rank, address, length, 0)


@kernel
def _send(loop, n, now):
    if impair.active(loop.bad_downlink):
        n = impair.impair(loop.bad_downlink, loop.outgoing, n, now, loop.impaired)
        loop.totals[1] += udp.send_batch(loop.io, loop.impaired, n)
    elif n:
        loop.totals[1] += udp.send_batch(loop.io, loop.outgoing, n)


@kernel
def _step(loop, packets, count, now):
    """Handle one batch: apply every packet, then send the results, all of one rank together so that they travel as trains."""
    unicasts = 0  # they lie in `replies` and are listed first
    n = finished = 0
    for i in range(count):
        key = packets.endpoint[i]
        value = np.int64(key & ~LOCAL) if key & LOCAL else _find(loop.senders, key)
        if value < 0:
            value = _find(loop.senders, key & ~np.uint64(0xFFFF))
        if value < 0:
            loop.totals[0] += 1
            continue
        entry, rank = loop.jobs[value >> 16], value & 0xFFFF
        reply = loop.replies[unicasts]
        if key & LOCAL:
            u8_at(entry.local, entry.workers)[rank] = 1
        elif entry.segment:
            if packets.length[i] == 0:
                continue  # a rank that shares memory wakes us
            u8_at(entry.local, entry.workers)[rank] = 0
        action, row = _apply(entry, rank, packets.address[i], packets.length[i], reply)
        port = np.int64(key & np.uint64(0xFFFF)) if entry.protocol == 1 else 0
        if action == MULTICAST:
            loop.done[finished, 0], loop.done[finished, 1], loop.done[finished, 2] = value >> 16, row, packets.length[i]
            loop.done[finished, 3] = port
            finished += 1
        elif action == UNICAST or action == WAITING:
            size = _WAIT_BYTES if action == WAITING else packets.length[i]
            n = _emit(loop, n, entry, rank, reply.ctypes.data, size, port)
            unicasts += 1

    first = 0
    while first < finished:
        last = first
        while last < finished and loop.done[last, 0] == loop.done[first, 0]:
            last += 1
        entry = loop.jobs[loop.done[first, 0]]
        for rank in range(entry.workers):
            for k in range(first, last):
                row = entry.rows + np.uint64(loop.done[k, 1] * ROW_BYTES + ROW_HEADER)
                n = _emit(loop, n, entry, rank, row, loop.done[k, 2], loop.done[k, 3])
        first = last
    _send(loop, n, now)


@kernel
def _take_nearby(loop):
    """Take turns among the rings of all jobs with shared memory; how many packets `loop.nearby` then lists."""
    count = 0
    for k in range(loop.rings[0]):
        index = loop.rings[1 + k]
        entry = loop.jobs[index]
        at = i64_at(entry.segment, 8)
        for rank in range(entry.workers):
            count = shm.receive_up(at, rank, LOCAL | np.uint64(index << 16 | rank), loop.nearby, count, _BATCH)
    return count


@kernel
def _wake_ranks(loop):
    """Rouse the ranks that sleep and have something in their ring."""
    n = 0
    for k in range(loop.rings[0]):
        entry = loop.jobs[loop.rings[1 + k]]
        at = i64_at(entry.segment, 8)
        for rank in range(entry.workers):
            if n < loop.outgoing.address.size and shm.down_waits(at, rank) and shm.must_wake(at, rank):
                loop.outgoing.address[n], loop.outgoing.length[n] = entry.endpoints, 0
                loop.outgoing.endpoint[n] = u64_at(entry.endpoints, entry.workers)[rank]
                n += 1
    if n:
        udp.send_batch(loop.io, loop.outgoing, n)


@kernel
def _announce_sleep(loop, asleep):
    """Tell all ranks that share memory; whether one has left something in the meantime."""
    waiting = False
    for k in range(loop.rings[0]):
        entry = loop.jobs[loop.rings[1 + k]]
        at = i64_at(entry.segment, 8)
        shm.announce_sleep(at, -1, asleep)
        for rank in range(entry.workers):
            waiting = waiting or shm.up_waits(at, rank)
    return waiting


@kernel
def _serve(loop):
    """Serve until somebody writes to the wake descriptor."""
    clock = np.zeros(8, np.int64)
    quiet = busy = 0
    while True:
        nearby = _take_nearby(loop)
        if nearby:
            _step(loop, loop.nearby, nearby, 0)
            _wake_ranks(loop)
            quiet, busy = 0, busy + 1
            if busy < _PATIENCE:
                continue
        busy = 0
        count = udp.receive_batch(loop.io, loop.incoming)
        lossy = impair.active(loop.bad_uplink)
        now = libc.now_ns(clock)
        if lossy:
            released = impair.impair(loop.bad_uplink, loop.incoming, count, now, loop.delayed)
            _step(loop, loop.delayed, released, now)
        elif count:
            _step(loop, loop.incoming, count, now)
            _wake_ranks(loop)  # a job's ranks need not all come the same way
        if count or nearby:
            quiet = 0
            if libc.wait_readable(loop.wake[0], loop.wake[0], 0, clock):
                return
            continue
        if loop.rings[0] and quiet < _PATIENCE:
            quiet += 1
            libc.give_way()
            continue
        timeout = np.int64(-1)
        if lossy or impair.active(loop.bad_downlink):
            due = min(impair.next_release(loop.bad_uplink), impair.next_release(loop.bad_downlink))
            timeout = -1 if due == 0x7FFFFFFFFFFFFFFF else max(due - now, 50_000)
        if _announce_sleep(loop, 1):
            timeout = 0
        woken = libc.wait_readable(loop.io.config[0], loop.wake[0], timeout, clock)
        _announce_sleep(loop, 0)
        quiet = 0
        if woken & 2:
            return


class _JobState:
    """A job's arrays, and what is remembered for `counters`."""

    def __init__(self, spec: JobSpec, shared: bool):
        self.spec = spec
        self.segment, self.segment_name, self._segment_fd = None, "", -1
        if shared and spec.protocol == 2:
            try:
                self.segment, self._segment_fd, self.segment_name = shm.create(spec.workers, spec.slots)
            except OSError as error:
                log.warning("job %d: no shared memory (%s); its ranks will use UDP", spec.job_id, error)
        if spec.protocol == 1:
            self.pool = PoolV1(workers=spec.workers, payload_bytes=spec.payload_bytes)
        else:
            rows = shm.pool_rows(self.segment) if self.segment is not None else None
            self.pool = Pool(workers=spec.workers, slots=spec.slots, payload_bytes=spec.payload_bytes, wire=spec.wire, tag=spec.tag, isn=spec.isn,
                             rows=rows)
        self.endpoints = np.zeros(spec.workers, np.uint64)
        self.local = np.zeros(spec.workers, np.uint8)
        self.index = -1
        self.opened: dict[int, tuple[int, float]] = {}

    def entry(self) -> tuple:
        pool = self.pool
        seen = pool.seen.ctypes.data if self.spec.protocol == 2 else 0
        return (self.spec.protocol, self.spec.workers, pool.job.ctypes.data, pool.slots.ctypes.data, seen, pool.rows.ctypes.data,
                pool.counters.ctypes.data, self.endpoints.ctypes.data, len(pool.slots) // 2,
                self.segment.at.ctypes.data if self.segment else 0, self.local.ctypes.data if self.segment else 0, 0)

    def close(self) -> None:
        """Nobody can attach to the shared memory any more; who has it mapped keeps it."""
        if self._segment_fd >= 0:
            os.close(self._segment_fd)
            self._segment_fd = -1

    def open_rounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows with a round under way, and a number for each that changes from round to round."""
        slots = self.pool.slots
        if self.spec.protocol == 1:
            rows = np.flatnonzero((slots["count"] > 0) & (slots["bitmap"] > 0))
            return rows, slots["bitmap"][rows].astype(np.int64)
        rows = np.flatnonzero((slots["count"] > 0) & (slots["count"] < self.spec.workers))
        return rows, slots["seq"][rows]

    def missing(self, row: int) -> set[int]:
        """Ranks that have not contributed to a row's round."""
        if self.spec.protocol == 1:
            bitmap = int(self.pool.slots["bitmap"][row])
        else:
            bitmap = sum(int(word) << (64 * i) for i, word in enumerate(self.pool.seen[row]))
        return {rank for rank in range(self.spec.workers) if not bitmap >> rank & 1}


class SoftwareDataplane:
    """The aggregator's data side on a UDP socket of `bind`:`port` (0: any free port).

    `slot_capacity`: slots that v2 jobs may have together (2 kB of memory each). `loss_rate`, `reorder_rate`, `duplicate_rate`: probabilities
    applied to each packet on its way in and again on its way out; `seed` makes them repeatable.
    `shared_memory`: let ranks of this machine and user hand packets over in memory (not with a rate above 0, which is for the network to have).
    Raises ConfigError if the address can't be bound or a rate is no probability.
    """

    kind = "software"

    def __init__(self, bind: str = "127.0.0.1", port: int = wire_format.UDP_PORT, *, slot_capacity: int = 65536, loss_rate: float = 0.0,
                 reorder_rate: float = 0.0, duplicate_rate: float = 0.0, seed: int = 0, shared_memory: bool = True):
        self.slot_capacity = slot_capacity
        uplink = impair.new_impairment(loss_rate, reorder_rate, duplicate_rate, 2 * seed + 1)
        downlink = impair.new_impairment(loss_rate, reorder_rate, duplicate_rate, 2 * seed + 2)
        self._shared = shared_memory and not (loss_rate or reorder_rate or duplicate_rate)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.bind((bind, port))
        except OSError as error:
            self._socket.close()
            raise ConfigError(f"data port {bind}:{port}: {error.strerror}; choose another with --data-port, or 0 for any free one") from None
        self.address = self._socket.getsockname()
        self.receive_buffer_bytes = libc.grow_buffers(self._socket, SOCKET_BUFFER_BYTES)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._loop = _Loop(
            udp.new_udp_io(self._socket), np.zeros(MAX_JOBS, JOB_ENTRY), np.zeros((_TABLE, 2), np.uint64),
            udp.new_packets(udp.RECEIVE_PACKETS), udp.new_packets(2 * udp.RECEIVE_PACKETS), udp.new_packets(2 * udp.RECEIVE_PACKETS + 2 * impair.HELD), udp.new_packets(_OUT),
            udp.new_packets(2 * _OUT + 2 * impair.HELD), np.zeros((2 * udp.RECEIVE_PACKETS + 2 * impair.HELD, ROW_BYTES), np.uint8),
            np.zeros((2 * udp.RECEIVE_PACKETS + 2 * impair.HELD, 4), np.int64), uplink, downlink, np.zeros(2, np.int64),
            np.array([self._wake], np.int64), np.zeros(1 + MAX_JOBS, np.int64))
        self._jobs: dict[int, _JobState] = {}
        self._requests: queue.SimpleQueue = queue.SimpleQueue()
        self._lock = threading.Lock()  # between _in_loop and stop: no request may come after the last look at the queue
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="switchml-aggregator", daemon=True)

    # -- life --

    def start(self) -> "SoftwareDataplane":
        compile_once(_serve, self._loop)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop serving and close the socket. May be called twice."""
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
            os.eventfd_write(self._wake, 1)
        self._finish()
        for job in self._jobs.values():
            job.close()
        self._socket.close()
        os.close(self._wake)

    def _finish(self) -> None:
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            _serve(self._loop)
            os.eventfd_read(self._wake)
            self._handle_requests()
        self._handle_requests()

    def _handle_requests(self) -> None:
        while not self._requests.empty():
            action, future = self._requests.get()
            try:
                future.set_result(action())
            except BaseException as error:
                future.set_exception(error)

    def _in_loop(self, action):
        """Run `action` on the thread that owns the arrays, between two batches; returns its result."""
        with self._lock:
            serving = self._thread.ident is not None and not self._stopping
            if serving:
                future: Future = Future()
                self._requests.put((action, future))
                os.eventfd_write(self._wake, 1)
        if serving:
            return future.result()
        self._finish()
        return action()

    # -- Dataplane --

    def start_job(self, spec: JobSpec) -> None:
        """Raises ConfigError if an address belongs to another job or there are too many jobs or workers."""
        state = _JobState(spec, self._shared)
        try:
            self._in_loop(lambda: self._install(state))
        except BaseException:
            state.close()
            raise

    def _install(self, state: _JobState) -> None:
        spec = state.spec
        if spec.job_id in self._jobs:
            raise ConfigError(f"job {spec.job_id} is running already")
        free = np.flatnonzero(self._loop.jobs["protocol"] == 0)
        senders = sum(len(job.endpoints) for job in self._jobs.values()) + spec.workers
        if not len(free) or senders > MAX_SENDERS:
            raise ConfigError(f"no room for another job: at most {MAX_JOBS} jobs and {MAX_SENDERS} workers at once")
        for rank, address in enumerate(spec.addresses):
            if address is not None:
                if address in spec.addresses[:rank]:
                    raise ConfigError(f"address {address[0]}:{address[1]} is given for rank {spec.addresses.index(address)} and for rank {rank}")
                self._check_address(spec, rank, address)
        state.index = int(free[0])
        self._jobs[spec.job_id] = state
        self._loop.jobs[state.index] = state.entry()
        for rank, address in enumerate(spec.addresses):
            if address is not None:
                state.endpoints[rank] = udp.endpoint(*address)
        self._rebuild_senders()

    def set_address(self, job_id: int, rank: int, address: tuple[str, int]) -> None:
        """v1: a rank's address became known. Raises ConfigError if it belongs to somebody else, KeyError for an unknown job."""

        def install():
            state = self._jobs[job_id]
            self._check_address(state.spec, rank, address)
            state.endpoints[rank] = udp.endpoint(*address)
            self._rebuild_senders()

        self._in_loop(install)

    def stop_job(self, job_id: int) -> None:
        def remove():
            state = self._jobs.pop(job_id, None)
            if state is not None:
                self._loop.jobs[state.index]["protocol"] = 0
                self._rebuild_senders()
                state.close()

        self._in_loop(remove)

    def segment(self, job_id: int) -> str:
        return self._jobs[job_id].segment_name

    def counters(self, job_id: int) -> JobCounters:
        """Raises KeyError for an unknown job. Ranks count as missing when the round was open at a call at least a second ago."""
        state = self._jobs[job_id]
        ranks = tuple(dict(zip(COUNTERS, (int(v) for v in row))) for row in state.pool.counters)
        rows, marks = state.open_rounds()
        now, opened, missing = time.monotonic(), {}, set()
        for row, mark in zip(rows.tolist(), marks.tolist()):
            before = state.opened.get(row)
            opened[row] = before if before is not None and before[0] == mark else (mark, now)
            if now - opened[row][1] >= 1.0:
                missing |= state.missing(row)
        state.opened = opened
        return JobCounters(ranks, len(set(rows // 2)), tuple(sorted(missing)))

    def refused(self) -> dict[str, int]:
        return {"refused_address": int(self._loop.totals[0])}

    def _check_address(self, spec: JobSpec, rank: int, address: tuple[str, int]) -> None:
        value = udp.endpoint(*address)
        for job in self._jobs.values():
            for other, known in enumerate(job.endpoints):
                same = int(known) == value or (min(job.spec.protocol, spec.protocol) == 1 and int(known) >> 16 == value >> 16)
                if known and same and (job.spec.job_id, other) != (spec.job_id, rank):
                    raise ConfigError(f"address {address[0]}:{address[1]} of rank {rank} belongs to rank {other} of job {job.spec.job_id}")

    def _rebuild_senders(self) -> None:
        shared = [job.index for job in self._jobs.values() if job.segment is not None]
        self._loop.rings[0] = len(shared)
        self._loop.rings[1 : 1 + len(shared)] = shared
        self._loop.senders[:] = 0
        for job in self._jobs.values():
            for rank, key in enumerate(job.endpoints.tolist()):
                if key:
                    at = ((key * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF) >> 50
                    while self._loop.senders[at, 0]:
                        at = (at + 1) % _TABLE
                    self._loop.senders[at] = (key, job.index << 16 | rank)
