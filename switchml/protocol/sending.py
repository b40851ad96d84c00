"""What a worker sends: new chunks and repeated rounds (docs/protocol.md, sections 4 and 6). What it resends is in
timers.py.

Kernels over a worker's State. Comments with C cite the numbered steps of section 6.
"""

from typing import Any

import numpy as np

from switchml.protocol import digits, exact, first_round, sparse
from switchml.protocol import packet as wire_format
from switchml.protocol.chunks import elements_of, is_list, list_of, members_of, position_of
from switchml.protocol.collectives import owner_of, sends
from switchml.protocol.fixedpoint import (
    INT64,
    LANE_BYTES,
    RAW,
    WIRES,
    canonical,
    classify,
    code32,
    encode,
    has_digits,
    is_exact,
    need_of,
)
from switchml.protocol.halves import largest, widen
from switchml.protocol.packet import CODE_UNKNOWN, CODE_ZERO
from switchml.protocol.retransmission import adapt_limit
from switchml.protocol.worker_state import (
    CLASSIFY,
    DONE,
    ERROR_AHEAD,
    EXACT,
    FURTHER,
    SPECULATE,
    State,
    is_free,
    next_round,
    row_of,
    seq_of,
    slot_of,
    task_at,
)
from switchml.runtime.jit import Address, int64, kernel
from switchml.runtime.memory import fence, put_be16, put_be32, signed8, u8_at, u32_at

TURN = 16
"""Chunks that a queue starts before it is another queue's turn: enough for a train of packets."""
_LANE_BYTES = np.array(LANE_BYTES, np.int64)
_WIRES = np.array(WIRES, np.int64)
_HEADER, _WORD = wire_format.HEADER_BYTES, wire_format.WORD_BYTES


@kernel(forceinline=True)
def _task_of(w: State, queue: int, chunk: int, hint: int) -> int:
    """Number of the task that has a queue's `chunk`, searching from task number `hint` on."""
    number = hint
    while task_at(w, number).queue != queue or chunk >= task_at(w, number).first + task_at(w, number).chunks:
        number += 1
    return number


@kernel(forceinline=True)
def _need_of_chunk(w: State, number: int, chunk: int) -> int:
    """The exponent code that a chunk of task `number` needs."""
    task = task_at(w, number)
    if task.columns or task.fmt == RAW or is_list(task, chunk):
        return int64(CODE_UNKNOWN)  # its words will announce it; bytes need none; what is open is not known yet
    return need_in(w, task, chunk, False)


@kernel(forceinline=True)
def need_in(w: State, task: Any, chunk: int, finite_only: bool) -> int:
    """What the elements of a task's chunk need: an exponent code, or that of integers (digits.py)."""
    source, _, count = elements_of(task, chunk)
    if has_digits(task.fmt):
        return int64(digits.need_of(task.fmt == INT64, source, count, w.scalars[0].identity.headroom[0]))
    if task.half:
        return int64(code32(largest(task.half, source, count, finite_only)))
    return int64(need_of(task.fmt, source, count, finite_only))


@kernel(inline=True)
def top_of(fmt: int, need: int) -> Any:
    """`top` of a slot whose ranks agree on what they need: how many digits integers have, or where those of exact sums
    begin."""
    return digits.rounds(fmt == INT64, need) if has_digits(fmt) else exact.bound(fmt, need)


@kernel(inline=True)
def packet_at(w: State, index: int) -> np.uint64:
    """Address of a slot's packet, which would end its row if it had data. Rows without slack make one train of
    consecutive slots."""
    words, end = int64(w.slots[index].words), rows_before(w, index) + 1
    if words:
        before = _HEADER + _WORD * words
        return w.wide.ctypes.data + np.uint64(end * w.wide.shape[1] - before - w.scalars[0].identity.payload)
    return w.packets.ctypes.data + np.uint64(end * w.packets.shape[1] - _HEADER - w.scalars[0].identity.payload)


@kernel(inline=True)
def rows_before(w: State, index: int) -> Any:
    """How many rows come before that of a slot's packet: even and odd rounds have their own."""
    slot = w.slots[index]
    return index + (slot.round & 1) * w.scalars[0].identity.slots


@kernel(inline=True)
def kept_at(w: State, index: int) -> np.uint64:
    """Address of the lanes that a root keeps: behind its packet, which has none, and behind the packet's tag."""
    return packet_at(w, index) + np.uint64(wire_format.ADDRESSED_BYTES + w.scalars[0].identity.room)


