"""What a worker does with one result: window, rounds, exponents, retransmission timer (docs/protocol.md, sections 4 to
6).

Sans-IO: no socket and no clock in here. Packets and `now` go in; the slots whose packet is to be sent, and the next
deadline, come out. The agent's compiled loop, the packet-level emulator and the tests drive the same kernels. Times are
int64 nanoseconds of any monotonic clock.

A tensor to be all-reduced is a task. Tasks are cut into chunks, numbered without end through the job's life (g below);
chunk g lives in slot g mod S for one or more rounds. All arrays of a worker are fields of `Worker.state`, which kernels
take as one tuple.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from switchml.errors import ConfigError
from switchml.protocol import packet as wire_format
from switchml.protocol import sparse
from switchml.protocol.fixedpoint import (
    FORMATS,
    INT32,
    INT64,
    ITEM_BYTES,
    LANE_BYTES,
    LANES,
    WIRES,
    apply_classes,
    canonical,
    classify,
    decode,
    encode,
    headroom,
    keep_classes,
    need_of,
    spreads,
)
from switchml.protocol.packet import CODE_UNKNOWN, CODE_ZERO, MAX_SPARSE_BYTES, check_slots
from switchml.protocol.retransmission import (
    ASKED,
    INITIAL_RTO,
    LEAST_CAUTION,
    LEAST_IN_FLIGHT,
    LEAST_REORDERING,
    LONGEST_PROBE,
    PROBES,
    SURE,
    WAITED,
    adapt_limit,
    patience,
    sample_reordering,
    sample_rtt,
    sample_silence,
    spurious,
)
from switchml.protocol.sparse import Sparse
from switchml.runtime.jit import kernel
from switchml.runtime.memory import be16, be32, put_be16, put_be32, serial_difference, signed8, u8_at

SPECULATE, EXACT, CLASSIFY = range(3)
RUNNING, DONE = 1, 2
"""Task states; 0 is a free record."""

OK, ERROR_MIXED, ERROR_OVERFLOW, ERROR_AHEAD, ERROR_STREAM = range(5)
"""Why a worker stopped: `me.error`. The last two: a peer's exponents, or its blocks, contradict what was agreed."""

TASKS = 1024
"""All-reduces that may be under way at once (a power of two); more wait in the agent."""

ME = np.dtype(
    [
        ("rank", "i8"),
        ("workers", "i8"),
        ("slots", "i8"),
        ("payload", "i8"),
        ("room", "i8", (3,)),
        ("spread", "i8", (3,)),
        ("tag", "i8"),
        ("isn", "i8"),
        ("window", "i8"),
        ("base", "i8"),
        ("next", "i8"),
        ("total", "i8"),
        ("first_task", "i8"),
        ("next_task", "i8"),
        ("error", "i8"),
        ("error_chunk", "i8"),
        ("srtt", "i8"),
        ("rttvar", "i8"),
        ("rto", "i8"),
        ("caution", "i8"),
        ("cautioned_at", "i8"),
        ("earliest", "i8"),
        ("progress_at", "i8"),
        ("newest", "i8"),
        ("completed", "i8"),
        ("sent", "i8"),
        ("received", "i8"),
        ("retransmitted", "i8"),
        ("refused", "i8"),
        ("waits", "i8"),
        ("spurious", "i8"),
        ("repeats", "i8"),
        ("rtt_samples", "i8"),
        ("least_patience", "i8"),
        ("least_rtt", "i8"),
        ("base_rtt", "i8"),
        ("heard_at", "i8"),
        ("answered_at", "i8"),
        ("flight_at", "i8"),
        ("silence", "i8"),
        ("suspected", "i8"),
        ("reordered", "i8"),
        ("doubt", "i8"),
        ("asked_at", "i8"),
        ("unasked", "i8"),
        ("in_flight", "i8"),
        ("credit", "i8"),
        ("limit", "i8"),
        ("limited", "i8"),
        ("counted", "i8"),
        ("counted_at", "i8"),
        ("padded", "i8"),
        ("streamed", "i8"),
    ],
    align=True,
)
"""A worker's scalars. `room`, `spread`: headroom and spreads of fixedpoint.py. `base`: lowest chunk without a result,
`next`: lowest not yet sent, `total`: chunks of all tasks so far. `first_task` … `next_task`: tasks under way (modulo
TASKS). `newest`: latest sending time of a packet that got its result. `earliest`: when `timeouts` has something to do;
any result may bring that forward. `completed`: tasks done. From `sent` on: counters. `in_flight`: rounds sent and not
answered, at most `limit`; `limited`: that, or the slots, held something back since `counted_at`. `credit`: how many
rounds may be taken for lost before more results are here. `heard_at`: when there was a result that nothing but its own
packet brought, `answered_at`: one that was expected, `flight_at`: when rounds were last sent with none in flight.
`silence`, `reordered`: see retransmission.py; `doubt`: SURE, ASKED or WAITED, since `answered_at`; `asked_at`: when the
clock last spoke first, `suspected`: the silence that this ended, which counts if `unasked` rounds say so. `padded`: the
switch wants sparse packets without data padded. `streamed`: rounds of sparse streams after their first."""

