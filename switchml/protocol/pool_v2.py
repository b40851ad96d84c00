"""An aggregator's processing of a packet of protocol v2 (docs/protocol.md, section 3; section 8 for sparse packets,
section 11 for addressed ones, section 13 for rounds that end without some ranks).

Kernels over a pool's State. They are independent of sockets, clocks and other jobs: the software aggregator, the
packet-level emulator and the tests call the same functions. Comments with A cite the numbered steps of section 3.
"""

from typing import Any

import numpy as np

from switchml import counters
from switchml.protocol import halves
from switchml.protocol import packet as wire_format
from switchml.protocol.lanes import add, combine, full_size_code, keep_greatest_codes, keep_least_words, store
from switchml.protocol.pool_state import CONSUME, DROP, MULTICAST, UNICAST, WAITING, State, result_at
from switchml.runtime.jit import Address, int64, kernel
from switchml.runtime.memory import be16, be32, copy_bytes, put_be16, put_be32, serial_difference, signed8, u8_at

_HEADER = wire_format.HEADER_BYTES
_BITMAP = wire_format.BITMAP_BYTES
_WORD = wire_format.WORD_BYTES
_FIRST_BLOCK = _HEADER + wire_format.CODES_BYTES
_WORDS_SHIFT, _WORDS_MASK, _ADDRESSED, _OP_SHIFT, _OP_MASK, _LARGE = 4, 15, 1 << 8, 9, 15, 1 << 13
_BLOCKS = 1 << 14
"""`form` of a slot: lanes, words << _WORDS_SHIFT, _ADDRESSED, op << _OP_SHIFT, _LARGE, and _BLOCKS for a large packet
with one exponent per block."""


@kernel
def reset_slots(pool: State) -> None:
    """Initialize slots at the start of a job (docs/protocol.md, section 3)."""
    job = pool.job[0]
    count = job.slots
    for i in range(count):
        for version in range(2):
            slot = pool.slots[version * count + i]
            slot.seq = job.isn + i - (2 - version) * count
            slot.count = job.workers
            slot.need = slot.ahead = slot.used = wire_format.CODE_ZERO
            slot.flags = slot.form = slot.data = 0
    pool.seen[:] = 0
    job.absent[:] = 0


@kernel
def _write_header(
    row: np.ndarray, kind: int, size: int, r: bool, ahead: int, seq: int, job_tag: int, need: int, last: int
) -> None:
    row[0] = (kind << 4) | (wire_format.R_FLAG if r else 0) | size
    row[1] = ahead & 0xFF
    put_be32(row, 2, seq)
    put_be16(row, 6, job_tag)
    row[8] = need & 0xFF
    row[9] = last & 0xFF


@kernel(inline=True)
def _part_at(pool: State, row: int, rank: int) -> np.uint64:
    """Address of a rank's half-precision contribution to a row's round; for row 2S, of the buffer for sums."""
    job = pool.job[0]
    return pool.parts.ctypes.data + np.uint64((row * job.workers + rank) * pool.parts.shape[1])


@kernel(inline=True)
def _fits_large(job: Any, size: int) -> Any:
    """Whether `size` is a valid number of data bytes of a large packet."""
    return 0 <= size <= job.large and size & (wire_format.LARGE_STEP - 1) == 0


@kernel(inline=True)
def _op_of(slot: Any) -> Any:
    return (slot.form >> _OP_SHIFT) & _OP_MASK


@kernel(inline=True)
def _before(form: int) -> Any:
    """Bytes between the header and the data of a packet of this form."""
    codes = wire_format.CODES_BYTES if form & _BLOCKS else 0
    return _WORD * ((form >> _WORDS_SHIFT) & _WORDS_MASK) + codes


@kernel(inline=True)
def _max_data(job: Any, form: int) -> Any:
    """Maximum data bytes of a packet of this form, which determines the position of the preceding bytes in a row."""
    return job.large if form & _LARGE else job.payload