@kernel(forceinline=True)
def _build_packet(w: State, index: int) -> None:
    """Write the packet of a slot's present round: mode, used and need are set."""
    identity, slot = w.scalars[0].identity, w.slots[index]
    task = task_at(w, slot.task)
    source, _, count = elements_of(task, slot.chunk)
    header = u8_at(packet_at(w, index), _HEADER)
    lanes_at = packet_at(w, index) + np.uint64(_HEADER + _WORD * slot.addressed)
    if slot.addressed and not sends(task, owner_of(task, slot.chunk - task.first), identity.rank):
        lanes_at = kept_at(w, index)
    lanes, wire = identity.payload // _LANE_BYTES[task.fmt], _WIRES[task.fmt]
    need = int64(slot.need)
    if task.half:
        widen(task.half, source, w.floats.ctypes.data, count)
        source = np.uint64(w.floats.ctypes.data)
    if slot.addressed and not _has_lanes(task, slot.chunk, identity.rank):
        pass  # this rank only answers
    elif task.fmt == RAW:
        _put_bytes(source, count, lanes_at, identity.payload)
    elif slot.mode == CLASSIFY:
        classify(task.fmt, source, count, lanes_at, lanes)
    elif (slot.mode == SPECULATE and _is_in_vain(slot, task)) or (task.memory and slot.need > slot.used):
        nothing = u8_at(lanes_at, identity.payload)
        nothing[:] = 0
        slot.late = slot.mode == EXACT  # the others agreed on this exponent in a round without this rank
    elif has_digits(task.fmt):
        digits.encode(task.fmt == INT64, source, count, lanes_at, lanes, slot.open, slot.top)
    elif slot.mode == FURTHER:
        out, sums = u32_at(lanes_at, lanes), w.sums[row_of(w, slot.chunk)]
        need = int64(exact.encode_digits(task.fmt, sums, slot.open, out, identity.headroom[0]))
    elif is_exact(task.fmt):
        _build_first_digits(w, index, lanes)
    else:
        encode(task.fmt, source, count, lanes_at, lanes, slot.used, identity.headroom[wire], slot.classed != 0)

    following = slot.chunk + w.queues[slot.queue].slots
    if not slot.scanned and following < w.queues[slot.queue].total:
        slot.next_need = _need_of_chunk(w, _task_of(w, slot.queue, following, slot.task), following)
        slot.scanned = 1
    header[0] = ((wire_format.CONTRIBUTION | wire) << 4) | (3 if identity.payload == 1024 else 1)
    header[1] = (slot.next_need if slot.scanned else CODE_UNKNOWN) & 0xFF
    put_be32(header, 2, seq_of(w, index))
    put_be16(header, 6, identity.job_tag)
    header[8] = need & 0xFF
    header[9] = slot.used & 0xFF
    slot.length = _HEADER + identity.payload
    if slot.addressed:
        _address(w, index, count > 0)


@kernel(inline=True)
def _is_in_vain(slot: Any, task: Any) -> Any:
    """Whether a guessed round can't count, as this rank has numbers that are not finite or don't fit their lanes."""
    return slot.need == (digits.CODE_DIGITS if has_digits(task.fmt) else CODE_UNKNOWN)


@kernel(inline=True)
def _has_lanes(task: Any, chunk: int, rank: int) -> Any:
    """Whether a rank has data for a collective's chunk, to send or to add to what it gets."""
    owner = owner_of(task, chunk - task.first)
    return sends(task, owner, rank) or task.reach == wire_format.REACH_ROOT