SLOT = np.dtype(
    [
        ("chunk", "i8"),
        ("task", "i8"),
        ("round", "i8"),
        ("resent", "i8"),
        ("asked", "i8"),
        ("sent_at", "i8"),
        ("deadline", "i8"),
        ("retries", "i4"),
        ("mode", "i2"),
        ("used", "i2"),
        ("need", "i2"),
        ("agreed", "i2"),
        ("next_need", "i2"),
        ("busy", "u1"),
        ("scanned", "u1"),
        ("waited", "u1"),
        ("classed", "u1"),
        ("done", "u1"),
        ("unbuilt", "u1"),
        ("columns", "i2"),
        ("length", "i4"),
    ],
    align=True,
)
"""One slot. `resent`: the last round retransmitted, `asked`: because of the clock (-1: none). `agreed`: `ahead`
of its last result; `next_need`, valid if `scanned`: what the chunk after this one needs. `columns`: of a sparse stream,
0 if the chunk is dense; `length`: bytes of its packet; `unbuilt`: that is still to be written, for NEXT_ROUND or
FIRST_ROUND of sparse.py."""

TASK = np.dtype(
    [
        ("source", "u8"),
        ("target", "u8"),
        ("numel", "i8"),
        ("fmt", "i8"),
        ("divisor", "i8"),
        ("per_chunk", "i8"),
        ("first", "i8"),
        ("chunks", "i8"),
        ("done", "i8"),
        ("history", "u8"),
        ("history_length", "i8"),
        ("misfits", "i8"),
        ("state", "i8"),
        ("columns", "i8"),
        ("threshold", "f8"),
        ("found", "u8"),
        ("scanned", "i8"),
    ],
    align=True,
)
"""One all-reduce. `source`, `target`: addresses of its elements (may be equal); `per_chunk`: elements of a chunk;
`history`: address of int8 exponent codes by chunk, what each needed last time. `columns`: blocks in a packet if the
tensor is sparse, else 0; its chunks are then streams of positions, and `per_chunk` the elements of a position. `found`:
address of uint8[blocks], which of them are not zero, known of the first `scanned` entries of all streams."""

_LANES = np.array(LANES, np.int64)
_LANE_BYTES = np.array(LANE_BYTES, np.int64)
_WIRES = np.array(WIRES, np.int64)
_ITEM_BYTES = np.array(ITEM_BYTES, np.int64)
_HEADER = wire_format.HEADER_BYTES


def elements_per_chunk(fmt: int, payload_bytes: int) -> int:
    """How many elements of a format one packet carries."""
    return payload_bytes // (LANES[fmt] * LANE_BYTES[fmt])


class State(NamedTuple):
    """The arrays of one worker: ME[1], SLOT[S], TASK[TASKS], uint8[S, k], uint8[S, k], int64[S, 5, 8] (sparse.py),
    uint32[S, payload], uint8[32]. `wide` has room for sparse packets, and may be `packets`."""

    me: np.ndarray
    slots: np.ndarray
    tasks: np.ndarray
    packets: np.ndarray
    wide: np.ndarray
    streams: np.ndarray
    classes: np.ndarray
    missing: np.ndarray


@kernel(forceinline=True)
def _task_of(w, chunk, hint):
    """Index of the task that has `chunk`, looking from task number `hint` on."""
    number = hint
    while chunk >= w.tasks[number & (TASKS - 1)].first + w.tasks[number & (TASKS - 1)].chunks:
        number += 1
    return number