@kernel
def _sparse_data(pool: State, data: np.ndarray, length: int) -> Any:
    """Bytes of lanes in a sparse or addressed packet; -1 if its size, columns and length are inconsistent with each
    other or the job."""
    job, size, columns = pool.job[0], data[0] & 7, int64(data[1])
    if columns == wire_format.ADDRESSED:
        if length < _HEADER + _WORD or data[_HEADER] > wire_format.REACH_OTHERS:
            return -1
        op, rest = int64(data[_HEADER + 2]), length - _HEADER - _WORD
        if op & wire_format.IN_BLOCKS:
            op, rest = op ^ wire_format.IN_BLOCKS, rest - wire_format.CODES_BYTES
            if op != wire_format.OP_SUM or size != wire_format.SPARSE | wire_format.LARGE or not job.large:
                return -1
        is_large = job.large != 0 and size == wire_format.SPARSE | wire_format.LARGE
        if op != wire_format.OP_SUM and data[0] >> 4 != wire_format.CONTRIBUTION:
            return -1  # narrow lanes can only be summed
        # Half precision requires every rank's contribution.
        has_all = size == wire_format.SPARSE | full_size_code(job.payload) or (is_large and rest > 0)
        is_half = op >= wire_format.OP_SUM_FLOAT16
        if is_half and (op > wire_format.OP_MEAN_BFLOAT16 or not len(pool.parts) or not has_all):
            return -1
        if is_large:
            return rest if _fits_large(job, rest) else -1
        columns = int64(1)
    elif columns != 1 and columns != 2 and columns != 4 and columns != 8:
        return -1
    rest = length - _HEADER - _WORD * columns
    if size == wire_format.SPARSE | full_size_code(job.payload):
        return job.payload if rest == job.payload else -1
    if size == wire_format.SPARSE:
        return 0 if rest == 0 else -1
    is_padded = size == wire_format.PADDED and job.payload == 1024 and not job.large
    fits = is_padded and rest == wire_format.PADDING_BYTES
    return 0 if fits else -1


@kernel(forceinline=True)
def number_of(pool: State, seq: int) -> int:
    """The 64-bit number of the round whose low 32 bits a packet carries, which is near its row's."""
    row_number = pool.slots[seq & (2 * pool.job[0].slots - 1)].seq
    return int64(row_number + serial_difference(seq, row_number))


@kernel(forceinline=True)
def result_of(pool: State, row: int) -> tuple[np.uint64, Any]:
    """(address, length) of the result packet in a row."""
    slot = pool.slots[row]
    before, data = _before(slot.form), _max_data(pool.job[0], slot.form)
    has_words = (slot.form >> _WORDS_SHIFT) & _WORDS_MASK != 0
    return result_at(pool.wide if has_words else pool.rows, row, data + before), _HEADER + before + slot.data


@kernel(forceinline=True)
def receivers_of(pool: State, row: int) -> int:
    """Encoded receivers of the data of the result in a row: 256 * reach + root for an addressed round, all ranks (0)
    otherwise; plus the bytes that other ranks get beyond a header and a word, << 16."""
    form = pool.slots[row].form
    if form & _ADDRESSED == 0:
        return int64(wire_format.REACH_ALL << 8)
    result, _ = result_of(pool, row)
    word = u8_at(result + np.uint64(_HEADER), _WORD)
    return (int64(_before(form) - _WORD) << 16) | (int64(word[0]) << 8) | int64(word[1])


@kernel(forceinline=True)
def cut(size: int, receivers: int, rank: int) -> int:
    """Bytes of a result of `size` bytes that are sent to a rank: only its beginning if the rank gets no data."""
    reach = (receivers >> 8) & 0xFF
    gets_data = reach == wire_format.REACH_ALL or (reach == wire_format.REACH_ROOT) == (receivers & 0xFF == rank)
    return int64(size) if gets_data else int64(_HEADER + _WORD + (receivers >> 16))


@kernel
def size_for(pool: State, row: int, rank: int) -> Any:
    """Length of the result packet in a row as sent to a rank."""
    _, size = result_of(pool, row)
    return cut(size, receivers_of(pool, row), rank)


@kernel
def _same_call(word: Address, other: Address) -> bool:
    """Whether reach, root and op of two addressed packets are equal."""
    return (be32(u8_at(word, _WORD), 0) ^ be32(u8_at(other, _WORD), 0)) >> 8 == 0


@kernel
def _write_empty_wait(pool: State, rank: int, reply: np.ndarray, seq: int) -> None:
    """Write a wait packet that names no rank: the round is over, and its result no longer available (section 13)."""
    pool.counters[rank, counters.WAITS] += 1
    _write_header(reply, wire_format.WAIT, 0, False, 0, seq, pool.job[0].job_tag, 0, 0)
    for i in range(_BITMAP):
        reply[_HEADER + i] = 0


@kernel
def _write_wait(pool: State, row: int, rank: int, reply: np.ndarray, seq: int) -> None:
    """Write the wait packet for the round in a row: the ranks that have not contributed."""
    job, seen = pool.job[0], pool.seen[row]
    _write_empty_wait(pool, rank, reply, seq)
    for r in range(job.workers):
        if seen[r >> 6] & (np.uint64(1) << np.uint64(r & 63)) == 0:
            reply[_HEADER + (r >> 3)] |= 1 << (r & 7)


