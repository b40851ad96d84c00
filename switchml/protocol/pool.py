"""The slots: what an aggregator does with one packet of one worker.

Two rules, one for each protocol of docs/protocol.md (sections 1 and 3; 8 for sparse packets), as compiled kernels over
plain arrays. They know no socket, no clock and no other job: the software aggregator, the packet-level emulator and the
tests call the same functions. `Pool` and `PoolV1` own the arrays of one job and offer the kernels for one packet at a
time.

A result packet lives, ready to send, at the end of the row where its sums were made. Rows without slack, one version
of all slots before the other, put the results of consecutive slots next to each other: they travel as one piece. Sums
stay big-endian; adding swaps bytes on the fly, which costs less than copying later.
"""

from typing import NamedTuple

import numpy as np

from switchml.counters import COUNTERS
from switchml.errors import ConfigError
from switchml.protocol import packet as wire_format
from switchml.runtime.jit import kernel
from switchml.runtime.memory import (
    be16,
    be32,
    bswap32,
    copy_bytes,
    put_be16,
    put_be32,
    serial_difference,
    signed8,
    u8_at,
    u32_at,
    u64_at,
)

CONSUME, MULTICAST, UNICAST, WAITING, DROP = range(5)
ACTIONS = ("consume", "multicast", "unicast", "wait", "drop")
"""What the aggregator is to do; the reply of UNICAST and WAITING lies in the caller's reply buffer, that of MULTICAST
in the row."""

(
    ACCEPTED,
    COMPLETED,
    ANSWERED,
    DUPLICATES,
    WAITS,
    STALE,
    REFUSED_WINDOW,
    REFUSED_TAG,
    REFUSED_FORMAT,
    RECEIVED_PACKETS,
    RECEIVED_BYTES,
    SENT_PACKETS,
    SENT_BYTES,
    RETRANSMISSIONS,
    OVERFLOWS,
    MIXED,
) = range(len(COUNTERS))

JOB = np.dtype(
    [("workers", "i8"), ("slots", "i8"), ("payload", "i8"), ("wire", "i8"), ("tag", "i8"), ("isn", "i8")], align=True
)
"""What a rule must know of a job; one record."""

SLOT = np.dtype(
    [
        ("seq", "i8"),
        ("count", "i4"),
        ("need", "i2"),
        ("ahead", "i2"),
        ("used", "i2"),
        ("flags", "i2"),
        ("form", "i2"),
        ("data", "i2"),
    ],
    align=True,
)
"""One version of one v2 slot; version v of slot i is row v*S + i. `form`: wire + 16 * columns (0: dense). `data`: some
rank has sent lanes."""

SLOT_V1 = np.dtype([("bitmap", "u4"), ("count", "i4"), ("e0", "i2"), ("e1", "i2")], align=True)
"""One set of one v1 slot, numbered as above."""

_HEADER = wire_format.HEADER_BYTES
_BITMAP = wire_format.BITMAP_BYTES
_WAIT_SIZE = _HEADER + _BITMAP
_WORD = wire_format.WORD_BYTES


@kernel
def add_int32(sums, values, lanes):
    """sums += values over big-endian int32 at two addresses; wraps. Returns 1 if a lane overflowed, else 0."""
    a, b = u32_at(sums, lanes), u32_at(values, lanes)
    overflow = np.uint32(0)
    for i in range(lanes):
        x, y = bswap32(a[i]), bswap32(b[i])
        total = np.uint32(x + y)
        overflow |= np.uint32((x ^ total) & (y ^ total))
        a[i] = bswap32(total)
    return np.int64(overflow >> np.uint32(31))


_TOP16, _LOW16, _BYTE16 = np.uint64(0x8000800080008000), np.uint64(0x7FFF7FFF7FFF7FFF), np.uint64(0x00FF00FF00FF00FF)
_TOP8, _LOW8 = np.uint64(0x8080808080808080), np.uint64(0x7F7F7F7F7F7F7F7F)
_EIGHT = np.uint64(8)


@kernel(inline=True)
def _swap16(word):
    """The bytes of four 16-bit lanes swapped."""
    return ((word & _BYTE16) << _EIGHT) | ((word >> _EIGHT) & _BYTE16)


