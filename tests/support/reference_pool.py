"""The aggregator's two rules, written for readability: docs/protocol.md sections 1, 3, 8, 11 and 13 as integers, sets
and dicts.

It is slow on purpose and shares no code with `switchml/`: neither the packet codec nor the compiled pool. The tests
run both on the same packets and expect the same answers, so a mistake has to be made twice to go unnoticed.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

V1_SLOTS = 8192
PAYLOAD_OF_SIZE_CODE = {1: 256, 3: 1024}
SIZE_CODE_OF_PAYLOAD = {256: 1, 1024: 3}
OVERFLOW, MIXED, PARTIAL, LATE = 1, 2, 8, 16


class Outcome(NamedTuple):
    """The aggregator's action for one packet; `packet` is its reply, if any."""

    action: str
    counter: str
    packet: bytes | None


def wrapping_add(a: int, b: int, bits: int) -> tuple[int, bool]:
    """(a + b as a signed integer of that many bits, whether it did not fit)."""
    exact = a + b
    wrapped = (exact + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
    return wrapped, wrapped != exact


class ReferencePoolV1:
    """Section 1. The bitmap says whether values are stored or added, the count says when a slot is complete.

    A slot has room for 256 lanes; a packet of 256 bytes stores, adds and answers the first 64 of them.
    """

    def __init__(self, workers: int):
        self.workers = workers
        self.seen: dict[tuple[int, int], set[int]] = {}
        self.count: dict[tuple[int, int], int] = {}
        self.exponents: dict[tuple[int, int], tuple[int, int]] = {}
        self.values: dict[tuple[int, int], list[int]] = {}

    def receive(self, rank: int, data: bytes) -> Outcome:
        """Apply one packet of the worker `rank`; finding the rank by its address is the caller's part."""
        drop = Outcome("drop", "", None)
        if len(data) < 10:
            return drop
        first, job, tsi, index, e0, e1 = struct.unpack(">BBIHbb", data[:10])
        size = first & 7
        if first >> 4 != 1 or size not in PAYLOAD_OF_SIZE_CODE or len(data) != 10 + PAYLOAD_OF_SIZE_CODE[size]:
            return drop
        version, slot = index >> 15, index & 0x3FFF
        if slot >= V1_SLOTS:
            return drop
        here, other = (slot, version), (slot, 1 - version)
        lanes = struct.unpack(f">{(len(data) - 10) // 4}i", data[10:])
        seen = self.seen.setdefault(here, set())
        count = self.count.get(here, 0)

        self.seen.setdefault(other, set()).discard(rank)
        if rank in seen:
            return Outcome("unicast", "", self._reply(here, size, job, tsi)) if count == 0 else drop
        sums = self.values.setdefault(here, [0] * 256)
        for lane, value in enumerate(lanes):
            sums[lane] = wrapping_add(sums[lane], value, 32)[0] if seen else value
        if seen:
            e0, e1 = max(self.exponents[here][0], e0), max(self.exponents[here][1], e1)
        self.exponents[here] = (e0, e1)
        seen.add(rank)
        self.count[here] = self.workers - 1 if count == 0 else count - 1
        if self.count[here] == 0:
            return Outcome("multicast", "", self._reply(here, size, job, tsi))
        return Outcome("consume", "", None)

    def _reply(self, here: tuple[int, int], size: int, job: int, tsi: int) -> bytes:
        slot, version = here
        e0, e1 = self.exponents[here]
        header = struct.pack(">BBIHbb", 0x10 | size, job, tsi, version << 15 | slot, e0, e1)
        lanes = PAYLOAD_OF_SIZE_CODE[size] // 4
        return header + struct.pack(f">{lanes}i", *self.values[here][:lanes])


class _Round:
    """An aggregator's state of one round: a slot has two, one for each version."""

    def __init__(self, seq: int, count: int):
        self.seq = seq
        self.seen: set[int] = set()
        self.count = count
        self.need = self.ahead = self.used = self.flags = self.wire = 0
        self.values: list[int] | None = []
        self.words: list[int] = []  # of a sparse round
        self.call: tuple[int, int, int] | None = None  # reach, root and op of an addressed round
        self.halves: dict[int, bytes] = {}  # what each rank sent of a round of half precision


def is_half(call: tuple[int, int, int] | None) -> bool:
    """Whether a round's lanes are half precision, which is added up in float32 when all have come (section 11)."""
    return call is not None and call[2] > 4


def sum_of_halves(op: int, packets: dict[int, bytes]) -> bytes:
    """Of float16 (op 5, or 7 for a mean) or bfloat16 (6, 8), in the order of ranks."""
    total = np.float32(0)
    for rank in sorted(packets):
        bits = np.frombuffer(packets[rank], "<u2")
        values = bits.view("<f2").astype(np.float32) if op % 2 else (bits.astype(np.uint32) << 16).view(np.float32)
        total = values if rank == min(packets) else total + values
    if op > 6:
        total = total / np.float32(len(packets))
    with np.errstate(over="ignore"):
        return total.astype("<f2").tobytes() if op % 2 else nearest_bfloat16(total)


def nearest_bfloat16(x: np.ndarray) -> bytes:
    """Ties to even; of numbers that are not NaN."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").tobytes()


def combined(op: int, a: list[int], b: list[int], bits: int) -> tuple[list[int], bool]:
    """Two packets' lanes under an op (section 11), and whether a sum overflowed."""
    if op == 0:
        sums = [wrapping_add(x, y, bits) for x, y in zip(a, b, strict=True)]
        return [total for total, _ in sums], any(overflowed for _, overflowed in sums)
    wide = 64 if op == 2 else 32
    numbers = [int.from_bytes(struct.pack(f">{len(lanes)}i", *lanes), "big") for lanes in (a, b)]
    count = 32 * len(a) // wide
    parts = [[n >> wide * (count - 1 - i) & (1 << wide) - 1 for i in range(count)] for n in numbers]
    does = {1: max, 2: max, 3: lambda x, y: x | y, 4: lambda x, y: x ^ y}[op]
    whole = 0
    for x, y in zip(*parts, strict=True):
        whole = whole << wide | does(x, y)
    return list(struct.unpack(f">{len(a)}i", whole.to_bytes(4 * len(a), "big"))), False


def gets_data(reach: int, root: int, rank: int) -> bool:
    """Whether a rank gets the data of an addressed result."""
    return {0: True, 1: rank == root, 2: rank != root}[reach]


class ReferencePoolV2:
    """Sections 3, 8, 11 and 13. Every comparison of sequence numbers is serial-number arithmetic."""

    def __init__(
        self, workers: int, slots: int, payload_bytes: int, wire: int, job_tag: int, isn: int, halves: bool = False
    ):
        self.last_op = 8 if halves else 4
        self.workers, self.slots, self.payload_bytes = workers, slots, payload_bytes
        self.wire, self.job_tag = wire, job_tag
        self.absent: set[int] = set()
        self.rounds = {
            (i, v): _Round((isn + i - (2 - v) * slots) % 2**32, workers) for i in range(slots) for v in (0, 1)
        }

    def receive(self, rank: int, data: bytes) -> Outcome:
        """Apply one packet of the worker `rank`; finding the rank by its address is the caller's part."""
        if len(data) < 10:
            return Outcome("drop", "refused_format", None)
        first, ahead, seq, job_tag, need, used = struct.unpack(">BbIHbb", data[:10])
        is_expiry = first >> 4 == 11 and not first & 4
        if first >> 4 not in (8, 8 + self.wire) and not is_expiry:
            return Outcome("drop", "refused_format", None)
        wire = (first >> 4) - 8
        words, lanes = self._parts(first & 7, ahead, data[10:])
        if words is None:
            return Outcome("drop", "refused_format", None)
        call = None
        if first & 4 and ahead == 0:
            call = (words[0] >> 24, words[0] >> 16 & 255, words[0] >> 8 & 255)
            if call[0] > 2 or call[2] > self.last_op or (call[2] and wire) or (call[2] > 4 and not lanes):
                return Outcome("drop", "refused_format", None)
        if job_tag != self.job_tag:
            return Outcome("drop", "refused_tag", None)

        if is_expiry:
            return self._expire(rank, seq)
        retransmission = bool(first & 8)
        values = list(struct.unpack(self._lanes(wire), lanes)) if lanes else None
        slot, version = seq % self.slots, seq // self.slots % 2
        state, other = self.rounds[slot, version], self.rounds[slot, 1 - version]
        d = (seq - state.seq + 2**31) % 2**32 - 2**31

        if d == 0 and rank not in state.seen and state.count < self.workers:
            state.seen.add(rank)
            state.count += 1
            state.need, state.ahead = max(state.need, need), max(state.ahead, ahead)
            alike = wire == state.wire and len(words) == len(state.words) and call == state.call
            if used != state.used or not alike:
                state.flags |= MIXED
            if alike:
                state.words = [min(pair) for pair in zip(state.words, words, strict=True)]
            if alike and is_half(call):
                state.halves[rank] = lanes
            elif alike and state.values is None:
                state.values = values
            elif alike and values is not None:
                op = call[2] if call else 0
                state.values, overflowed = combined(op, state.values, values, (32, 16, 8)[wire])
                if overflowed:
                    state.flags |= OVERFLOW
            return self._accepted(state, rank)
        if d == 0 and rank not in state.seen and state.flags & PARTIAL:
            return Outcome("unicast", "answered", self._result(state, r=True, late=True))
        if d == 0 and rank not in state.seen:
            return Outcome("drop", "refused_window", None)
        if d == 0 and state.count == self.workers:
            answer = self._result(state, r=True)
            is_cut = state.call is not None and not gets_data(state.call[0], state.call[1], rank)
            return Outcome("unicast", "answered", answer[:14] if is_cut else answer)
        if d == 0:
            return (
                Outcome("wait", "duplicates", self._wait(state))
                if retransmission
                else Outcome("drop", "duplicates", None)
            )
        if d == 2 * self.slots and other.seq == (seq - self.slots) % 2**32 and other.count == self.workers:
            state = self.rounds[slot, version] = _Round(seq, 1)
            state.seen = {rank}
            state.need, state.ahead, state.used, state.wire, state.values = need, ahead, used, wire, values
            state.words, state.call, state.halves = words, call, {rank: lanes}
            return self._accepted(state, rank)
        if d < 0:
            return Outcome("drop", "stale", None)
        return Outcome("drop", "refused_window", None)

    def _parts(self, size: int, columns: int, rest: bytes) -> tuple[list[int] | None, bytes]:
        """(words, lanes) of what follows the header; (None, b"") if it does not fit the size code and the columns."""
        refused = None, b""
        if size < 4:
            fits = PAYLOAD_OF_SIZE_CODE.get(size) == self.payload_bytes == len(rest)
            return ([], rest) if fits else refused
        columns = columns or 1  # an addressed packet has one word
        if columns not in (1, 2, 4, 8) or len(rest) < 4 * columns:
            return refused
        words, lanes = list(struct.unpack(f">{columns}I", rest[: 4 * columns])), rest[4 * columns :]
        if size == 4 and not lanes or size == 6 and self.payload_bytes == 1024 and len(lanes) == 512:
            return words, b""
        if PAYLOAD_OF_SIZE_CODE.get(size - 4) == self.payload_bytes == len(lanes):
            return words, lanes
        return refused

    def _expire(self, rank: int, seq: int) -> Outcome:
        """Section 13."""
        state = self.rounds[seq % self.slots, seq // self.slots % 2]
        d = (seq - state.seq + 2**31) % 2**32 - 2**31
        if d < 0:
            return Outcome("wait", "duplicates", self._wait(_Round(seq, 0), set()))
        if d == 0 and rank not in state.seen and state.flags & PARTIAL:
            return Outcome("unicast", "answered", self._result(state, r=True, late=True))
        if d or rank not in state.seen:
            return Outcome("drop", "refused_window", None)
        if state.count == self.workers:
            return Outcome("drop", "duplicates", None)
        if state.words:
            return Outcome("wait", "duplicates", self._wait(state))
        self.absent |= self._missing(state)
        return self._accepted(state)

    def _accepted(self, state: _Round, rank: int | None = None) -> Outcome:
        self.absent.discard(rank)
        missing = self._missing(state)
        if missing and missing <= self.absent and not state.words:
            state.flags |= PARTIAL
            state.ahead, state.count = state.count, self.workers
        if state.count == self.workers:
            if is_half(state.call):
                whole = bytes(self.payload_bytes) if state.flags & MIXED else sum_of_halves(state.call[2], state.halves)
                state.values = list(struct.unpack(self._lanes(0), whole))
            return Outcome("multicast", "accepted", self._result(state, r=False))
        return Outcome("consume", "accepted", None)

    def _missing(self, state: _Round) -> set[int]:
        return set(range(self.workers)) - state.seen

    def _result(self, state: _Round, r: bool, late: bool = False) -> bytes:
        size = SIZE_CODE_OF_PAYLOAD[self.payload_bytes]
        ahead, need = state.ahead, state.need
        if state.words:
            size, ahead, need = 4 | (size if state.values is not None else 0), len(state.words), 0
        if state.call:
            ahead, need = 0, state.need
        first = (12 + state.wire) << 4 | (8 if r else 0) | size
        flags = state.flags | (LATE if late else 0)
        header = struct.pack(">BBIHbb", first, ahead & 255, state.seq, self.job_tag, need, flags)
        header += struct.pack(f">{len(state.words)}I", *state.words)
        return header + (struct.pack(self._lanes(state.wire), *state.values) if state.values is not None else b"")

    def _lanes(self, wire: int) -> str:
        return f">{self.payload_bytes // (4, 2, 1)[wire]}{'ihb'[wire]}"

    def _wait(self, state: _Round, missing: set[int] | None = None) -> bytes:
        bitmap = bytearray(32)
        for rank in self._missing(state) if missing is None else missing:
            bitmap[rank // 8] |= 1 << rank % 8
        return struct.pack(">BbIHbb", 15 << 4, 0, state.seq, self.job_tag, 0, 0) + bytes(bitmap)