@kernel(inline=True)
def _is_seen(pool: State, row: int, rank: int) -> Any:
    """Whether a rank has contributed to the round in a row."""
    return pool.seen[row, rank >> 6] & (np.uint64(1) << np.uint64(rank & 63)) != 0


@kernel(inline=True)
def is_partial(pool: State, row: int) -> Any:
    """Whether the round in a row has ended without some ranks."""
    return pool.slots[row].flags & wire_format.FLAG_PARTIAL != 0


@kernel(inline=True)
def gets_result(pool: State, row: int, rank: int) -> Any:
    """Whether the multicast of the result in a row includes a rank: a rank that has not contributed gets it on
    request."""
    return not is_partial(pool, row) or _is_seen(pool, row, rank)


@kernel(inline=True)
def _missing(pool: State, row: int, word: int) -> Any:
    """Bitmap of the ranks 64 word … 64 word + 63 that have not contributed to the round in a row."""
    ranks = min(max(pool.job[0].workers - 64 * word, 0), 64)
    everybody = ~np.uint64(0) >> np.uint64(64 - ranks) if ranks else np.uint64(0)
    return everybody & ~pool.seen[row, word]


@kernel
def _end_without_absent(pool: State, row: int) -> None:
    """End an open round, of `count` ranks, if all others are absent; it is then complete, and PARTIAL. Only dense
    rounds can end without ranks."""
    job, slot = pool.job[0], pool.slots[row]
    if (slot.form >> _WORDS_SHIFT) & _WORDS_MASK:
        return
    for word in range(4):
        if _missing(pool, row, word) & ~job.absent[word]:
            return
    slot.ahead, slot.count = slot.count, job.workers
    slot.flags |= wire_format.FLAG_PARTIAL


@kernel
def _round_sums(pool: State, row: int, rank: int, values: Address, sums: Address) -> None:
    """Sum half precision for a complete round, to which `rank` contributed `values` last; writes zeros if it
    is MIXED."""
    job, slot = pool.job[0], pool.slots[row]
    if slot.flags & wire_format.FLAG_MIXED:
        nothing = u8_at(sums, slot.data)
        nothing[:] = 0
        return
    parts, stride, scratch = _part_at(pool, row, 0), pool.parts.shape[1], _part_at(pool, 2 * job.slots, 0)
    halves.add(_op_of(slot), parts, stride, job.workers, slot.data, rank, values, scratch, sums)


@kernel
def label(pool: State, rank: int, row: int, seq: int) -> None:
    """Write the header of the result of a complete round, which a packet of `rank` completed."""
    job, mine, slot = pool.job[0], pool.counters[rank], pool.slots[row]
    mine[counters.COMPLETED] += 1
    if slot.flags & wire_format.FLAG_OVERFLOW:
        mine[counters.OVERFLOW] += 1
    if slot.flags & wire_format.FLAG_MIXED:
        mine[counters.MIXED] += 1
    is_large = slot.form & _LARGE != 0
    size, ahead, need = wire_format.LARGE if is_large else full_size_code(job.payload), slot.ahead, slot.need
    if slot.form & _BLOCKS and not slot.form & _ADDRESSED:
        size = wire_format.BLOCKS
    if (slot.form >> _WORDS_SHIFT) & _WORDS_MASK:
        size = wire_format.SPARSE | (size if slot.data or is_large else 0)
        if slot.form & _ADDRESSED:
            ahead = wire_format.ADDRESSED
        else:
            ahead, need = (slot.form >> _WORDS_SHIFT) & _WORDS_MASK, 0
    result, _ = result_of(pool, row)
    kind = wire_format.RESULT | (slot.form & 3)
    _write_header(u8_at(result, _HEADER), kind, size, False, ahead, seq, job.job_tag, need, slot.flags)


@kernel
def _answer(pool: State, rank: int, row: int, reply: np.ndarray) -> int:
    """Copy the stored result for one rank; LATE if the rank has not contributed."""
    pool.counters[rank, counters.ANSWERED] += 1
    result, size = result_of(pool, row)
    copy_bytes(reply.ctypes.data, result, size)
    reply[0] |= wire_format.R_FLAG
    if not _is_seen(pool, row, rank):
        reply[_HEADER - 1] |= wire_format.FLAG_LATE
    return UNICAST


