"""A worker's processing of packets from the aggregator (docs/protocol.md, sections 4, 6 and 11).

Kernels over a worker's State. Comments with R cite the numbered steps of section 6.
"""

from typing import Any

import numpy as np

from switchml.protocol import digits, exact, first_round, retransmission, sparse, worker_state
from switchml.protocol import packet as wire_format
from switchml.protocol.blocks import next_round_of_blocks, store_blocks
from switchml.protocol.chunks import before_data, data_of, elements_of, kept_at, position_of, size_code
from switchml.protocol.collectives import gets, owner_of, rounds_sums
from switchml.protocol.exponents import need_in, top_of
from switchml.protocol.fixedpoint import (
    INT64,
    RAW,
    WIRES,
    apply_classes,
    canonical,
    clear_non_finite,
    decode,
    has_digits,
    is_exact,
    keep_classes,
    multiply,
)
from switchml.protocol.halves import narrow
from switchml.protocol.handover import finish_redo
from switchml.protocol.lanes import combine, full_size_code
from switchml.protocol.packet import CODE_UNKNOWN
from switchml.protocol.sending import finish_chunk, repeat, report_open, send
from switchml.protocol.worker_state import State, next_round, row_of, seq_of, task_at
from switchml.runtime.jit import Address, int64, kernel
from switchml.runtime.memory import be16, be32, copy_bytes, copy_past_caches, serial_difference, signed8, u8_at, u32_at

_WIRES = np.array(WIRES, np.int64)
_ERRORS = wire_format.FLAG_OVERFLOW | wire_format.FLAG_MIXED
_HEADER = wire_format.HEADER_BYTES
_ADDRESSED_BYTES = wire_format.ADDRESSED_BYTES
_WAIT_BYTES = _HEADER + wire_format.BITMAP_BYTES


@kernel(forceinline=True)
def receive(w: State, address: Address, length: int, now: int, out: np.ndarray, n: int) -> int:
    """Process one datagram from the aggregator. Repeated rounds of a chunk are appended to `out` from `n`; returns the
    new n.

    After an error (`failure.code`) the worker must not be used any more.
    """
    me = w.scalars[0]
    # R1. Refuse invalid packets, and those of another job.
    data = u8_at(address, max(length, 1))
    if length < _HEADER or be16(data, 6) != me.identity.job_tag:
        me.counters.refused += 1
        return n
    # R2. Find the slot, and the distance of the packet's round from the slot's.
    seq = be32(data, 2)
    index = seq & (me.identity.slots - 1)
    slot = w.slots[index]
    distance = serial_difference(seq, seq_of(w, index))
    # A round that this rank has not sent is only answered if rounds may end without late ranks.
    is_early = distance > 0 or (distance == 0 and not slot.busy and not me.identity.deadline)
    # R3. A wait packet postpones the round's next probe.
    if data[0] == wire_format.WAIT << 4 and length == _WAIT_BYTES:
        if is_early:
            me.counters.refused += 1
        if distance == 0 and slot.busy:
            _wait(w, slot, data, now)
            if me.identity.deadline and not w.missing.any():
                me.failure.code, me.failure.chunk = worker_state.ERROR_BEHIND, slot.chunk
        return n
    # R4. Refuse packets that do not have the format of a result.
    is_sparse = data[0] & wire_format.SPARSE != 0
    if not _is_result(data, length, is_sparse, me.identity):
        me.counters.refused += 1
        return n
    me.counters.received += 1
    # R5. A result of another round: the answer to a needless retransmission, or not for this rank.
    if distance != 0 or not slot.busy:
        if data[0] & wire_format.R_FLAG and distance < 0 and slot.resent == slot.round + distance // me.identity.slots:
            w.queues[slot.queue].heard_at = now  # the result had arrived without it
            retransmission.back_off(me, now, slot.probed == slot.resent)
        elif is_early:
            me.counters.refused += 1
        return n
    # R6. The round is answered: measure its times.
    _settle(me, w.queues[slot.queue], slot, now)
    if slot.redo:
        return finish_redo(w, index, now, out, n)
    # R7. A sparse stream continues according to section 8's table.
    is_addressed = is_sparse and data[1] == wire_format.ADDRESSED
    if is_sparse != (slot.columns + slot.addressed != 0) or is_addressed != (slot.addressed != 0):
        me.failure.code, me.failure.chunk = worker_state.ERROR_MIXED, slot.chunk
        return n
    if slot.columns:
        return _continue_stream(w, index, address, length, now, out, n)
    task = task_at(w, slot.task)
    # A peer's task may have different packets.
    is_alike = (
        length >= before_data(slot)
        if slot.addressed
        else length == slot.length and data[0] & 7 == size_code(me.identity, slot)
    )
    if not is_alike:
        me.failure.code, me.failure.chunk = worker_state.ERROR_MIXED, slot.chunk
        return n
    # R8. Section 4's table: done, another round, or an error. Lanes at address 0 are for other ranks.
    lanes_at = np.uint64(address) + np.uint64(before_data(slot))
    if slot.addressed:
        lanes_at = _lanes_for_us(w, index, address, length)
    if slot.codes:
        mode, used = next_round_of_blocks(w, index, address, lanes_at), int64(CODE_UNKNOWN)
    else:
        mode, used = _next_round(w, slot, task, w.classes[index], address, lanes_at)
    if me.failure.code:
        return n
    if mode == worker_state.SPECULATE and is_exact(task.fmt):
        n = _take_digits(w, index, address, now, out, n)
        if slot.open:
            mode, used = worker_state.FURTHER, exact.further(task.fmt)
    if mode == worker_state.SPECULATE and has_digits(task.fmt) and slot.open + 1 < slot.top:
        if lanes_at:
            _, _, count = elements_of(task, slot.chunk)
            digits.keep(lanes_at, count, w.classes[index], slot.open)
        slot.open += 1
        mode, used = worker_state.FURTHER, int64(slot.used)
    if mode != worker_state.SPECULATE:
        return repeat(w, index, mode, used, now, out, n)
    # R9. Write the sums to the target; the chunk is finished.
    if slot.codes:
        store_blocks(w, index, address, lanes_at)
    else:
        _store_sums(w, slot, task, w.classes[index], address, lanes_at)
    next_round(slot)
    finish_chunk(w, index, now)
    return n