@kernel
def _put_bytes(source: Address, count: int, lanes_at: Address, payload: int) -> None:
    """`count` bytes into a packet, and zeros behind them."""
    words = count // 4
    out, x = u32_at(lanes_at, payload // 4), u32_at(source, words)
    for i in range(words):
        out[i] = x[i]
    rest, tail = u8_at(lanes_at, payload), u8_at(source, count)
    for i in range(4 * words, count):
        rest[i] = tail[i]
    rest[count:] = 0


@kernel
def _address(w: State, index: int, has_elements: bool) -> None:
    """Make the packet of a slot an addressed one: its header is a dense one's so far."""
    identity, slot = w.scalars[0].identity, w.slots[index]
    task = task_at(w, slot.task)
    header = u8_at(packet_at(w, index), wire_format.ADDRESSED_BYTES)
    owner, size = owner_of(task, slot.chunk - task.first), int64(header[0] & 3)
    if not (has_elements and sends(task, owner, identity.rank)):
        is_padded = identity.padded != 0 and identity.payload == 1024
        size = int64(wire_format.PADDED & 3) if is_padded else int64(0)
        slot.length = wire_format.PADDING_BYTES if is_padded else 0
        slot.length += _HEADER
    slot.length += _WORD
    header[_HEADER], header[_HEADER + 1], header[_HEADER + 2] = task.reach, owner, task.op
    header[_HEADER + 3] = CODE_UNKNOWN - signed8(header[1])
    header[0] = (header[0] & 0xF8) | wire_format.SPARSE | size
    header[1] = wire_format.ADDRESSED


@kernel(forceinline=True)
def _build_first_digits(w: State, index: int, lanes: int) -> None:
    """Write the lanes of a first round of exact sums."""
    slot, guard = w.slots[index], w.scalars[0].identity.headroom[0]
    task = task_at(w, slot.task)
    source, _, count = elements_of(task, slot.chunk)
    lanes_at = packet_at(w, index) + np.uint64(_HEADER)
    if first_round.is_wide(task.fmt, guard):
        first_round.encode(source, count, lanes_at, lanes, slot.top, guard, w.marks)
    else:
        out = u32_at(lanes_at, lanes)
        exact.encode_first(task.fmt, source, count, out, slot.top, guard)
        out[count:] = 0


@kernel(forceinline=True)
def send(w: State, index: int, now: int, out: np.ndarray, n: int) -> int:
    """Append a slot's new packet to the list of what to send."""
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
    _build_packet(w, index)
    return send(w, index, now, out, n)


@kernel
def report_open(w: State, index: int, now: int, out: np.ndarray, n: int) -> int:
    """A chunk's first round has its result: give what it left open to its group's list, unless that is too much, or
    the chunk has classes to be written over its sums. Appends the list's round if no other chunk is awaited."""
    slot = w.slots[index]
    task = task_at(w, slot.task)
    chunk = list_of(task, slot.chunk)
    sums, shared = w.sums[row_of(w, slot.chunk)], w.sums[row_of(w, chunk)]
    room = len(shared) // task.group
    member = (slot.chunk - task.first) % (task.group + 1)
    takes = slot.open if slot.open <= room and not slot.classed else 0
    for i in range(takes):
        shared[member * room + i] = sums[i]
        shared[member * room + i].where += np.int32(member * task.per_chunk)
    if takes < room:
        shared[member * room + takes].where = exact.NOWHERE
    slot.open -= takes
    w.reported[row_of(w, chunk)] += 1
    return start_list(w, slot.queue, chunk, now, out, n) if chunk < w.queues[slot.queue].next else n


@kernel
def start_list(w: State, queue: int, chunk: int, now: int, out: np.ndarray, n: int) -> int:
    """Append the round of a group's list, which has its slot, if all chunks of the group have reported; an empty list
    is done without one."""
    row, index = row_of(w, chunk), slot_of(w.queues[queue], chunk)
    slot = w.slots[index]
    task = task_at(w, slot.task)
    if w.reported[row] < members_of(task, chunk) or slot.redo:
        return n
    w.reported[row] = 0
    sums = w.sums[row]
    slot.open = 0
    room = len(sums) // task.group
    for first in range(0, members_of(task, chunk) * room, room):
        for i in range(first, first + room):
            if sums[i].where == exact.NOWHERE:
                break
            sums[slot.open] = sums[i]
            slot.open += 1
    if slot.open:
        _build_packet(w, index)
        return send(w, index, now, out, n)
    finish_chunk(w, index, now)
    return n


@kernel
def finish_chunk(w: State, index: int, now: int) -> None:
    """A slot's chunk has its result in place: count it, and let the queue's base move on."""
    me, slot = w.scalars[0], w.slots[index]
    window, queue, task = me.window, w.queues[slot.queue], task_at(w, slot.task)
    slot.done = 1
    task.done += 1
    if task.done == task.chunks:
        fence()  # what is written past the caches is there before anybody is told
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
    """A slot is free: its next chunk may have been passed over, and the queue's base move on to its lowest chunk that
    is not finished."""
    if slot.chunk + queue.slots < queue.next:
        queue.late += 1
    while queue.base < queue.next:
        lowest = w.slots[slot_of(queue, queue.base)]
        if lowest.chunk < queue.base or (lowest.chunk == queue.base and not is_free(lowest)):
            break
        queue.base += 1


@kernel(forceinline=True)
def fill(w: State, now: int, out: np.ndarray, n: int) -> int:
    """Start as many chunks as the window allows. `out` int32[>= 2S]: slots to send, filled from `n`; returns the new
    n."""
    me = w.scalars[0]
    window, at = me.window, int64(0)
    # C1. Adapt the limit of rounds in flight, unless nothing can be lost.
    if not me.identity.least_timeout:
        adapt_limit(me, now)
    most, turn, idle = _share_of(w, at), int64(0), int64(0)
    while idle < len(w.queues):
        queue = w.queues[at]
        # C2. Go on to the next queue at this one's share of the limit, and at the chunk whose slot is still in use; and
        # after a turn, as the other queue's packets would wait for all of this one's on the link, and seem lost.
        # But the lowest chunk of all may always start, if it was passed over: later ones may be waiting for ranks that
        # wait for it.
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
        # C3. Give the next chunk its slot.
        if chunk < queue.next:
            queue.late -= 1
        if queue.base in (chunk, queue.next):
            queue.progress_at = now
        queue.next = max(queue.next, chunk + 1)
        index = slot_of(queue, chunk)
        slot = w.slots[index]
        number = _task_of(w, at, chunk, window.first_task)
        task = task_at(w, number)
        gathers = is_list(task, chunk)
        if not task.columns and not gathers and task.fmt != RAW:
            slot.need = slot.next_need if slot.scanned else _need_of_chunk(w, number, chunk)
        slot.chunk, slot.task, slot.columns, slot.addressed = chunk, number, task.columns, task.addressed
        slot.words = task.columns + task.addressed
        slot.scanned = slot.classed = slot.done = slot.late = slot.open = 0
        # C4. Choose its exponent: a sparse stream's words announce theirs, bytes have none; what `ahead` agreed on is
        # exact; else guess.
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
        else:
            slot.mode, slot.used = SPECULATE, _guess(me, slot, task)
            slot.top = top_of(task.fmt, digits.FITS if has_digits(task.fmt) else slot.used)
        # C5. Build its packet (a sparse one in `build_streams`) and send it; a group's list when it is complete.
        if gathers:
            n = start_list(w, at, chunk, now, out, n)
            continue
        if not task.columns:
            _build_packet(w, index)
        n = send(w, index, now, out, n)
    return n


@kernel
def _next_chunk(w: State, number: int, first_task: int) -> int:
    """The lowest chunk of a queue that may start, -1 if none may. Slots go on by themselves, so chunks whose slot is in
    use are passed over; but not those of exact sums, as there is room for what as many chunks as slots leave open."""
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
        if not (may_start and is_near) and is_exact(task_at(w, _task_of(w, number, chunk, first_task)).fmt):
            break
        if may_start:
            return int64(chunk)
    return int64(-1)


@kernel
def _share_of(w: State, number: int) -> int:
    """How many rounds a queue may have in flight: the limit, less what the other one can use of its half. Half is a
    queue's whatever the other one has in flight, as that may be waiting for ranks that wait for this queue."""
    limit = w.scalars[0].window.limit
    if len(w.queues) == 1:
        return int64(limit)
    other = w.queues[1 - number]
    wants = min(other.in_flight + other.late + other.total - other.next, other.slots)
    return int64(limit - min(limit // 2, wants))


@kernel(forceinline=True)
def _guess(me: Any, slot: Any, task: Any) -> int:
    """The exponent code of a SPECULATE round: from the tensor before, but no less than this rank needs. Where sums may
    be without a rank, it must be known to that rank, too: from the tensor before alone."""
    least = slot.need if slot.need != CODE_UNKNOWN and not task.memory else CODE_ZERO
    position = position_of(task, slot.chunk)
    if position < task.history_length:
        last = signed8(u8_at(task.history, task.history_length)[position])
        least = max(least, min(last + me.identity.spread[_WIRES[task.fmt]] // 2, CODE_UNKNOWN - 1))
    return canonical(least, task.fmt)


@kernel
def build_streams(w: State, out: np.ndarray, n: int) -> None:
    """Write the packets that `receive` and `fill` leave out: those of sparse streams among the listed slots, `out[:n]`.
    (Compiled into one place, since compiling takes long.)"""
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