@kernel
def _expire(pool: State, reply: np.ndarray, rank: int, seq: int) -> tuple[int, int]:
    """Process an expiry (docs/protocol.md, section 13): the round ends without the missing ranks."""
    job, mine = pool.job[0], pool.counters[rank]
    row = seq & (2 * job.slots - 1)
    slot = pool.slots[row]
    distance, is_open, is_in = serial_difference(seq, slot.seq), slot.count < job.workers, _is_seen(pool, row, rank)
    if distance < 0:
        mine[counters.DUPLICATES] += 1
        _write_empty_wait(pool, rank, reply, seq)
        return WAITING, row
    if distance == 0 and not is_in and is_partial(pool, row):
        return _answer(pool, rank, row, reply), row
    if distance != 0 or not is_in:
        mine[counters.REFUSED_WINDOW] += 1
        return DROP, row
    if not is_open:
        mine[counters.DUPLICATES] += 1
        return DROP, row
    if (slot.form >> _WORDS_SHIFT) & _WORDS_MASK:
        mine[counters.DUPLICATES] += 1
        _write_wait(pool, row, rank, reply, seq)
        return WAITING, row
    mine[counters.ACCEPTED] += 1
    for word in range(4):
        job.absent[word] |= _missing(pool, row, word)
    _end_without_absent(pool, row)
    label(pool, rank, row, seq)
    return MULTICAST, row


@kernel
def query_v2(pool: State, reply: np.ndarray, rank: int, seq: int) -> int:
    """Process a rank's query about a round that it has contributed to, without its packet: WAITING, with the wait
    packet in `reply`, if the round is open, else DROP."""
    job = pool.job[0]
    row = seq & (2 * job.slots - 1)
    if (
        serial_difference(seq, pool.slots[row].seq) != 0
        or not _is_seen(pool, row, rank)
        or pool.slots[row].count == job.workers
    ):
        return DROP
    pool.counters[rank, counters.DUPLICATES] += 1
    _write_wait(pool, row, rank, reply, seq)
    return WAITING


