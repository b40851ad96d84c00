"""Block-sparse streams: selection of the blocks of a tensor that a rank sends, and processing of their rounds
(docs/protocol.md, section 8).

Kernels over a worker's arrays, as in worker.py, which calls them; no packet is sent from here. A stream is a chunk that
stays in its slot for as many rounds as it needs. The scan proceeds through the tensor from its beginning, while packets
are in flight, as far as any stream has progressed: one entry of all streams at a time, since those are adjacent, and
memory is read twice as fast in order. A block that is zero on this rank is set to zero in the target then; every other
block is announced, so that its sum follows later.

`Sparse` has the options: threshold and block size.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from switchml.errors import ConfigError
from switchml.protocol import fixedpoint
from switchml.protocol import packet as wire_format
from switchml.protocol.lanes import full_size_code
from switchml.protocol.packet import CODE_UNKNOWN, NO_ENTRY, NO_WORD
from switchml.runtime.jit import Address, int64, kernel
from switchml.runtime.memory import bswap32, f32_at, f64_at, i32_at, i64_at, put_be16, put_be32, u8_at, u32_at, u64_at

AT, CODE, MINE, NEED, CLASSED = range(5)
"""Rows of a slot's stream state, int64[5, 8], by column: the entry carried by the current round, and its exponent code;
this rank's next nonzero entry, and the exponent it needs; whether there are classes for AT. NO_ENTRY: none."""
STATE_ROWS = 5

MORE, DONE, DISAGREE, OVERFLOWED, MIXED, LATE = range(6)
"""Outcomes of a result: another round, the stream's end, or one of the errors. LATE: an exponent is too small."""

NEXT_ROUND, FIRST_ROUND = 1, 2
"""The round for which a stream's packet is still to be written."""

MAX_STREAMS = 256
"""Maximum number of streams that share a tensor. Each always has a packet in flight: with fewer, a fast path with long
round trips is idle; more wait in queues, and each costs a first round without data. (The limit in flight, which bounds
a dense tensor, cannot stop a stream that has begun.)"""

_ITEM_BYTES = np.array(fixedpoint.ITEM_BYTES, np.int64)
_LANES = np.array(fixedpoint.LANES, np.int64)
_LANE_BYTES = np.array(fixedpoint.LANE_BYTES, np.int64)
_WIRES = np.array(fixedpoint.WIRES, np.int64)
_HEADER, _WORD = wire_format.HEADER_BYTES, wire_format.WORD_BYTES


