"""Slots shared by all jobs in order of arrival, and the aggregator behind them (docs/protocol.md, section 14).

Kernels without a socket or a clock: `take` is the rule of the switch, whose slots all jobs share; `receive_partial`
that of the aggregator behind, which has slots for every round of every job and receives the switch's sums and the
packets that it forwards. Comments with B cite the numbered steps of section 14.
"""

from typing import Any, NamedTuple

import numpy as np

from switchml import counters
from switchml.errors import ConfigError
from switchml.protocol import packet as wire_format
from switchml.protocol.lanes import add, full_size_code, store
from switchml.protocol.pool_state import CONSUME, DROP, MULTICAST, State
from switchml.protocol.pool_v2 import label, receive_v2
from switchml.runtime.jit import Address, int64, kernel
from switchml.runtime.memory import be32, copy_bytes, record, serial_difference, signed8, u8_at, u64_at

_HEADER = wire_format.HEADER_BYTES
_BITMAP = wire_format.BITMAP_BYTES
_FLAGS = wire_format.FLAG_MIXED | wire_format.FLAG_OVERFLOW
TRAILER_BYTES = _BITMAP + 2
"""Size of the trailer of each packet between switch and aggregator: the ranks that it is from, or for; flags; 0."""
PARTIAL_BYTES = wire_format.MAX_SPARSE_BYTES + TRAILER_BYTES
NOTES_A_SLOT = 16
HOLD_NS = 2_000_000
"""Time in ns after which a round loses its slot to another round."""
STALE_NS = 10_000_000_000
"""Maximum age of a sum in ns. Sequence numbers repeat after 2^32 rounds, which take longer."""
_HASH, _NOTE_HASH = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
"""Odd multipliers (Knuth's, and xxHash's second prime) of hashes; the top half of the product is the hash."""

COUNTS = ("summed", "ended", "taken", "noted", "resent", "other", "evicted", "expired")
"""Counters. Packets summed in a slot, and rounds that all ranks completed in a slot. Packets forwarded because: the
slot was taken by another round; a packet of their round had been forwarded before; they were retransmissions; slots do
not sum this kind of packet. Sums forwarded because a rank retransmitted, or because another round wanted the slot and
HOLD_NS had passed."""
SUMMED, ENDED, TAKEN, NOTED, RESENT, OTHER, EVICTED, EXPIRED = range(len(COUNTS))

_SHARED_SLOT = record("u8 key", "i8 since_ns", "i4 count payload", "i2 need ahead used flags wire")
"""A shared slot. `key`: tag << 32 | seq of the round, 0 if the slot is free. `since_ns`: time at which it was taken."""


class Shared(NamedTuple):
    """The switch's state: slots [N], uint64[N, 4] of the ranks in each sum, uint8[N, 1024] of lanes, uint64[16 N] with
    keys of rounds of which a packet was forwarded, int64[len(COUNTS)]."""

    slots: np.ndarray
    seen: np.ndarray
    lanes: np.ndarray
    notes: np.ndarray
    counts: np.ndarray


def new_shared(slots: int) -> Shared:
    """Create `slots` free slots; raises ConfigError unless the number is a power of two."""
    if slots < 1 or slots & (slots - 1):
        raise ConfigError(f"{slots} shared slots: expected a power of two")
    return Shared(
        np.zeros(slots, _SHARED_SLOT),
        np.zeros((slots, 4), np.uint64),
        np.zeros((slots, 1024), np.uint8),
        np.zeros(NOTES_A_SLOT * slots, np.uint64),
        np.zeros(len(COUNTS), np.int64),
    )


@kernel(inline=True)
def _choose(key: np.uint64, multiplier: np.uint64, count: int) -> int:
    """Index of a key among `count` entries, a power of two."""
    return int64((key * multiplier) >> np.uint64(32)) & (count - 1)