@kernel(forceinline=True)
def _wait(w: State, slot: Any, data: np.ndarray, now: int) -> None:
    """Process a wait packet: the aggregator has this rank's contribution, and waits for others'."""
    me = w.scalars[0]
    me.counters.waits += 1
    me.silence.suspicion, me.silence.suspected = retransmission.WAITED, 0
    slot.waited, slot.sent_at = 1, now
    slot.deadline = now + 2 * retransmission.probe_timeout(me, w.queues[slot.queue], now)
    me.timers.earliest = now
    for i in range(wire_format.BITMAP_BYTES):
        w.missing[i] = data[_HEADER + i]


@kernel(forceinline=True)
def _is_result(data: np.ndarray, length: int, is_sparse: bool, identity: Any) -> bool:
    if is_sparse:
        return sparse.is_result(data, length, identity)
    size, before = data[0] & 7, _HEADER + (wire_format.CODES_BYTES if data[0] & 7 == wire_format.BLOCKS else 0)
    is_full = length == _HEADER + identity.payload and size == full_size_code(identity.payload)
    is_large = size in (wire_format.LARGE, wire_format.BLOCKS) and before < length <= before + identity.large
    return (is_full or is_large) and wire_format.RESULT <= data[0] >> 4 < wire_format.WAIT


@kernel(forceinline=True)
def _settle(me: Any, queue: Any, slot: Any, now: int) -> None:
    """Account for a round that has its result: it is no longer in flight, and its times are samples if it was sent only
    once."""
    window, timers = me.window, me.timers
    slot.busy = 0
    window.in_flight -= 1
    queue.in_flight -= 1
    window.credit = min(window.credit + 1, retransmission.MIN_IN_FLIGHT)
    timers.earliest = now
    is_clean = slot.retries == 0 and not slot.waited
    if is_clean or me.silence.suspicion == retransmission.WAITED:
        queue.heard_at = now
    is_first = retransmission.sample_silence(me, now, slot.sent_at if is_clean else int64(-1))
    if is_clean:
        retransmission.sample_rtt(me, now - slot.sent_at, is_first)
        retransmission.sample_reordering(me, queue.newest - slot.sent_at)
        queue.newest = max(queue.newest, slot.sent_at)