@kernel(forceinline=True)
def receive_v2(pool: State, reply: np.ndarray, rank: int, address: Address, length: int) -> tuple[int, int]:
    """Process one datagram of `rank` at `address`: (action, row). `reply`: uint8[>= 1066].

    A MULTICAST sends the row's `result_of` (to each rank that `gets_result` its `size_for`); UNICAST as much of
    `reply`, WAITING a wait packet there.
    """
    job, mine, seen = pool.job[0], pool.counters[rank], pool.seen
    mine[counters.RECEIVED_PACKETS] += 1
    mine[counters.RECEIVED_BYTES] += length
    data = u8_at(address, max(length, 1))
    # A1. Refuse formats other than the job's.
    wire = (data[0] >> 4) - wire_format.CONTRIBUTION
    columns, data_bytes, op = int64(0), int64(-1), int64(wire_format.OP_SUM)
    form = int64(wire)
    if data[0] & wire_format.SPARSE and length > _HEADER:
        columns, data_bytes = int64(data[1]), _sparse_data(pool, data, length)
        if columns == wire_format.ADDRESSED and data_bytes >= 0:
            columns, op = int64(1), int64(data[_HEADER + 2])
            if op & wire_format.IN_BLOCKS:
                op ^= wire_format.IN_BLOCKS
                form |= _BLOCKS
            form |= _ADDRESSED | (op << _OP_SHIFT)
    elif length == _HEADER + job.payload and data[0] & 7 == full_size_code(job.payload):
        data_bytes = job.payload
    elif length > _HEADER and data[0] & 7 == wire_format.LARGE and _fits_large(job, length - _HEADER):
        data_bytes = length - _HEADER
    elif length > _FIRST_BLOCK and data[0] & 7 == wire_format.BLOCKS and _fits_large(job, length - _FIRST_BLOCK):
        data_bytes = length - _FIRST_BLOCK
        form |= _BLOCKS
    if job.large and (data[0] & 3 == wire_format.LARGE or form & _BLOCKS):
        form |= _LARGE
    is_half = op >= wire_format.OP_SUM_FLOAT16
    is_expiry = wire == wire_format.EXPIRY - wire_format.CONTRIBUTION and columns == 0
    if data_bytes < 0 or (wire != job.wire and wire != wire_format.WIRE_INT32 and not is_expiry):
        mine[counters.REFUSED_FORMAT] += 1
        return DROP, 0
    # A2. Refuse another job's tag.
    if be16(data, 6) != job.job_tag:
        mine[counters.REFUSED_TAG] += 1
        return DROP, 0
    retransmission = (data[0] & wire_format.R_FLAG) != 0
    if retransmission:
        mine[counters.RETRANSMISSIONS] += 1
    # A3. Find the slot's version, and the distance of the packet's round from the version's.
    seq = be32(data, 2)
    if is_expiry:
        return _expire(pool, reply, rank, seq)
    row = seq & (2 * job.slots - 1)  # version times S, plus the slot
    slot, other = pool.slots[row], pool.slots[row ^ job.slots]
    word, bit = rank >> 6, np.uint64(1) << np.uint64(rank & 63)
    form |= columns << _WORDS_SHIFT
    before = _before(form)
    words = np.uint64(address) + np.uint64(_HEADER)
    values = words + np.uint64(before)
    sums = result_at(pool.wide if columns else pool.rows, row, _max_data(job, form)) + np.uint64(_HEADER)
    distance = serial_difference(seq, slot.seq)
    # A4. Drop stale packets.
    if distance < 0:
        mine[counters.STALE] += 1
        return DROP, row
    # A5. The first contribution of the next round restarts the version, if the round between is complete.
    if distance == 2 * job.slots and serial_difference(seq, other.seq) == job.slots and other.count == job.workers:
        mine[counters.ACCEPTED] += 1
        slot.seq += distance
        slot.count = 1
        slot.flags = 0
        slot.form, slot.data = form, data_bytes
        slot.ahead, slot.need, slot.used = signed8(data[1]), signed8(data[8]), signed8(data[9])
        seen[row, :] = 0
        seen[row, word] = bit
        if before:
            store(sums - np.uint64(before), words, before)
        if data_bytes:
            store(_part_at(pool, row, rank) if is_half else sums, values, data_bytes)
    # A6. Refuse any other round, and unused slots; answer with the result if the round ended without this rank.
    elif distance != 0 or (seen[row, word] & bit == 0 and slot.count == job.workers):
        if distance == 0 and is_partial(pool, row):
            return _answer(pool, rank, row, reply), row
        mine[counters.REFUSED_WINDOW] += 1
        return DROP, row
    # A7. Add another rank's contribution.
    elif seen[row, word] & bit == 0:
        mine[counters.ACCEPTED] += 1
        slot.count += 1
        seen[row, word] |= bit
        slot.ahead = max(slot.ahead, signed8(data[1]))
        slot.need = max(slot.need, signed8(data[8]))
        alike = slot.form == form and (not form & _ADDRESSED or _same_call(sums - np.uint64(before), words))
        alike = alike and (not data_bytes or not slot.data or data_bytes == slot.data)
        if slot.used != signed8(data[9]) or not alike:
            slot.flags |= wire_format.FLAG_MIXED
        if alike:
            if columns:
                keep_least_words(sums - np.uint64(before), words, columns)
            if form & _BLOCKS:
                codes = np.uint64(wire_format.CODES_BYTES)
                if not keep_greatest_codes(sums - codes, values - codes):
                    slot.flags |= wire_format.FLAG_MIXED
            if is_half:
                if slot.count < job.workers:  # the last contribution is added directly from its packet
                    store(_part_at(pool, row, rank), values, data_bytes)
            elif data_bytes and not slot.data:
                slot.data = data_bytes
                store(sums, values, data_bytes)
            elif data_bytes and form & _ADDRESSED:
                if combine(op, wire, sums, values, data_bytes):
                    slot.flags |= wire_format.FLAG_OVERFLOW
            elif data_bytes and add(wire, sums, values, data_bytes):
                slot.flags |= wire_format.FLAG_OVERFLOW
    # A8. Answer a repeated contribution to a complete round with the result.
    elif slot.count == job.workers:
        return _answer(pool, rank, row, reply), row
    # A9. Drop a repeated contribution to an open round; answer a retransmission with a wait packet.
    else:
        mine[counters.DUPLICATES] += 1
        if not retransmission:
            return DROP, row
        _write_wait(pool, row, rank, reply, seq)
        return WAITING, row
    # A10. The last contribution completes the round, as does that of the last rank that is not absent: write its
    # result's header.
    absent = job.absent
    if absent[0] | absent[1] | absent[2] | absent[3]:
        absent[word] &= ~bit
        if slot.count < job.workers:
            _end_without_absent(pool, row)
    if slot.count < job.workers:
        return CONSUME, row
    if _op_of(slot) >= wire_format.OP_SUM_FLOAT16:
        _round_sums(pool, row, rank, np.uint64(values), sums)
    label(pool, rank, row, seq)
    return MULTICAST, row