@kernel(forceinline=True)
def _elements(w, task, chunk):
    """(source address, target address, count) of a task's chunk."""
    start = (chunk - task.first) * task.per_chunk
    offset = np.uint64(start * _ITEM_BYTES[task.fmt])
    return task.source + offset, task.target + offset, min(task.per_chunk, task.numel - start)


@kernel(forceinline=True)
def _scan(w, number, chunk):
    task = w.tasks[number & (TASKS - 1)]
    if task.columns:
        return np.int64(CODE_UNKNOWN)  # its words will say it
    source, _, count = _elements(w, task, chunk)
    return np.int64(need_of(task.fmt, source, count, False))


@kernel(inline=True)
def packet_at(w, index):
    """Address of a slot's packet, which would end its row if it had data. Rows without slack make one train of
    consecutive slots."""
    columns = w.slots[index].columns
    if columns:
        row = w.wide.shape[1]
        before = _HEADER + wire_format.WORD_BYTES * columns
        return w.wide.ctypes.data + np.uint64(index * row + row - before - w.me[0].payload)
    row = w.packets.shape[1]
    return w.packets.ctypes.data + np.uint64(index * row + row - _HEADER - w.me[0].payload)


@kernel(forceinline=True)
def _build_packet(w, index):
    """Write the packet of a slot's present round: mode, used and need are set."""
    me, slot = w.me[0], w.slots[index]
    task = w.tasks[slot.task & (TASKS - 1)]
    source, _, count = _elements(w, task, slot.chunk)
    row = u8_at(packet_at(w, index), _HEADER)
    lanes_at = packet_at(w, index) + np.uint64(_HEADER)
    lanes, wire = me.payload // _LANE_BYTES[task.fmt], _WIRES[task.fmt]
    if slot.mode == CLASSIFY:
        classify(task.fmt, source, count, lanes_at, lanes)
    elif slot.need == CODE_UNKNOWN and slot.mode == SPECULATE:
        nothing = u8_at(lanes_at, me.payload)
        nothing[:] = 0
    else:
        encode(task.fmt, source, count, lanes_at, lanes, slot.used, me.room[wire], slot.classed != 0)

    if not slot.scanned and slot.chunk + me.slots < me.total:
        after = _task_of(w, slot.chunk + me.slots, slot.task)
        slot.next_need = _scan(w, after, slot.chunk + me.slots)
        slot.scanned = 1
    row[0] = ((wire_format.CONTRIBUTION | wire) << 4) | (3 if me.payload == 1024 else 1)
    row[1] = (slot.next_need if slot.scanned else CODE_UNKNOWN) & 0xFF
    put_be32(row, 2, me.isn + slot.round * me.slots + index)
    put_be16(row, 6, me.tag)
    row[8] = slot.need & 0xFF
    row[9] = slot.used & 0xFF
    slot.length = _HEADER + me.payload


@kernel(forceinline=True)
def _send(w, index, now, out, n):
    """Append a slot's new packet to the list of what to send."""
    me, slot = w.me[0], w.slots[index]
    slot.busy, slot.waited, slot.retries = 1, 0, 0
    if not me.in_flight:
        me.flight_at = now
    me.in_flight += 1
    slot.sent_at, slot.deadline = now, now + max(me.rto, me.least_patience)
    me.earliest = min(me.earliest, slot.deadline)
    me.sent += 1
    out[n] = index
    return n + 1