@kernel(forceinline=True)
def _next_round(
    w: State, slot: Any, task: Any, classes: np.ndarray, address: Address, lanes_at: Address
) -> tuple[int, Any]:
    """Section 4's table for a result with exponents: (mode, exponent code) of the next round, SPECULATE if there is
    none, since no later round is speculative. Sets `failure`."""
    me, header = w.scalars[0], u8_at(address, _ADDRESSED_BYTES)
    ahead = CODE_UNKNOWN - int64(header[_ADDRESSED_BYTES - 1]) if slot.addressed else signed8(header[1])
    slot.agreed = ahead if slot.scanned else CODE_UNKNOWN
    need, flags = signed8(header[8]), header[9] & _ERRORS
    if header[9] & wire_format.FLAG_PARTIAL:
        slot.agreed = CODE_UNKNOWN
        me.counters.partial += 1
        if not task.memory:
            me.failure.code, me.failure.chunk = worker_state.ERROR_MIXED, slot.chunk
    mode, used = worker_state.SPECULATE, int64(CODE_UNKNOWN)
    if slot.mode == worker_state.SPECULATE:
        if need == CODE_UNKNOWN and not has_digits(task.fmt):
            slot.need = need_in(w, task, slot.chunk, True)
            mode = worker_state.CLASSIFY
        elif (
            flags
            or (has_digits(task.fmt) and need != digits.FITS)
            or not 0 <= slot.used - canonical(need, task.fmt) <= me.identity.spread[_WIRES[task.fmt]]
        ):
            mode, used = worker_state.EXACT, canonical(need, task.fmt)
    elif flags & wire_format.FLAG_MIXED:
        me.failure.code, me.failure.chunk = worker_state.ERROR_MIXED, slot.chunk
    elif flags & wire_format.FLAG_OVERFLOW:
        me.failure.code, me.failure.chunk = worker_state.ERROR_OVERFLOW, slot.chunk
    elif slot.mode == worker_state.CLASSIFY:
        _, _, count = elements_of(task, slot.chunk)
        if lanes_at:
            keep_classes(task.fmt, lanes_at, count, classes)
        slot.classed = 1
        if header[9] & wire_format.FLAG_LATE:
            slot.need = CODE_UNKNOWN  # the others do not have this rank's classes: it stores all its values
        mode, used = worker_state.EXACT, canonical(need, task.fmt)
    if mode == worker_state.EXACT:
        slot.top = top_of(task.fmt, need)
    return mode, used


@kernel
def _take_digits(w: State, index: int, address: Address, now: int, out: np.ndarray, n: int) -> int:
    """Process a round of exact sums: write decided sums, and list the others; `slot.open` sums need a further round of
    this slot. Appends the round of the group's list if that can begin now."""
    me, slot = w.scalars[0], w.slots[index]
    task, sums = task_at(w, slot.task), w.sums[row_of(w, slot.chunk)]
    source, target, count = elements_of(task, slot.chunk)
    guard, lanes_at = me.identity.headroom[0], address + _HEADER
    if slot.mode == worker_state.FURTHER:
        need = signed8(u8_at(address, _HEADER)[8])
        slot.open = exact.take_digits(task.fmt, lanes_at, target, sums, slot.open, guard, need, task.divisor)
        return n
    _remember_need(slot, task, address)
    if not first_round.is_wide(task.fmt, guard):
        slot.open = exact.take_first(task.fmt, lanes_at, source, target, count, slot.top, guard, task.divisor, sums)
        return n
    lanes = me.identity.payload // 4
    slot.open = first_round.take(lanes_at, source, target, count, lanes, slot.top, guard, task.divisor, sums, w.marks)
    return report_open(w, index, now, out, n)


@kernel(forceinline=True)
def _store_sums(w: State, slot: Any, task: Any, classes: np.ndarray, address: Address, lanes_at: Address) -> None:
    """Write the sums of a chunk to the target, except those for other ranks and exact ones already written, and store
    the exponent the chunk needed."""
    me = w.scalars[0]
    _, target, count = elements_of(task, slot.chunk)
    final = target
    if task.half:
        target = np.uint64(w.floats.ctypes.data)
    if task.fmt == RAW:
        if lanes_at and task.past_caches:
            copy_past_caches(target, lanes_at, count)
        elif lanes_at:
            _take_bytes(lanes_at, target, count)
        return
    if not is_exact(task.fmt):
        if task.memory:
            _keep_late(me, slot, task, address)
        if lanes_at and has_digits(task.fmt):
            is_long = task.fmt == INT64
            task.misfits += digits.take(is_long, lanes_at, target, count, classes, slot.top, task.divisor)
        elif lanes_at:
            headroom = me.identity.headroom[_WIRES[task.fmt]]
            task.misfits += decode(task.fmt, lanes_at, target, count, slot.used, headroom, task.divisor)
        header = u8_at(address, _HEADER)
        if task.memory and header[9] & wire_format.FLAG_PARTIAL:
            task.least = min(task.least, int64(header[1]))
            multiply(task.fmt, target, count, me.identity.workers / header[1])
        _remember_need(slot, task, address)
    if slot.classed and lanes_at:
        apply_classes(task.fmt, classes, target, count)
    if task.half and lanes_at:
        narrow(task.half, target, final, count)


