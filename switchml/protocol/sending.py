"""Sending of new chunks and repeated rounds by a worker (docs/protocol.md, sections 4 and 6). Retransmissions are in
timers.py.

Kernels over a worker's State. Comments with C cite the numbered steps of section 6.
"""

from typing import Any

import numpy as np

from switchml.protocol import digits, exact, sparse
from switchml.protocol import packet as wire_format
from switchml.protocol.building import build_packet
from switchml.protocol.chunks import is_list, list_of, members_of, packet_at, task_of
from switchml.protocol.exponents import guess, guess_blocks, need_of_chunk, top_of, use_agreed
from switchml.protocol.fixedpoint import (
    LANE_BYTES,
    LANES,
    RAW,
    WIRES,
    canonical,
    has_digits,
    is_exact,
)
from switchml.protocol.packet import CODE_UNKNOWN, CODE_ZERO
from switchml.protocol.retransmission import adapt_limit
from switchml.protocol.worker_state import (
    DONE,
    ERROR_AHEAD,
    EXACT,
    FURTHER,
    NEED,
    NEXT,
    SPECULATE,
    State,
    is_free,
    next_round,
    row_of,
    seq_of,
    slot_of,
    task_at,
)
from switchml.runtime.jit import int64, kernel
from switchml.runtime.memory import fence

TURN = 16
"""Number of chunks that a queue starts before the other queue's turn: enough for a train of packets."""
_LANE_BYTES = np.array(LANE_BYTES, np.int64)
_ELEMENT_BYTES = np.array(LANES, np.int64) * _LANE_BYTES
"""Bytes of an element in a packet, by format."""
_WIRES = np.array(WIRES, np.int64)
_HEADER, _WORD = wire_format.HEADER_BYTES, wire_format.WORD_BYTES
_STEP = wire_format.LARGE_STEP


@kernel(forceinline=True)
def send(w: State, index: int, now: int, out: np.ndarray, n: int) -> int:
    """Append a slot's new packet to the list of packets to send."""
    me, slot = w.scalars[0], w.slots[index]
    slot.busy, slot.waited, slot.retries = 1, 0, 0
    if not me.window.in_flight:
        me.silence.flight_at = now
    me.window.in_flight += 1
    w.queues[slot.queue].in_flight += 1
    slot.sent_at, slot.deadline = now, now + max(me.rtt.rto, me.identity.least_timeout)
    me.timers.earliest = min(me.timers.earliest, slot.deadline)
    if me.identity.deadline:
        slot.expires = now + me.identity.deadline
        me.timers.earliest = min(me.timers.earliest, slot.expires)
    me.counters.sent += 1
    out[n] = index
    return n + 1


@kernel
def repeat(w: State, index: int, mode: int, used: int, now: int, out: np.ndarray, n: int) -> int:
    """Append another round of a slot's chunk."""
    slot = w.slots[index]
    w.scalars[0].counters.repeats += 1
    slot.mode, slot.used = mode, used
    next_round(slot)
    build_packet(w, index)
    return send(w, index, now, out, n)


@kernel
def report_open(w: State, index: int, now: int, out: np.ndarray, n: int) -> int:
    """Process the undecided sums of a chunk after its first round: move them to its group's list, unless they are too
    many, or the chunk has classes to be written over its sums. Appends the list's round if no other chunk is awaited.
    """
    slot = w.slots[index]
    task = task_at(w, slot.task)
    chunk = list_of(task, slot.chunk)
    sums, shared = w.sums[row_of(w, slot.chunk)], w.sums[row_of(w, chunk)]
    capacity = len(shared) // task.group
    member = (slot.chunk - task.first) % (task.group + 1)
    takes = slot.open if slot.open <= capacity and not slot.classed else 0
    for i in range(takes):
        shared[member * capacity + i] = sums[i]
        shared[member * capacity + i].where += np.int32(member * task.per_chunk)
    if takes < capacity:
        shared[member * capacity + takes].where = exact.NOWHERE
    slot.open -= takes
    w.reported[row_of(w, chunk)] += 1
    return start_list(w, slot.queue, chunk, now, out, n) if chunk < w.queues[slot.queue].next else n