@kernel(forceinline=True)
def fill(w, now, out, n):
    """Start as many chunks as the window allows. `out` int32[>= 2S]: slots to send, filled from `n`; returns the new
    n."""
    me = w.me[0]
    if not me.least_patience:
        adapt_limit(me, now)
    while me.next < me.total:
        if me.in_flight >= me.limit or me.next >= me.base + me.slots:
            me.limited = 1
            break
        chunk = me.next
        index = chunk & (me.slots - 1)
        slot = w.slots[index]
        number = _task_of(w, chunk, me.first_task)
        task = w.tasks[number & (TASKS - 1)]
        if not task.columns:
            slot.need = slot.next_need if slot.scanned else _scan(w, number, chunk)
        slot.chunk, slot.task, slot.columns = chunk, number, task.columns
        slot.scanned = slot.classed = slot.done = 0
        if task.columns:
            slot.agreed, slot.unbuilt = CODE_UNKNOWN, sparse.FIRST_ROUND
        elif slot.agreed != CODE_UNKNOWN:
            if slot.need > slot.agreed:
                me.error, me.error_chunk = ERROR_AHEAD, chunk
                return n
            slot.mode, slot.used = EXACT, canonical(slot.agreed, task.fmt)
        else:
            slot.mode = SPECULATE
            least = slot.need if slot.need != CODE_UNKNOWN else CODE_ZERO
            position = chunk - task.first
            if position < task.history_length:
                last = signed8(u8_at(task.history, task.history_length)[position])
                least = max(least, min(last + me.spread[_WIRES[task.fmt]] // 2, CODE_UNKNOWN - 1))
            slot.used = canonical(least, task.fmt)
        if me.next == me.base:
            me.progress_at = now
        me.next += 1
        if not task.columns:
            _build_packet(w, index)
        n = _send(w, index, now, out, n)
    return n


@kernel
def build_streams(w, out, n):
    """Write what `receive` and `fill` have left out: the packets of sparse streams among the listed slots, `out[:n]`.
    (Compiled into one place, since compiling takes long.)"""
    me = w.me[0]
    for i in range(n):
        index = out[i]
        slot = w.slots[index]
        if not slot.unbuilt:
            continue
        task, stream = w.tasks[slot.task & (TASKS - 1)], w.streams[index]
        if slot.unbuilt == sparse.FIRST_ROUND:
            sparse.open_stream(task, stream, slot.chunk - task.first)
        seq = me.isn + slot.round * me.slots + index
        slot.length = sparse.build(me, task, stream, slot.chunk - task.first, seq, packet_at(w, index))
        slot.unbuilt = 0


@kernel
def _repeat(w, index, mode, used, now, out, n):
    slot = w.slots[index]
    w.me[0].repeats += 1
    slot.mode, slot.used = mode, used
    slot.round += 1
    _build_packet(w, index)
    return _send(w, index, now, out, n)


@kernel(forceinline=True)
def _finish_chunk(w, index, now):
    """A slot's chunk has its result in place: count it, and let the window's base move on."""
    me, slot = w.me[0], w.slots[index]
    task = w.tasks[slot.task & (TASKS - 1)]
    slot.done = 1
    slot.round += 1
    task.done += 1
    if task.done == task.chunks:
        task.state = DONE
        me.completed += 1
    me.progress_at = now
    while me.base < me.next:
        lowest = w.slots[me.base & (me.slots - 1)]
        if lowest.chunk != me.base or not lowest.done:
            break
        me.base += 1
    while me.first_task < me.next_task:
        oldest = w.tasks[me.first_task & (TASKS - 1)]
        if oldest.done < oldest.chunks:
            break
        me.first_task += 1


@kernel
def _take_sparse(w, index, address, length, now, out, n):
    """The result that a sparse stream's round waited for: another round, or the stream's end."""
    me, slot = w.me[0], w.slots[index]
    task = w.tasks[slot.task & (TASKS - 1)]
    came_to = sparse.take(me, task, w.streams[index], w.classes[index], slot.chunk - task.first, address, length)
    if came_to == sparse.MORE:
        me.streamed += 1
        slot.round += 1
        slot.unbuilt = sparse.NEXT_ROUND
        return _send(w, index, now, out, n)
    if came_to == sparse.DONE:
        _finish_chunk(w, index, now)
        return n
    me.error_chunk = slot.chunk
    if came_to == sparse.MIXED:
        me.error = ERROR_MIXED
    elif came_to == sparse.OVERFLOWED:
        me.error = ERROR_OVERFLOW
    else:
        me.error = ERROR_AHEAD if came_to == sparse.LATE else ERROR_STREAM
    return n


@kernel(forceinline=True)
def receive(w, address, length, now, out, n):
    """One datagram from the aggregator. Repeats of a chunk are appended to `out` from `n`; returns the new n.

    After an error (`me.error`) the worker must not be used any more.
    """
    me = w.me[0]
    data = u8_at(address, max(length, 1))
    if length < _HEADER or be16(data, 6) != me.tag:
        me.refused += 1
        return n
    seq = be32(data, 2)
    index = seq & (me.slots - 1)
    slot = w.slots[index]
    distance = serial_difference(seq, me.isn + slot.round * me.slots + index)

    if data[0] == wire_format.WAIT << 4 and length == _HEADER + wire_format.BITMAP_BYTES:
        if distance == 0 and slot.busy:
            me.waits += 1
            me.doubt, me.suspected = WAITED, 0
            slot.waited, slot.sent_at = 1, now
            slot.deadline = now + 2 * patience(me, now)
            me.earliest = now
            for i in range(wire_format.BITMAP_BYTES):
                w.missing[i] = data[_HEADER + i]
        return n

    size = 3 if me.payload == 1024 else 1
    is_sparse = data[0] & wire_format.SPARSE != 0
    if is_sparse:
        fits = sparse.is_result(data, length, me.payload)
    else:
        fits = length == _HEADER + me.payload and data[0] & 7 == size
    if not fits or not wire_format.RESULT <= data[0] >> 4 < wire_format.WAIT:
        me.refused += 1
        return n
    me.received += 1
    if distance != 0 or not slot.busy:
        if data[0] & wire_format.R_FLAG and distance < 0 and slot.resent == slot.round + distance // me.slots:
            spurious(me, now, slot.asked == slot.resent)
        elif distance > 0:
            me.refused += 1
        return n

    slot.busy = 0
    me.in_flight -= 1
    me.credit = min(me.credit + 1, LEAST_IN_FLIGHT)
    me.earliest = now
    is_clean = slot.retries == 0 and not slot.waited
    if is_clean or me.doubt == WAITED:
        me.heard_at = now
    is_first = sample_silence(me, now, slot.sent_at if is_clean else np.int64(-1))
    if is_clean:
        sample_rtt(me, now - slot.sent_at, is_first)
        sample_reordering(me, me.newest - slot.sent_at)
        me.newest = max(me.newest, slot.sent_at)
    if is_sparse != (slot.columns != 0):
        me.error, me.error_chunk = ERROR_MIXED, slot.chunk
        return n
    if is_sparse:
        return _take_sparse(w, index, address, length, now, out, n)
    slot.agreed = signed8(data[1]) if slot.scanned else CODE_UNKNOWN
    need, flags = signed8(data[8]), data[9]
    task = w.tasks[slot.task & (TASKS - 1)]
    mixed, overflow = flags & wire_format.FLAG_MIXED != 0, flags & wire_format.FLAG_OVERFLOW != 0

    again, used = SPECULATE, np.int64(CODE_UNKNOWN)  # the mode of another round; no round ever goes back to SPECULATE
    if slot.mode == SPECULATE:
        if need == CODE_UNKNOWN and task.fmt != INT32 and task.fmt != INT64:
            source, _, count = _elements(w, task, slot.chunk)
            slot.need = need_of(task.fmt, source, count, True)
            again = CLASSIFY
        elif flags or not 0 <= slot.used - canonical(need, task.fmt) <= me.spread[_WIRES[task.fmt]]:
            again, used = EXACT, canonical(need, task.fmt)
    elif mixed or overflow:
        me.error, me.error_chunk = ERROR_MIXED if mixed else ERROR_OVERFLOW, slot.chunk
        return n
    elif slot.mode == CLASSIFY:
        _, _, count = _elements(w, task, slot.chunk)
        keep_classes(task.fmt, address + _HEADER, count, w.classes[index])
        slot.classed = 1
        again, used = EXACT, canonical(need, task.fmt)
    if again != SPECULATE:
        return _repeat(w, index, again, used, now, out, n)

    _, target, count = _elements(w, task, slot.chunk)
    task.misfits += decode(
        task.fmt, address + _HEADER, target, count, slot.used, me.room[_WIRES[task.fmt]], task.divisor
    )
    if slot.classed:
        apply_classes(task.fmt, w.classes[index], target, count)
    position = slot.chunk - task.first
    if position < task.history_length:
        u8_at(task.history, task.history_length)[position] = need & 0xFF
    _finish_chunk(w, index, now)
    return n


@kernel(forceinline=True)
def timeouts(w, now, out, n):
    """Retransmit what is lost or overdue: appends to `out` from `n`, returns the new n. `me.earliest` is then the next
    deadline."""
    me = w.me[0]
    if now < me.earliest:
        return n
    reordering = max(me.srtt // 4, me.reordered + me.reordered // 2, LEAST_REORDERING)
    earliest = np.int64(0x7FFFFFFFFFFFFFFF)
    may_lose, quiet = me.least_patience == 0, me.heard_at + me.rto
    probes, probed = np.int64(PROBES), 0
    for chunk in range(me.base, me.next):
        index = chunk & (me.slots - 1)
        slot = w.slots[index]
        if not slot.busy:
            continue
        lost = may_lose and me.credit > 0 and me.newest - slot.sent_at > reordering << min(slot.retries, 3)
        # As long as results come, their order says what is lost; the clock is for when they stop.
        due = max(slot.deadline, quiet)
        if not slot.retries:  # this deadline was set before the first rounds of a burst had taught the RTO
            due = max(due, slot.sent_at + me.rto)
        if not probed:
            probes = max(PROBES >> max(slot.retries - 1, 0), 1)
        if lost or (probed < probes and due <= now):
            due = now + patience(me, now)
            if lost:
                me.credit -= 1
            else:
                slot.asked = slot.round
                if me.doubt == SURE:
                    me.doubt, me.asked_at = ASKED, now
            slot.retries += 1
            slot.sent_at, slot.resent = now, slot.round
            slot.deadline = due
            u8_at(packet_at(w, index), 1)[0] |= wire_format.R_FLAG
            me.retransmitted += 1
            me.sent += 1
            out[n] = index
            n += 1
        if probed < probes:
            probed += 1
            earliest = min(earliest, due)
    me.earliest = earliest
    return n


class Worker:
    """One rank of one v2 job, without its socket: owns the arrays, starts tasks, and offers the kernels to Python
    callers.

    `isn`, `tag`, `slots`, `window` (the most rounds in flight) come from joining; `payload_bytes` is 256 or 1024.
    `packets` uint8[slots, k >= 42 + payload]: where to build the packets (each at the end of its row), if not in memory
    of its own; `wide` uint8[slots, k]: where to build those of sparse streams, of up to MAX_SPARSE_BYTES, if not in the
    same rows. `lossless`: nothing is lost on the way, so a round is asked for only to learn whom it waits for.
    `padded`: the switch wants sparse packets without data padded.
    """

    def __init__(
        self,
        *,
        rank: int,
        workers: int,
        slots: int,
        tag: int,
        isn: int,
        window: int | None = None,
        payload_bytes: int = 1024,
        packets: np.ndarray | None = None,
        wide: np.ndarray | None = None,
        lossless: bool = False,
        padded: bool = False,
    ):
        check_slots(slots)
        window = slots if window is None else window
        if not 1 <= window <= slots:
            raise ConfigError(f"window of {window}: expected 1 to {slots} (the job's slots)")
        if wide is None:
            wide = np.zeros((slots, MAX_SPARSE_BYTES), np.uint8) if packets is None else packets
        self.state = State(
            np.zeros(1, ME),
            np.zeros(slots, SLOT),
            np.zeros(TASKS, TASK),
            np.zeros((slots, _HEADER + payload_bytes), np.uint8) if packets is None else packets,
            wide,
            np.zeros((slots, sparse.STATE_ROWS, wire_format.MAX_COLUMNS), np.int64),
            np.zeros((slots, payload_bytes), np.uint32),
            np.zeros(wire_format.BITMAP_BYTES, np.uint8),
        )
        me = self.state.me[0]
        for name, value in dict(
            rank=rank,
            workers=workers,
            slots=slots,
            payload=payload_bytes,
            room=headroom(workers),
            spread=spreads(workers),
            least_patience=LONGEST_PROBE if lossless else 0,
            tag=tag,
            isn=isn,
            window=window,
            credit=LEAST_IN_FLIGHT,
            limit=window if lossless else min(window, LEAST_IN_FLIGHT),
            base_rtt=np.iinfo(np.int64).max // 4,
            rto=INITIAL_RTO,
            caution=LEAST_CAUTION,
            earliest=np.iinfo(np.int64).max,
            padded=padded,
        ).items():
            me[name] = value
        self.state.slots["agreed"] = CODE_UNKNOWN
        self.state.slots["resent"] = self.state.slots["asked"] = -1
        self._out = np.zeros(2 * slots + 64, np.int32)
        self._found: dict[int, np.ndarray] = {}

    @property
    def me(self) -> np.void:
        """The scalars and counters: a record of ME."""
        return self.state.me[0]

    @property
    def window(self) -> int:
        """The most rounds in flight."""
        return int(self.me["window"])

    @property
    def completed(self) -> int:
        """Tasks done so far."""
        return int(self.me["completed"])

    @property
    def error(self) -> int:
        """OK, or why the worker stopped: one of ERROR_…."""
        return int(self.me["error"])

    @property
    def error_chunk(self) -> int:
        """The chunk in which it stopped."""
        return int(self.me["error_chunk"])

    @property
    def rtt_ns(self) -> int:
        """Smoothed round-trip time."""
        return int(self.me["srtt"])

    @property
    def rto_ns(self) -> int:
        """Retransmission timeout."""
        return int(self.me["rto"])

    @property
    def progress_at_ns(self) -> int:
        """When a chunk was last finished, or first sent with none under way."""
        return int(self.me["progress_at"])

    @property
    def received(self) -> int:
        """Results received."""
        return int(self.me["received"])

    @property
    def waits(self) -> int:
        """Wait packets received."""
        return int(self.me["waits"])

    def counters(self, names: Iterable[str]) -> dict[str, int]:
        """The named counters since the worker began."""
        return {name: int(self.me[name]) for name in names}

    @property
    def outstanding(self) -> int:
        """Tasks under way."""
        return int(self.me["next_task"] - self.me["first_task"])

    def start(
        self,
        source: int,
        target: int,
        numel: int,
        dtype: str,
        divisor: int = 1,
        history: np.ndarray | None = None,
        blocks: Sparse | None = None,
    ) -> int:
        """Queue an all-reduce of `numel` (> 0) elements at address `source` into `target`; returns the task's number.

        `dtype` is a key of FORMATS, `divisor` 1 for a sum and n for a mean, `history` int8[k] the exponent codes that
        the first k chunks of the last equal tensor needed (updated in place; all -128 if there was none). `blocks`:
        skip those that are zero on every rank (without history). All must stay alive until the task is DONE. There must
        be fewer than TASKS tasks outstanding.
        """
        me, number, fmt = self.me, int(self.me["next_task"]), FORMATS[dtype]
        per_chunk = elements_per_chunk(fmt, int(me["payload"]))
        if not me["room"][WIRES[fmt]] and WIRES[fmt]:
            raise ConfigError(f"{dtype}: lanes can't hold the sum of {me['workers']} ranks; use a wider wire")
        columns, found = 0, 0
        if blocks is not None:
            columns = blocks.columns(per_chunk)
            per_chunk -= per_chunk % columns
            self._found = {task: kept for task, kept in self._found.items() if task >= me["first_task"]}
            self._found[number] = np.empty(-(-numel // (per_chunk // columns)), np.uint8)
            found = self._found[number].ctypes.data
        chunks = -(-numel // per_chunk)
        if columns:
            chunks, history = sparse.streams_of(int(me["slots"]), chunks), None
        kept = 0 if history is None else min(len(history), chunks)
        self.state.tasks[number % TASKS] = (
            source,
            target,
            numel,
            fmt,
            divisor,
            per_chunk,
            me["total"],
            chunks,
            0,
            history.ctypes.data if kept else 0,
            kept,
            0,
            RUNNING,
            columns,
            blocks.threshold if blocks is not None else 0.0,
            found,
            0,
        )
        me["total"] += chunks
        me["next_task"] += 1
        return number

    def receive(self, datagrams: list[bytes], now: int) -> list[bytes]:
        """Hand in what arrived; returns the packets to send now (retransmissions that are due and new ones
        included)."""
        n = 0
        for data in datagrams:
            buffer = np.frombuffer(data or b"\0", np.uint8)
            n = receive(self.state, buffer.ctypes.data, len(data), now, self._out, n)
        n = fill(self.state, now, self._out, n)
        build_streams(self.state, self._out, n)
        n = timeouts(self.state, now, self._out, n)
        slots = self.state.slots
        return [u8_at(packet_at(self.state, i), int(slots[i]["length"])).tobytes() for i in self._out[:n].tolist()]

    @property
    def deadline(self) -> int:
        """When `receive` must be called again if nothing arrives (ns; the largest int64 if nothing is under way)."""
        return int(self.me["earliest"])

    def missing_ranks(self) -> tuple[int, ...]:
        """The ranks that the last wait packet named."""
        return tuple(int(r) for r in np.flatnonzero(np.unpackbits(self.state.missing, bitorder="little")))