@kernel
def _keep_late(me: Any, slot: Any, task: Any, address: Address) -> None:
    """After a chunk has its sums (section 13), fill the buffer for late values: with this rank's contribution if it is
    not in the sums, else with zeros. (Called before the sums are written, which may overwrite the values.)"""
    if u8_at(address, _HEADER)[9] & wire_format.FLAG_LATE:
        slot.late = 1
    source, _, count = elements_of(task, slot.chunk)
    kept, items = task.memory + (source - task.source), count * task.item
    if slot.late:
        task.late += 1
        me.counters.late += 1
        copy_bytes(kept, source, items)
        if slot.classed and slot.need != CODE_UNKNOWN:
            # These are in the sums, since the CLASSIFY round included this rank's.
            clear_non_finite(task.fmt, kept, count)
        return
    nothing = u8_at(kept, items)
    nothing[:] = 0


@kernel
def _lanes_for_us(w: State, index: int, address: Address, length: int) -> np.uint64:
    """Address of the lanes of an addressed round's result that this rank needs, or 0 if it needs none. A root adds its
    own to those of the others, in its packet. Sets `failure` if data are missing or a sum overflowed."""
    me, slot = w.scalars[0], w.slots[index]
    task, identity = task_at(w, slot.task), me.identity
    _, _, count = elements_of(task, slot.chunk)
    if count == 0 or not gets(task, owner_of(task, slot.chunk - task.first), identity.rank):
        return np.uint64(0)
    lanes_at, size = np.uint64(address) + np.uint64(before_data(slot)), data_of(identity, task, count)
    has_data = length >= before_data(slot) + size
    if task.reach == wire_format.REACH_ROOT and not rounds_sums(task):
        own = kept_at(w, index)
        if has_data:
            overflowed = combine(int64(task.op), int64(_WIRES[task.fmt]), own, lanes_at, size)
            if overflowed and not u8_at(address, _HEADER)[9]:
                me.failure.code, me.failure.chunk = worker_state.ERROR_OVERFLOW, slot.chunk
        lanes_at, has_data = own, has_data or identity.workers == 1
    # In a MIXED round the data may be those of another call.
    if not has_data and not u8_at(address, _HEADER)[9] & wire_format.FLAG_MIXED:
        me.failure.code, me.failure.chunk = worker_state.ERROR_STREAM, slot.chunk
    return lanes_at


@kernel
def _take_bytes(lanes_at: Address, target: Address, count: int) -> None:
    """Copy `count` bytes from a packet."""
    words = count // 4
    x, out = u32_at(lanes_at, words), u32_at(target, words)
    for i in range(words):
        out[i] = x[i]
    tail, rest = u8_at(lanes_at, count), u8_at(target, count)
    for i in range(4 * words, count):
        rest[i] = tail[i]


@kernel(forceinline=True)
def _remember_need(slot: Any, task: Any, address: Address) -> None:
    position = position_of(task, slot.chunk)
    if position < task.history_length:
        u8_at(task.history, task.history_length)[position] = u8_at(address, _HEADER)[8]


@kernel
def _continue_stream(w: State, index: int, address: Address, length: int, now: int, out: np.ndarray, n: int) -> int:
    """Process the result of a sparse stream's round: starts another round, or ends the stream."""
    me, slot = w.scalars[0], w.slots[index]
    task = task_at(w, slot.task)
    stream, position = w.streams[index], slot.chunk - task.first
    outcome = sparse.take(me.identity, task, stream, w.classes[index], position, address, length)
    if outcome == sparse.MORE:
        me.counters.streamed += 1
        next_round(slot)
        slot.unbuilt = sparse.NEXT_ROUND
        return send(w, index, now, out, n)
    if outcome == sparse.DONE:
        next_round(slot)
        finish_chunk(w, index, now)
        return n
    me.failure.chunk = slot.chunk
    if outcome == sparse.MIXED:
        me.failure.code = worker_state.ERROR_MIXED
    elif outcome == sparse.OVERFLOWED:
        me.failure.code = worker_state.ERROR_OVERFLOW
    else:
        me.failure.code = worker_state.ERROR_AHEAD if outcome == sparse.LATE else worker_state.ERROR_STREAM
    return n