@kernel
def start_list(w: State, queue: int, chunk: int, now: int, out: np.ndarray, n: int) -> int:
    """Append the round of a group's list, which has its slot, if all chunks of the group have reported; an empty list
    is done without a round."""
    row, index = row_of(w, chunk), slot_of(w.queues[queue], chunk)
    slot = w.slots[index]
    task = task_at(w, slot.task)
    if w.reported[row] < members_of(task, chunk) or slot.redo:
        return n
    w.reported[row] = 0
    sums = w.sums[row]
    slot.open = 0
    capacity = len(sums) // task.group
    for first in range(0, members_of(task, chunk) * capacity, capacity):
        for i in range(first, first + capacity):
            if sums[i].where == exact.NOWHERE:
                break
            sums[slot.open] = sums[i]
            slot.open += 1
    if slot.open:
        build_packet(w, index)
        return send(w, index, now, out, n)
    finish_chunk(w, index, now)
    return n


@kernel
def finish_chunk(w: State, index: int, now: int) -> None:
    """Finish a slot's chunk, whose result has been written: count it, and advance the queue's base."""
    me, slot = w.scalars[0], w.slots[index]
    window, queue, task = me.window, w.queues[slot.queue], task_at(w, slot.task)
    slot.done = 1
    task.done += 1
    if task.done == task.chunks:
        fence()  # non-temporal stores are visible before the task is reported as done
        task.state = DONE
        me.counters.completed += 1
    queue.progress_at = now
    advance(w, queue, slot)
    while window.first_task < window.next_task:
        oldest = task_at(w, window.first_task)
        if oldest.done < oldest.chunks:
            break
        window.first_task += 1


@kernel
def advance(w: State, queue: Any, slot: Any) -> None:
    """Advance a queue after a slot has become free: its next chunk may have been passed over, and the base moves to the
    lowest unfinished chunk."""
    if slot.chunk + queue.slots < queue.next:
        queue.late += 1
    while queue.base < queue.next:
        lowest = w.slots[slot_of(queue, queue.base)]
        if lowest.chunk < queue.base or (lowest.chunk == queue.base and not is_free(lowest)):
            break
        queue.base += 1


@kernel(forceinline=True)
def fill(w: State, now: int, out: np.ndarray, n: int) -> int:
    """Start as many chunks as the window allows. `out` int32[>= 2S]: slots to send, filled from `n`; returns
    the new n."""
    me = w.scalars[0]
    window, at = me.window, int64(0)
    # C1. Adapt the limit of rounds in flight, unless the transport is lossless.
    if not me.identity.least_timeout:
        adapt_limit(me, now)
    most, turn, idle = _share_of(w, at), int64(0), int64(0)
    while idle < len(w.queues):
        queue = w.queues[at]
        # C2. Continue with the next queue when this one reaches its share of the limit, or the chunk whose slot is
        # still in use; and after a turn, as the other queue's packets would wait for all of this one's on the link, and
        # seem lost. But the lowest chunk may always start, if it was passed over: later ones may be waiting for ranks
        # that wait for it.
        has_share = queue.in_flight < most
        chunk = _next_chunk(w, at, window.first_task) if has_share or queue.late else int64(-1)
        if not has_share and chunk != queue.base:
            chunk = int64(-1)
        is_full = chunk < 0
        if is_full or turn == TURN:
            if is_full and (queue.late or queue.next < queue.total):
                window.limited = 1
            idle = idle + 1 if is_full else int64(0)
            at, turn = (at + 1) % len(w.queues), int64(0)
            most = _share_of(w, at)
            continue
        idle, turn = int64(0), turn + 1
        # C3. Assign the slot to the next chunk.
        if chunk < queue.next:
            queue.late -= 1
        if queue.base in (chunk, queue.next):
            queue.progress_at = now
        queue.next = max(queue.next, chunk + 1)
        index = slot_of(queue, chunk)
        slot = w.slots[index]
        number = task_of(w, at, chunk, window.first_task)
        task = task_at(w, number)
        gathers = is_list(task, chunk)
        if not task.columns and not gathers and task.fmt != RAW:
            if not slot.scanned:
                slot.need = need_of_chunk(w, number, chunk, index, NEED)
            else:
                slot.need = slot.next_need
                w.codes[index, NEED, :] = w.codes[index, NEXT, :]
        slot.chunk, slot.task, slot.columns, slot.addressed = chunk, number, task.columns, task.addressed
        slot.words, slot.codes, slot.capacity = task.columns + task.addressed, task.codes, task.capacity
        slot.scanned = slot.classed = slot.done = slot.late = slot.open = 0
        # C4. Choose its exponent: a sparse stream's words announce theirs, bytes have none; an exponent agreed by
        # `ahead` is exact; otherwise speculate.
        if task.columns:
            slot.agreed, slot.unbuilt = CODE_UNKNOWN, sparse.FIRST_ROUND
        elif task.fmt == RAW:
            slot.agreed, slot.mode, slot.used, slot.need = CODE_UNKNOWN, EXACT, task.mark, CODE_ZERO
        elif gathers:
            slot.agreed, slot.mode, slot.used = CODE_UNKNOWN, FURTHER, exact.further(task.fmt)
        elif slot.agreed != CODE_UNKNOWN:
            if slot.need > slot.agreed:
                me.failure.code, me.failure.chunk = ERROR_AHEAD, chunk
                return n
            slot.mode, slot.used = EXACT, canonical(slot.agreed, task.fmt)
            slot.top = top_of(task.fmt, slot.agreed)
            if task.codes and not use_agreed(w, index, task):
                me.failure.code, me.failure.chunk = ERROR_AHEAD, chunk
                return n
        elif task.codes:
            slot.mode, slot.used = SPECULATE, CODE_UNKNOWN
            guess_blocks(w, index, task)
        else:
            slot.mode, slot.used = SPECULATE, guess(me, slot, task)
            slot.top = top_of(task.fmt, digits.FITS if has_digits(task.fmt) else slot.used)
        # C5. Build its packet (a sparse one in `build_streams`) and send it; a group's list when it is complete.
        if gathers:
            n = start_list(w, at, chunk, now, out, n)
            continue
        if not task.columns:
            build_packet(w, index)
        n = send(w, index, now, out, n)
    return n