@kernel
def add_int16(sums, values, lanes):
    """The same for big-endian int16; `lanes` is a multiple of 4. Four lanes are added in one word: all bits but the top
    ones, so that no carry leaves a lane, then the top ones without carry."""
    a, b = u64_at(sums, lanes // 4), u64_at(values, lanes // 4)
    overflow = np.uint64(0)
    for i in range(lanes // 4):
        x, y = _swap16(a[i]), _swap16(b[i])
        total = ((x & _LOW16) + (y & _LOW16)) ^ ((x ^ y) & _TOP16)
        overflow |= (x ^ total) & (y ^ total)
        a[i] = _swap16(total)
    return np.int64(overflow & _TOP16 != 0)


@kernel
def add_int8(sums, values, lanes):
    """The same for int8; `lanes` is a multiple of 8."""
    a, b = u64_at(sums, lanes // 8), u64_at(values, lanes // 8)
    overflow = np.uint64(0)
    for i in range(lanes // 8):
        x, y = a[i], b[i]
        total = ((x & _LOW8) + (y & _LOW8)) ^ ((x ^ y) & _TOP8)
        overflow |= (x ^ total) & (y ^ total)
        a[i] = total
    return np.int64(overflow & _TOP8 != 0)


@kernel(inline=True)
def result_at(rows, row, payload):
    """Address of the result packet in a row: its end."""
    return rows.ctypes.data + np.uint64((row + 1) * rows.shape[1] - _HEADER - payload)


@kernel(forceinline=True)
def _store(kept, fresh, payload):
    """Copy a payload. (In words: a slice assignment of bytes would go one by one.)"""
    a, b = u32_at(kept, payload // 4), u32_at(fresh, payload // 4)
    for i in range(payload // 4):
        a[i] = b[i]


@kernel(forceinline=True)
def _add(wire, sums, values, payload):
    if wire == wire_format.WIRE_INT32:
        return add_int32(sums, values, payload // 4)
    if wire == wire_format.WIRE_INT16:
        return add_int16(sums, values, payload // 2)
    return add_int8(sums, values, payload)


@kernel
def reset_slots(job, slots, seen):
    """Slots as a job finds them at its start (docs/protocol.md, section 3). `slots` SLOT[2S], `seen` uint64[2S, 4]."""
    count = job.slots
    for i in range(count):
        for version in range(2):
            slot = slots[version * count + i]
            slot.seq = (job.isn + i - (2 - version) * count) & 0xFFFFFFFF
            slot.count = job.workers
            slot.need = slot.ahead = slot.used = wire_format.CODE_ZERO
            slot.flags = slot.form = slot.data = 0
    seen[:] = 0


@kernel
def _write_header(row, kind, size, r, ahead, seq, tag, need, last):
    row[0] = (kind << 4) | (wire_format.R_FLAG if r else 0) | size
    row[1] = ahead & 0xFF
    put_be32(row, 2, seq)
    put_be16(row, 6, tag)
    row[8] = need & 0xFF
    row[9] = last & 0xFF


@kernel(inline=True)
def _size_code(payload):
    return 3 if payload == 1024 else 1


@kernel
def _sparse_data(job, data, length):
    """Bytes of lanes in a sparse packet; -1 if its size, columns and length don't fit each other and the job."""
    size, columns = data[0] & 7, data[1]
    if columns != 1 and columns != 2 and columns != 4 and columns != 8:
        return -1
    rest = length - _HEADER - _WORD * np.int64(columns)
    if size == wire_format.SPARSE | _size_code(job.payload):
        return job.payload if rest == job.payload else -1
    if size == wire_format.SPARSE:
        return 0 if rest == 0 else -1
    fits = size == wire_format.PADDED and job.payload == 1024 and rest == wire_format.PADDING_BYTES
    return 0 if fits else -1


@kernel
def _least_words(kept, fresh, columns):
    """The lower of each pair of big-endian words at two addresses, in `kept`."""
    a, b = u32_at(kept, columns), u32_at(fresh, columns)
    for i in range(columns):
        if bswap32(b[i]) < bswap32(a[i]):
            a[i] = b[i]


@kernel(forceinline=True)
def result_of(job, slots, rows, wide, row):
    """(address, length) of the result packet in a row."""
    slot = slots[row]
    columns = slot.form >> 4
    if columns == 0:
        return result_at(rows, row, job.payload), _HEADER + job.payload
    before = _HEADER + _WORD * columns
    return result_at(wide, row, job.payload + _WORD * columns), before + (job.payload if slot.data else 0)


@kernel
def _write_wait(job, seen, mine, reply, seq):
    """The wait packet for a round in which the ranks of `seen` (uint64[4]) have contributed."""
    mine[WAITS] += 1
    _write_header(reply, wire_format.WAIT, 0, False, 0, seq, job.tag, 0, 0)
    for i in range(_BITMAP):
        reply[_HEADER + i] = 0
    for r in range(job.workers):
        if seen[r >> 6] & (np.uint64(1) << np.uint64(r & 63)) == 0:
            reply[_HEADER + (r >> 3)] |= 1 << (r & 7)


@kernel
def ask_v2(job, slots, seen, counters, reply, rank, seq):
    """A rank asks about a round that it has contributed to, without sending its packet again: WAITING, with the wait
    packet in `reply`, if the round is open, else DROP."""
    mine = counters[rank]
    row = seq & (2 * job.slots - 1)
    contributed = seen[row, rank >> 6] & (np.uint64(1) << np.uint64(rank & 63)) != 0
    if slots[row].seq != seq or not contributed or slots[row].count == job.workers:
        return DROP
    mine[DUPLICATES] += 1
    _write_wait(job, seen[row], mine, reply, seq)
    return WAITING


@kernel(forceinline=True)
def receive_v2(job, slots, seen, rows, wide, counters, reply, rank, address, length):
    """One datagram of `rank` at `address`, under the rule of section 3, and of section 8 if it is sparse.

    `job` JOB record, `slots` SLOT[2S], `seen` uint64[2S, 4], `rows` uint8[2S, k >= 10 + payload], `wide` uint8[2S, k >=
    42 + payload] for sparse rounds (may be `rows`), `counters` int64[n, len(COUNTERS)], `reply` uint8[>= 1066]. Returns
    (action, row): a MULTICAST sends the row's `result_of`; UNICAST as many bytes of `reply`, WAITING a wait packet
    there.
    """
    mine = counters[rank]
    mine[RECEIVED_PACKETS] += 1
    mine[RECEIVED_BYTES] += length
    data = u8_at(address, max(length, 1))
    wire = (data[0] >> 4) - wire_format.CONTRIBUTION
    columns, got = 0, np.int64(-1)
    if data[0] & wire_format.SPARSE and length > _HEADER:
        columns, got = np.int64(data[1]), _sparse_data(job, data, length)
    elif length == _HEADER + job.payload and data[0] & 7 == _size_code(job.payload):
        got = job.payload
    if got < 0 or (wire != job.wire and wire != wire_format.WIRE_INT32):
        mine[REFUSED_FORMAT] += 1
        return DROP, 0
    if be16(data, 6) != job.tag:
        mine[REFUSED_TAG] += 1
        return DROP, 0
    retransmission = (data[0] & wire_format.R_FLAG) != 0
    if retransmission:
        mine[RETRANSMISSIONS] += 1

    seq = be32(data, 2)
    row = seq & (2 * job.slots - 1)  # version times S, plus the slot
    slot, other = slots[row], slots[row ^ job.slots]
    word, bit = rank >> 6, np.uint64(1) << np.uint64(rank & 63)
    form = wire | columns << 4
    words = np.uint64(address) + np.uint64(_HEADER)
    values = words + np.uint64(_WORD * columns)
    sums = result_at(wide if columns else rows, row, job.payload) + np.uint64(_HEADER)
    distance = serial_difference(seq, slot.seq)

    if distance < 0:
        mine[STALE] += 1
        return DROP, row
    if distance == 2 * job.slots and serial_difference(seq, other.seq) == job.slots and other.count == job.workers:
        mine[ACCEPTED] += 1
        slot.seq = seq
        slot.count = 1
        slot.flags = 0
        slot.form, slot.data = form, got > 0
        slot.ahead, slot.need, slot.used = signed8(data[1]), signed8(data[8]), signed8(data[9])
        seen[row, :] = 0
        seen[row, word] = bit
        if columns:
            _store(sums - np.uint64(_WORD * columns), words, _WORD * columns)
        if got:
            _store(sums, values, job.payload)
    elif distance != 0 or (seen[row, word] & bit == 0 and slot.count == job.workers):
        mine[REFUSED_WINDOW] += 1
        return DROP, row
    elif seen[row, word] & bit == 0:
        mine[ACCEPTED] += 1
        slot.count += 1
        seen[row, word] |= bit
        slot.ahead = max(slot.ahead, signed8(data[1]))
        slot.need = max(slot.need, signed8(data[8]))
        if slot.used != signed8(data[9]) or slot.form != form:
            slot.flags |= wire_format.FLAG_MIXED
        if slot.form == form:
            if columns:
                _least_words(sums - np.uint64(_WORD * columns), words, columns)
            if got and not slot.data:
                slot.data = 1
                _store(sums, values, job.payload)
            elif got and _add(wire, sums, values, job.payload):
                slot.flags |= wire_format.FLAG_OVERFLOW
    elif slot.count == job.workers:
        mine[ANSWERED] += 1
        result, size = result_of(job, slots, rows, wide, row)
        copy_bytes(reply.ctypes.data, result, size)
        reply[0] |= wire_format.R_FLAG
        return UNICAST, row
    else:
        mine[DUPLICATES] += 1
        if not retransmission:
            return DROP, row
        _write_wait(job, seen[row], mine, reply, seq)
        return WAITING, row

    if slot.count < job.workers:
        return CONSUME, row
    mine[COMPLETED] += 1
    if slot.flags & wire_format.FLAG_OVERFLOW:
        mine[OVERFLOWS] += 1
    if slot.flags & wire_format.FLAG_MIXED:
        mine[MIXED] += 1
    size, ahead, need = _size_code(job.payload), slot.ahead, slot.need
    if slot.form >> 4:
        size, ahead, need = wire_format.SPARSE | (size if slot.data else 0), slot.form >> 4, 0
    result, _ = result_of(job, slots, rows, wide, row)
    kind = wire_format.RESULT | (slot.form & 3)
    _write_header(u8_at(result, _HEADER), kind, size, False, ahead, seq, job.tag, need, slot.flags)
    return MULTICAST, row


@kernel
def receive_v1(job, slots, rows, counters, reply, rank, address, length):
    """One datagram of `rank`, under the rule of section 1. `slots` SLOT_V1[16384]; the rest as in `receive_v2`.

    A packet may have 256 or 1024 bytes of payload whatever the job says: the size code decides, as in the reference
    switch.
    """
    mine = counters[rank]
    mine[RECEIVED_PACKETS] += 1
    mine[RECEIVED_BYTES] += length
    data = u8_at(address, max(length, 1))
    size = data[0] & 7
    payload = 256 if size == 1 else 1024 if size == 3 else -1
    if payload < 0 or length != _HEADER + payload or data[0] >> 4 != wire_format.V1_TYPE:
        mine[REFUSED_FORMAT] += 1
        return DROP, 0

    pool_index = be16(data, 6)
    version, index = pool_index >> 15, pool_index & wire_format.V1_SLOT_MASK
    if index >= wire_format.V1_SLOTS:
        mine[REFUSED_WINDOW] += 1
        return DROP, 0
    row = version * wire_format.V1_SLOTS + index
    slot, other = slots[row], slots[row ^ wire_format.V1_SLOTS]
    bit = np.uint32(1) << np.uint32(rank)
    first, seen = slot.bitmap == 0, (slot.bitmap & bit) != 0
    slot.bitmap |= bit
    other.bitmap &= ~bit
    result_address = result_at(rows, row, wire_format.MAX_PACKET_BYTES - _HEADER)
    result = u8_at(result_address, _HEADER + payload)

    if seen:
        if slot.count != 0:
            mine[DUPLICATES] += 1
            return DROP, row
        mine[ANSWERED] += 1
        for i in range(_HEADER + payload):
            reply[i] = result[i]
        _label_v1(reply, data, slot.e0, slot.e1)
        return UNICAST, row

    mine[ACCEPTED] += 1
    slot.count = job.workers - 1 if slot.count == 0 else slot.count - 1
    e0, e1 = signed8(data[8]), signed8(data[9])
    payload_at = result_address + np.uint64(_HEADER)
    if first:
        slot.e0, slot.e1 = e0, e1
        _store(payload_at, address + _HEADER, payload)
    else:
        slot.e0, slot.e1 = max(slot.e0, e0), max(slot.e1, e1)
        add_int32(payload_at, address + _HEADER, payload // 4)
    if slot.count != 0:
        return CONSUME, row
    mine[COMPLETED] += 1
    _label_v1(result, data, slot.e0, slot.e1)
    return MULTICAST, row


@kernel
def _label_v1(row, request, e0, e1):
    """Ten bytes of a v1 reply: job, tsi and size of the packet that triggered it, pool index without bit 14."""
    row[0] = (wire_format.V1_TYPE << 4) | (request[0] & 7)
    for i in range(1, 8):
        row[i] = request[i]
    row[6] &= 0xBF
    row[8], row[9] = e0 & 0xFF, e1 & 0xFF


class Outcome(NamedTuple):
    """What came of one packet: an action of ACTIONS, the counter that moved (v2; "" in v1), the reply to send or
    None."""

    action: str
    counter: str
    packet: bytes | None


class Pool:
    """The slots of one v2 job: n `workers` (1-256), `slots` a power of two, `payload_bytes` 256 or 1024, `wire` as in
    packet.py."""

    def __init__(
        self,
        *,
        workers: int,
        slots: int,
        payload_bytes: int = 1024,
        wire: int = 0,
        tag: int = 0,
        isn: int = 0,
        rows: np.ndarray | None = None,
    ):
        if not 1 <= workers <= wire_format.V2_MAX_WORKERS:
            raise ConfigError(f"{workers} workers: expected 1 to {wire_format.V2_MAX_WORKERS}")
        wire_format.check_slots(slots)
        if payload_bytes not in wire_format.SIZE_CODE_OF or wire not in wire_format.WIRE_DTYPES:
            raise ConfigError(f"payload of {payload_bytes} bytes, wire {wire}: expected 256 or 1024, and 0 to 2")
        if isn % (2 * slots):
            raise ConfigError(f"initial sequence number {isn}: expected a multiple of {2 * slots}")
        self.job = np.zeros(1, JOB)
        self.job[0] = (workers, slots, payload_bytes, wire, tag, isn)
        self.slots = np.zeros(2 * slots, SLOT)
        self.seen = np.zeros((2 * slots, 4), np.uint64)
        self.rows, self.wide = rows, rows
        if rows is None:
            self.rows = np.zeros((2 * slots, _HEADER + payload_bytes), np.uint8)
            # Sparse packets are longer. Memory that no sparse packet ever touches is never there.
            self.wide = np.zeros((2 * slots, wire_format.MAX_SPARSE_BYTES), np.uint8)
        self.counters = np.zeros((workers, len(COUNTERS)), np.int64)
        self._reply = np.zeros(wire_format.MAX_SPARSE_BYTES, np.uint8)
        reset_slots(self.job[0], self.slots, self.seen)

    @property
    def first_result(self) -> int:
        """Address of row 0's result packet; the others follow a row apart."""
        return result_at(self.rows, 0, int(self.job[0]["payload"]))

    def receive(self, rank: int, data: bytes) -> Outcome:
        """Apply one packet of `rank`."""
        before = self.counters[rank].copy()
        buffer = np.frombuffer(data or b"\0", np.uint8)
        action, row = receive_v2(
            self.job[0],
            self.slots,
            self.seen,
            self.rows,
            self.wide,
            self.counters,
            self._reply,
            rank,
            buffer.ctypes.data,
            len(data),
        )
        moved = np.flatnonzero(self.counters[rank] != before)
        verdicts = [
            COUNTERS[i]
            for i in moved
            if i in (ACCEPTED, ANSWERED, DUPLICATES, STALE, REFUSED_WINDOW, REFUSED_TAG, REFUSED_FORMAT)
        ]
        address, size = result_of(self.job[0], self.slots, self.rows, self.wide, row)
        if action == WAITING:
            size = _WAIT_SIZE
        return Outcome(ACTIONS[action], verdicts[0], _reply_bytes(action, u8_at(address, size), self._reply, size))


class PoolV1:
    """The 8192 slots x 2 sets of one v1 session with n `workers` (1-32)."""

    def __init__(self, *, workers: int, payload_bytes: int = 1024):
        if not 1 <= workers <= wire_format.V1_MAX_WORKERS:
            raise ConfigError(f"{workers} workers: expected 1 to {wire_format.V1_MAX_WORKERS} in protocol v1")
        rows = 2 * wire_format.V1_SLOTS
        self.job = np.zeros(1, JOB)
        self.job[0] = (workers, wire_format.V1_SLOTS, payload_bytes, 0, 0, 0)
        self.slots = np.zeros(rows, SLOT_V1)
        self.rows = self.wide = np.zeros((rows, wire_format.MAX_PACKET_BYTES), np.uint8)
        self.counters = np.zeros((workers, len(COUNTERS)), np.int64)
        self._reply = np.zeros(wire_format.MAX_PACKET_BYTES, np.uint8)

    @property
    def first_result(self) -> int:
        """Address of row 0's result packet; the others follow a row apart."""
        return self.rows.ctypes.data

    def receive(self, rank: int, data: bytes) -> Outcome:
        """Apply one packet of `rank`."""
        buffer = np.frombuffer(data or b"\0", np.uint8)
        action, row = receive_v1(
            self.job[0], self.slots, self.rows, self.counters, self._reply, rank, buffer.ctypes.data, len(data)
        )
        return Outcome(ACTIONS[action], "", _reply_bytes(action, self.rows[row], self._reply, len(data)))


def _reply_bytes(action: int, row: np.ndarray, reply: np.ndarray, size: int) -> bytes | None:
    if action == MULTICAST:
        return row[:size].tobytes()
    if action in (UNICAST, WAITING):
        return reply[:size].tobytes()
    return None