@kernel
def _send_sum(shared: Shared, index: int, partial: np.ndarray) -> int:
    """Write the sum in a slot as a partial sum, and free the slot; returns its length."""
    slot, key = shared.slots[index], int64(shared.slots[index].key)
    payload = int64(slot.payload)
    partial[0] = (wire_format.CONTRIBUTION + slot.wire) << 4 | full_size_code(payload)
    partial[1] = slot.ahead & 0xFF
    for i in range(4):
        partial[2 + i] = key >> (24 - 8 * i) & 0xFF
    partial[6], partial[7] = key >> 40 & 0xFF, key >> 32 & 0xFF
    partial[8], partial[9] = slot.need & 0xFF, slot.used & 0xFF
    to = np.uint64(partial.ctypes.data)
    store(to + np.uint64(_HEADER), np.uint64(shared.lanes.ctypes.data) + np.uint64(1024 * index), payload)
    put_trailer(to + np.uint64(_HEADER + payload), shared.seen[index], int64(slot.flags))
    slot.key = 0
    return _HEADER + payload + TRAILER_BYTES


@kernel
def put_trailer(at: Address, ranks: np.ndarray, flags: int) -> None:
    """Write the trailer of a packet between switch and aggregator. `ranks` uint64[4]: bit r stands for rank r."""
    copy_bytes(at, ranks.ctypes.data, _BITMAP)
    last = u8_at(np.uint64(at) + np.uint64(_BITMAP), 2)
    last[0], last[1] = flags, 0


@kernel
def take(
    shared: Shared, job: Any, rank: int, address: Address, length: int, now_ns: int, partial: np.ndarray
) -> tuple[int, bool]:
    """Process one contribution of `rank` with the tag of `job` (JOB) at the switch. Returns (length of the partial sum
    to send, now in `partial`, or 0; whether to forward the packet after that). `partial` uint8[PARTIAL_BYTES]."""
    data = u8_at(address, length)
    count, wire = shared.counts, int64(data[0] >> 4) - wire_format.CONTRIBUTION
    size = full_size_code(job.payload)
    dense = length == _HEADER + job.payload and data[0] & 7 == size
    # B1. Only dense contributions are summed here.
    if not dense or job.workers == 1 or (wire != job.wire and wire != wire_format.WIRE_INT32):
        count[OTHER] += 1
        return 0, True
    key = np.uint64(job.job_tag) << np.uint64(32) | np.uint64(be32(data, 2))
    index = _choose(key, _HASH, len(shared.slots))
    note = _choose(key, _NOTE_HASH, len(shared.notes))
    slot, word, bit = shared.slots[index], rank >> 6, np.uint64(1) << np.uint64(rank & 63)
    if slot.key != 0 and now_ns - slot.since_ns > STALE_NS:
        slot.key = 0
    # B2. A retransmission: the round's sum so far is forwarded, and later packets of the round will be.
    if data[0] & wire_format.R_FLAG:
        count[RESENT] += 1
        shared.notes[note] = key
        if slot.key != key:
            return 0, True
        count[EVICTED] += 1
        return _send_sum(shared, index, partial), True
    # B3. A packet of this round was forwarded, so the round can't be completed here.
    if shared.notes[note] == key:
        count[NOTED] += 1
        return 0, True
    # B4. A slot held for too long by another round is freed; its sum is forwarded, as later packets of that round will
    # be.
    sent = 0
    if slot.key != key and slot.key != 0 and now_ns - slot.since_ns > HOLD_NS:
        count[EXPIRED] += 1
        shared.notes[_choose(slot.key, _NOTE_HASH, len(shared.notes))] = slot.key
        sent = _send_sum(shared, index, partial)
    values = np.uint64(address) + np.uint64(_HEADER)
    sums = np.uint64(shared.lanes.ctypes.data) + np.uint64(1024 * index)
    # B5. The first packet of a round takes a free slot.
    if slot.key == 0:
        slot.key, slot.since_ns, slot.count, slot.payload = key, now_ns, 1, job.payload
        slot.ahead, slot.need, slot.used = signed8(data[1]), signed8(data[8]), signed8(data[9])
        slot.flags, slot.wire = 0, wire
        shared.seen[index, :] = 0
        shared.seen[index, word] |= bit
        store(sums, values, job.payload)
        count[SUMMED] += 1
        return sent, False
    # B6. The slot is taken by another round: forward the packet.
    if slot.key != key:
        count[TAKEN] += 1
        shared.notes[note] = key
        return 0, True
    # B7. The round's slot: duplicates are ignored, and lanes of another type are left to the aggregator.
    if shared.seen[index, word] & bit:
        return 0, False
    if slot.wire != wire:
        count[OTHER] += 1
        shared.notes[note] = key
        return _send_sum(shared, index, partial), True
    count[SUMMED] += 1
    shared.seen[index, word] |= bit
    slot.count += 1
    slot.ahead, slot.need = max(slot.ahead, signed8(data[1])), max(slot.need, signed8(data[8]))
    if slot.used != signed8(data[9]):
        slot.flags |= wire_format.FLAG_MIXED
    if add(wire, sums, values, job.payload):
        slot.flags |= wire_format.FLAG_OVERFLOW
    # B8. All ranks have contributed.
    if slot.count < job.workers:
        return 0, False
    count[ENDED] += 1
    return _send_sum(shared, index, partial), False