@kernel
def _next_chunk(w: State, number: int, first_task: int) -> int:
    """The lowest chunk of a queue that may start, -1 if none may. Slots advance independently, so chunks whose slot is
    in use are passed over; except for exact sums, as undecided sums are stored for only as many chunks as slots."""
    queue = w.queues[number]
    if queue.in_flight == queue.slots:
        return int64(-1)
    if queue.late:
        lowest = queue.next
        for index in range(queue.first_slot, queue.first_slot + queue.slots):
            if is_free(w.slots[index]):
                lowest = min(lowest, w.slots[index].chunk + queue.slots)
        return int64(lowest)
    for chunk in range(queue.next, min(queue.total, queue.next + queue.slots)):
        may_start = is_free(w.slots[slot_of(queue, chunk)])
        is_near = chunk < queue.base + queue.slots
        if not (may_start and is_near) and is_exact(task_at(w, task_of(w, number, chunk, first_task)).fmt):
            break
        if may_start:
            return int64(chunk)
    return int64(-1)


@kernel
def _share_of(w: State, number: int) -> int:
    """Number of rounds that a queue may have in flight: the limit, minus what the other queue can use of its half. Half
    is guaranteed to a queue whatever the other one has in flight, which may be waiting for ranks that wait for this
    queue."""
    limit = w.scalars[0].window.limit
    if len(w.queues) == 1:
        return int64(limit)
    other = w.queues[1 - number]
    wants = min(other.in_flight + other.late + other.total - other.next, other.slots)
    return int64(limit - min(limit // 2, wants))


@kernel
def build_streams(w: State, out: np.ndarray, n: int) -> None:
    """Write the packets that `receive` and `fill` do not write: those of sparse streams among the listed slots,
    `out[:n]`. (Compiled only once, since compilation takes long.)"""
    for i in range(n):
        index = out[i]
        slot = w.slots[index]
        if not slot.unbuilt:
            continue
        task, stream, position = task_at(w, slot.task), w.streams[index], slot.chunk - task_at(w, slot.task).first
        if slot.unbuilt == sparse.FIRST_ROUND:
            sparse.open_stream(task, stream, position)
        slot.length = sparse.build(w.scalars[0].identity, task, stream, position, seq_of(w, index), packet_at(w, index))
        slot.unbuilt = 0