@dataclass(frozen=True)
class Sparse:
    """Options of sparse streams: blocks of at most `block` elements (a packet has 1, 2, 4 or 8 of them, fused), which
    count as zero if no element's magnitude is above `threshold`. Every rank must use the same block size.

    Raises ConfigError for invalid values.
    """

    block: int = 256
    threshold: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.block, int) or self.block < 1:
            raise ConfigError(f"sparse block of {self.block} elements: expected a whole number of at least 1")
        if not 0 <= self.threshold < float("inf"):
            raise ConfigError(f"sparse threshold {self.threshold}: expected 0 or a positive number")

    def columns(self, per_packet: int) -> int:
        """Number of blocks that share a packet of `per_packet` elements: 1, 2, 4 or 8, the maximum for which a block
        fits."""
        return max((c for c in wire_format.COLUMNS if per_packet // c >= self.block), default=1)


def streams_of(slots: int, positions: int) -> int:
    """K: number of streams that share a tensor of this many positions."""
    return min(slots, positions, MAX_STREAMS)


@kernel
def is_zero(fmt: int, address: Address, count: int, threshold: float) -> bool:
    """Whether `count` elements at `address` all have a magnitude of at most `threshold`; NaN does not."""
    above = False
    if fmt == fixedpoint.FLOAT64:
        x = f64_at(address, count)
        for i in range(count):
            above |= not (abs(x[i]) <= threshold)
    elif not fixedpoint.is_integer(fmt):
        y = f32_at(address, count)
        limit = np.float32(threshold)
        if np.float64(limit) > threshold:  # rounded up: a value between the two is above the threshold
            limit = np.nextafter(limit, np.float32(0))
        for i in range(count):
            above |= not (abs(y[i]) <= limit)
    elif _ITEM_BYTES[fmt] == 4:
        z = i32_at(address, count)
        most = int64(min(threshold, 2.0**62))
        for i in range(count):
            above |= (z[i] > most) | (z[i] < -most)
    else:
        w = i64_at(address, count)
        most = int64(min(threshold, 2.0**62))
        for i in range(count):
            above |= (w[i] > most) | (w[i] < -most)
    return not above


@kernel
def is_clear(address: Address, size: int) -> bool:
    """Whether `size` bytes at `address`, a multiple of 4, are zero."""
    longs = u64_at(address, size // 8)
    bits = np.uint64(0)
    for i in range(size // 8):
        bits |= longs[i]
    if size & 4:
        bits |= np.uint64(u32_at(address, size // 4)[size // 4 - 1])
    return bool(bits == 0)


@kernel(forceinline=True)
def block_of(task: Any, stream: int, column: int, entry: int) -> tuple[Any, Any, Any]:
    """(source address, target address, elements) of a block; no elements past the tensor's end."""
    size = task.per_chunk // task.columns
    start = ((stream + task.chunks * entry) * task.columns + column) * size
    offset = np.uint64(start * _ITEM_BYTES[task.fmt])
    return task.source + offset, task.target + offset, max(min(size, task.numel - start), 0)


@kernel
def _scan(task: Any) -> None:
    """Scan one more entry of all streams: store which of its blocks are nonzero on this rank in `task.non_zero`, in
    tensor order. Blocks that are zero are set to zero in the target."""
    size, item = task.per_chunk // task.columns, _ITEM_BYTES[task.fmt]
    first = task.scanned * task.chunks * task.columns
    last = min(first + task.chunks * task.columns, -(-task.numel // size))
    non_zero = u8_at(task.non_zero, last)
    for block in range(first, last):
        offset = np.uint64(block * size * item)
        count = min(size, task.numel - block * size)
        clear = is_clear(task.source + offset, count * item)
        non_zero[block] = not clear and not is_zero(task.fmt, task.source + offset, count, task.threshold)
        if not non_zero[block] and not (clear and task.source == task.target):  # minus zero, or below the threshold
            u8_at(task.target + offset, count * item)[:] = 0
    task.scanned += 1


@kernel
def find_next(task: Any, stream: int, column: int, entry: int) -> int:
    """The first entry from `entry` on whose block is nonzero on this rank, or NO_ENTRY."""
    blocks = -(-task.numel // (task.per_chunk // task.columns))
    non_zero, step = u8_at(task.non_zero, blocks), task.chunks * task.columns
    block = stream * task.columns + column + step * entry
    while block < blocks:
        if entry == task.scanned:
            _scan(task)
        if non_zero[block]:
            return entry
        entry, block = entry + 1, block + step
    return NO_ENTRY


@kernel
def _look_for(task: Any, state: np.ndarray, stream: int, column: int, entry: int) -> None:
    """Set `mine` to the next nonzero entry from `entry` on."""
    mine = find_next(task, stream, column, entry)
    state[MINE, column] = mine
    if mine != NO_ENTRY:
        source, _, count = block_of(task, stream, column, mine)
        state[NEED, column] = fixedpoint.need_of(task.fmt, source, count, False)


@kernel
def open_stream(task: Any, state: np.ndarray, stream: int) -> None:
    """Initialize the state of a stream before its first round."""
    for column in range(task.columns):
        state[AT, column] = NO_ENTRY
        state[CLASSED, column] = 0
        _look_for(task, state, stream, column, 0)


@kernel
def build(identity: Any, task: Any, state: np.ndarray, stream: int, seq: int, row: Address) -> Any:
    """Write the contribution of a stream's current round at address `row`; returns its length. `mine` advances past the
    entries that are sent."""
    fmt, columns = task.fmt, task.columns
    header = u8_at(row, _HEADER + _WORD * columns)
    values = row + np.uint64(_HEADER + _WORD * columns)
    wire, lane_bytes = _WIRES[fmt], _LANE_BYTES[fmt]
    lanes = task.per_chunk // columns * _LANES[fmt]
    has_data = False
    for column in range(columns):
        has_data |= state[AT, column] != NO_ENTRY and state[AT, column] == state[MINE, column]
    size = wire_format.SPARSE
    length = _HEADER + _WORD * columns
    if has_data:
        size |= full_size_code(identity.payload)
        length += identity.payload
    elif identity.padded and identity.payload == 1024:
        size = wire_format.PADDED
        length += wire_format.PADDING_BYTES

    for column in range(columns):
        lanes_at = values + np.uint64(column * lanes * lane_bytes)
        at = state[AT, column]
        if at != NO_ENTRY and at == state[MINE, column]:
            source, _, count = block_of(task, stream, column, at)
            if state[CODE, column] == CODE_UNKNOWN:
                fixedpoint.classify(fmt, source, count, lanes_at, lanes)
                state[NEED, column] = fixedpoint.need_of(fmt, source, count, True)
            else:
                used = fixedpoint.canonical(state[CODE, column], fmt)
                fixedpoint.encode(
                    fmt, source, count, lanes_at, lanes, used, identity.headroom[wire], state[CLASSED, column] != 0
                )
                _look_for(task, state, stream, column, at + 1)
        elif has_data:
            u8_at(lanes_at, lanes * lane_bytes)[:] = 0
        word = int64(NO_WORD)
        if state[MINE, column] != NO_ENTRY:
            word = state[MINE, column] << 8 | (CODE_UNKNOWN - state[NEED, column])
        put_be32(header, _HEADER + _WORD * column, word)
    if has_data:
        used_bytes = columns * lanes * lane_bytes
        u8_at(values + np.uint64(used_bytes), identity.payload - used_bytes)[:] = 0

    header[0] = ((wire_format.CONTRIBUTION | wire) << 4) | size
    header[1] = columns
    put_be32(header, 2, seq)
    put_be16(header, 6, identity.job_tag)
    header[8] = 0
    header[9] = fmt
    return length


@kernel
def is_result(data: np.ndarray, length: int, identity: Any) -> bool:
    """Whether the bytes have the format of a sparse or an addressed result of the worker's job."""
    if length < _HEADER + _WORD or not wire_format.RESULT <= data[0] >> 4 < wire_format.WAIT:
        return False
    size, columns = data[0] & 7, int64(data[1])
    if columns == wire_format.ADDRESSED and length == _HEADER + _WORD:  # it may be truncated, whatever its size was
        return True
    payload = identity.payload
    if columns == wire_format.ADDRESSED and size == wire_format.SPARSE | wire_format.LARGE:
        return bool(length <= _HEADER + _WORD + wire_format.CODES_BYTES + identity.large)
    columns = max(columns, int64(1))
    if columns != 1 and columns != 2 and columns != 4 and columns != 8:
        return False
    rest = length - _HEADER - _WORD * columns
    full = wire_format.SPARSE | full_size_code(payload)
    return (size == wire_format.SPARSE and rest == 0) or (size == full and rest == payload)


@kernel
def take(
    identity: Any, task: Any, state: np.ndarray, classes: np.ndarray, stream: int, address: Address, length: int
) -> int:
    """Process the result of a stream's round, which has a valid format: sums into the target, words into the state.
    Returns MORE if another round follows, DONE, or an error.

    `classes` uint32[>= elements of a packet] stores the counts of a CLASSIFY round.
    """
    fmt, columns = task.fmt, task.columns
    data = u8_at(address, _HEADER + _WORD * columns)
    if data[1] != columns or data[9] & wire_format.FLAG_MIXED:
        return MIXED
    if data[9] & wire_format.FLAG_OVERFLOW:
        return OVERFLOWED
    has_data = length > _HEADER + _WORD * columns
    words = u32_at(address + np.uint64(_HEADER), columns)
    values = address + np.uint64(_HEADER + _WORD * columns)
    block = task.per_chunk // columns
    wire = _WIRES[fmt]
    done = True
    for column in range(columns):
        at, code = state[AT, column], state[CODE, column]
        _, target, count = block_of(task, stream, column, at if at != NO_ENTRY else 0)
        lanes_at = values + np.uint64(column * block * _LANES[fmt] * _LANE_BYTES[fmt])
        earliest = int64(0)
        if at != NO_ENTRY:
            if not has_data:
                return DISAGREE
            counts = classes[column * block : (column + 1) * block]
            earliest = at + 1
            if code == CODE_UNKNOWN:
                fixedpoint.keep_classes(fmt, lanes_at, count, counts)
                state[CLASSED, column] = 1
                earliest = at
            else:
                used, headroom = fixedpoint.canonical(code, fmt), identity.headroom[wire]
                task.misfits += fixedpoint.decode(fmt, lanes_at, target, count, used, headroom, task.divisor)
                if state[CLASSED, column]:
                    fixedpoint.apply_classes(fmt, counts, target, count)
                    state[CLASSED, column] = 0
        word = int64(bswap32(words[column]))
        entry = word >> 8
        state[AT, column], state[CODE, column] = entry, CODE_UNKNOWN - (word & 0xFF)
        if entry == NO_ENTRY:
            if state[MINE, column] != NO_ENTRY or state[CLASSED, column]:
                return DISAGREE
            continue
        done = False
        _, _, count = block_of(task, stream, column, entry)
        if entry < earliest or entry > state[MINE, column] or count == 0 or (state[CLASSED, column] and entry != at):
            return DISAGREE
        if entry == state[MINE, column] and state[CODE, column] < state[NEED, column]:
            return LATE
    return DONE if done else MORE