@kernel
def release(shared: Shared, job_tag: int, seq: int) -> None:
    """Free the slot of a round, if it has one, after its result has arrived."""
    key = np.uint64(job_tag) << np.uint64(32) | np.uint64(seq)
    index = _choose(key, _HASH, len(shared.slots))
    if shared.slots[index].key == key:
        shared.slots[index].key = 0


@kernel
def release_job(shared: Shared, job_tag: int) -> None:
    """Free all slots of a job that is over."""
    for index in range(len(shared.slots)):
        if shared.slots[index].key >> np.uint64(32) == np.uint64(job_tag):
            shared.slots[index].key = 0


@kernel
def receive_partial(pool: State, reply: np.ndarray, address: Address, length: int) -> tuple[int, int]:
    """Process, at the aggregator behind, one packet of `length` bytes, including the trailer, that the switch sent or
    forwarded: (action, row) and `reply` as in `receive_v2`; UNICAST and WAITING are sent to the packet's only rank."""
    size, job = length - TRAILER_BYTES, pool.job[0]
    trailer = np.uint64(address) + np.uint64(size)
    ranks, flags = u64_at(trailer, 4), int64(u8_at(trailer + np.uint64(_BITMAP), 1)[0]) & _FLAGS
    first, last = first_rank(trailer), last_rank(trailer)
    if first < 0 or last >= job.workers:
        return DROP, 0
    # B9. A forwarded packet comes from a single rank, and follows the rule of section 3.
    if first == last:
        return receive_v2(pool, reply, first, address, size)
    # B10. A sum that includes a rank already in the round can't be added.
    seq = be32(u8_at(address, _HEADER), 2)
    row = seq & (2 * job.slots - 1)
    slot = pool.slots[row]
    if serial_difference(seq, slot.seq) == 0:
        for word in range(4):
            if pool.seen[row, word] & ranks[word]:
                pool.counters[first, counters.DUPLICATES] += 1
                return DROP, row
    # B11. Otherwise it is a contribution with the bits of several ranks.
    action, row = receive_v2(pool, reply, first, address, size)
    if action != CONSUME:
        return action, row
    for rank in range(first + 1, last + 1):
        if ranks[rank >> 6] >> np.uint64(rank & 63) & np.uint64(1):
            slot.count += 1
            pool.counters[rank, counters.ACCEPTED] += 1
    for word in range(4):
        pool.seen[row, word] |= ranks[word]
    slot.flags |= flags
    if slot.count < job.workers:
        return CONSUME, row
    label(pool, first, row, seq)
    return MULTICAST, row


@kernel
def first_rank(trailer: Address) -> int:
    """The lowest rank named by a trailer, -1 if none."""
    ranks = u64_at(trailer, 4)
    for rank in range(8 * _BITMAP):
        if ranks[rank >> 6] >> np.uint64(rank & 63) & np.uint64(1):
            return rank
    return -1


@kernel
def last_rank(trailer: Address) -> int:
    """The highest rank named by a trailer, -1 if none."""
    ranks = u64_at(trailer, 4)
    for rank in range(8 * _BITMAP - 1, -1, -1):
        if ranks[rank >> 6] >> np.uint64(rank & 63) & np.uint64(1):
            return rank
    return -1
