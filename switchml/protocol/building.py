"""Contents of a worker's packet of a dense or addressed round (docs/protocol.md, sections 4, 5, 7 and 11). sparse.py
writes those of sparse streams.

Kernels over a worker's State.
"""

from typing import Any

import numpy as np

from switchml.protocol import digits, exact, first_round
from switchml.protocol import packet as wire_format
from switchml.protocol.chunks import before_data, block_of, data_of, elements_of, kept_at, packet_at, size_code, task_of
from switchml.protocol.collectives import owner_of, sends
from switchml.protocol.exponents import need_of_chunk
from switchml.protocol.fixedpoint import INT64, LANE_BYTES, RAW, WIRES, classify, encode, has_digits, is_exact
from switchml.protocol.halves import widen
from switchml.protocol.packet import CODE_UNKNOWN, CODE_ZERO
from switchml.protocol.worker_state import (
    CLASSIFY,
    EXACT,
    FURTHER,
    NEED,
    NEXT,
    SPECULATE,
    USED,
    State,
    row_of,
    seq_of,
    task_at,
)
from switchml.runtime.jit import Address, int64, kernel
from switchml.runtime.memory import put_be16, put_be32, signed8, u8_at, u32_at

_LANE_BYTES = np.array(LANE_BYTES, np.int64)
_WIRES = np.array(WIRES, np.int64)
_HEADER = wire_format.HEADER_BYTES
_WORD = wire_format.WORD_BYTES


@kernel(forceinline=True)
def build_packet(w: State, index: int) -> None:
    """Write the packet of a slot's current round: mode, used and need are set."""
    identity, slot = w.scalars[0].identity, w.slots[index]
    task = task_at(w, slot.task)
    source, _, count = elements_of(task, slot.chunk)
    header = u8_at(packet_at(w, index), _HEADER)
    lanes_at = packet_at(w, index) + np.uint64(before_data(slot))
    if slot.addressed and not sends(task, owner_of(task, slot.chunk - task.first), identity.rank):
        lanes_at = kept_at(w, index)
    size = data_of(identity, task, count)
    lanes, wire = size // _LANE_BYTES[task.fmt], _WIRES[task.fmt]
    need = int64(slot.need)
    if task.half:
        widen(task.half, source, w.floats.ctypes.data, count)
        source = np.uint64(w.floats.ctypes.data)
    if slot.addressed and not _has_lanes(task, slot.chunk, identity.rank):
        pass  # this rank only responds
    elif task.fmt == RAW:
        _put_bytes(source, count, lanes_at, size)
    elif slot.codes:
        _put_blocks(w, index, source, count, lanes_at, size)
    elif slot.mode == CLASSIFY:
        classify(task.fmt, source, count, lanes_at, lanes)
    elif (slot.mode == SPECULATE and _is_in_vain(slot, task)) or (task.memory and slot.need > slot.used):
        nothing = u8_at(lanes_at, size)
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
        number = task_of(w, slot.queue, following, slot.task)
        if task_at(w, number).codes == task.codes:  # otherwise the packet has no room for them
            slot.next_need = need_of_chunk(w, number, following, index, NEXT)
            slot.scanned = 1
    header[0] = ((wire_format.CONTRIBUTION | wire) << 4) | size_code(identity, slot)
    header[1] = (slot.next_need if slot.scanned else CODE_UNKNOWN) & 0xFF
    put_be32(header, 2, seq_of(w, index))
    put_be16(header, 6, identity.job_tag)
    header[8] = need & 0xFF
    header[9] = slot.used & 0xFF
    slot.length = _HEADER + slot.codes + size
    if slot.codes:
        header[8] = header[9] = 0
        _put_codes(w, index, count)
    if slot.addressed:
        _address(w, index, count > 0)


@kernel
def _put_blocks(w: State, index: int, source: Address, count: int, lanes_at: Address, size: int) -> None:
    """Write the data of a packet with one exponent per block; zeros in a futile round."""
    slot, identity = w.slots[index], w.scalars[0].identity
    task = task_at(w, slot.task)
    item = 4 if task.half else task.item
    if slot.mode == SPECULATE and _is_in_vain(slot, task):
        nothing = u8_at(lanes_at, size)
        nothing[:] = 0
        return
    for block in range(wire_format.MAX_BLOCKS):
        first, elements = block_of(task, block, count)
        if elements <= 0:
            break
        at, to = source + np.uint64(first * item), lanes_at + np.uint64(block * identity.payload)
        lanes = min(identity.payload, size - block * identity.payload) // 4
        if slot.mode == CLASSIFY:
            classify(task.fmt, at, elements, to, lanes)
        else:
            encode(
                task.fmt, at, elements, to, lanes, w.codes[index, USED, block], identity.headroom[0], slot.classed != 0
            )


@kernel
def _put_codes(w: State, index: int, count: int) -> None:
    """Write the codes of a packet's blocks: `ahead`, `need` and `used`."""
    slot, n = w.slots[index], wire_format.MAX_BLOCKS
    task = task_at(w, slot.task)
    codes = u8_at(packet_at(w, index) + np.uint64(before_data(slot) - slot.codes), wire_format.CODES_BYTES)
    for block in range(n):
        is_there = block_of(task, block, count)[1] > 0
        codes[block] = (w.codes[index, NEXT, block] if slot.scanned else CODE_UNKNOWN) & 0xFF
        codes[n + block] = (w.codes[index, NEED, block] if is_there else CODE_ZERO) & 0xFF
        codes[2 * n + block] = (w.codes[index, USED, block] if is_there else CODE_ZERO) & 0xFF


@kernel(inline=True)
def _is_in_vain(slot: Any, task: Any) -> Any:
    """Whether a speculative round is futile, because this rank has numbers that are not finite or don't fit their
    lanes."""
    return slot.need == (digits.CODE_DIGITS if has_digits(task.fmt) else CODE_UNKNOWN)


@kernel(inline=True)
def _has_lanes(task: Any, chunk: int, rank: int) -> Any:
    """Whether a rank has data for a collective's chunk, to send or to add to the result it gets."""
    owner = owner_of(task, chunk - task.first)
    return sends(task, owner, rank) or task.reach == wire_format.REACH_ROOT


@kernel
def _put_bytes(source: Address, count: int, lanes_at: Address, payload: int) -> None:
    """Copy `count` bytes into a packet, followed by zeros."""
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
    """Convert the packet of a slot to an addressed one: its header is initially a dense one's."""
    identity, slot = w.scalars[0].identity, w.slots[index]
    task = task_at(w, slot.task)
    header = u8_at(packet_at(w, index), wire_format.ADDRESSED_BYTES)
    owner, size = owner_of(task, slot.chunk - task.first), int64(header[0] & 3)
    if slot.codes:
        size = int64(wire_format.LARGE)
    if not (has_elements and sends(task, owner, identity.rank)):
        is_padded = identity.padded != 0 and identity.payload == 1024
        if slot.capacity == identity.payload:
            size = int64(wire_format.PADDED & 3) if is_padded else int64(0)
        slot.length = wire_format.PADDING_BYTES if is_padded else 0
        slot.length += _HEADER + slot.codes
    slot.length += _WORD
    header[_HEADER], header[_HEADER + 1], header[_HEADER + 2] = task.reach, owner, task.op
    if slot.codes:
        header[_HEADER + 2] = task.op | wire_format.IN_BLOCKS
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
