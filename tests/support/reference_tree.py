"""One switch of a tree, written for readability: docs/protocol.md, section 9, around the slow reference of sections 3,
8 and 11."""

from __future__ import annotations

import struct
from typing import NamedTuple

from tests.support.reference_pool import MIXED, OVERFLOW, SIZE_CODE_OF_PAYLOAD, ReferencePoolV2, _Round, combined

ABOVE = "above"
Sender = int | tuple[int, ...] | str
"""A rank, the ranks of a switch below, or ABOVE."""


class TreeOutcome(NamedTuple):
    """What a switch does with one packet; `sent`: what leaves, by receiver."""

    action: str
    counter: str
    sent: dict[Sender, bytes]


class ReferenceSwitch:
    """A switch with `below`: ranks, and the ranks of each switch below it as a tuple. `workers`: of the whole job."""

    def __init__(self, below, has_above: bool, workers: int, slots: int, payload_bytes: int, wire: int, job_tag: int,
                 isn: int):  # fmt: skip
        self.below, self.has_above, self.workers, self.job_tag, self.wire = (
            list(below), has_above, workers, job_tag, wire,
        )  # fmt: skip
        self.payload_bytes = payload_bytes
        self.pool = ReferencePoolV2(len(self.below), slots, payload_bytes, wire, job_tag, isn)
        self.kept: set[_Round] = set()  # those that have the result from above

    def behind(self, receiver: Sender) -> set[int]:
        """The ranks behind a neighbour, seen from here."""
        here = {rank for child in self.below for rank in (child if isinstance(child, tuple) else (child,))}
        if receiver == ABOVE:
            return set(range(self.workers)) - here
        return set(receiver) if isinstance(receiver, tuple) else {receiver}

    def receive(self, sender: Sender, data: bytes) -> TreeOutcome:
        """Apply one packet of a neighbour."""
        if sender == ABOVE:
            return self._from_above(data)
        flags = 0
        if isinstance(sender, tuple):
            flags, contribution = self._contribution(data)
            if contribution is None:
                return TreeOutcome("drop", "refused_format", {})
            data = contribution
        action, counter, _ = self.pool.receive(self.below.index(sender), data)
        if action == "drop":
            return TreeOutcome(action, counter, {})
        state = self._round(data)
        if counter == "accepted":
            state.flags |= flags
        if action == "multicast" and self.has_above:
            return TreeOutcome("up", counter, {ABOVE: self._partial(state, r=False)})
        if action == "multicast":
            return TreeOutcome(action, counter, self._to_all(state))
        if action == "unicast" and self.has_above and state not in self.kept:
            if data[0] & 8:
                return TreeOutcome("up", "duplicates", {ABOVE: self._partial(state, r=True)})
            return TreeOutcome("drop", "duplicates", {})
        if action == "unicast":
            return TreeOutcome(action, counter, {sender: self._copy(state, sender, r=True)})
        return TreeOutcome(action, counter, {sender: self._wait(state)} if action == "wait" else {})

    def _round(self, data: bytes) -> _Round:
        seq, slots = int.from_bytes(data[2:6], "big"), self.pool.slots
        return self.pool.rounds[seq % slots, seq // slots % 2]

    def _contribution(self, data: bytes) -> tuple[int, bytes | None]:
        """(flags, the contribution in a partial sum); (0, None) if it is none."""
        if len(data) == 10 + self.payload_bytes + 2 and data[0] & 7 == 4 | SIZE_CODE_OF_PAYLOAD[self.payload_bytes]:
            return data[-2] & 3, bytes([data[0] & ~4]) + data[1:-2]
        is_partial = len(data) > 10 and data[0] & 4 and data[1] & 0xC0 == 0x80
        return (data[1] >> 4 & 3, data[:1] + bytes([data[1] & 15]) + data[2:]) if is_partial else (0, None)

    def _from_above(self, data: bytes) -> TreeOutcome:
        refused = TreeOutcome("drop", "refused_format", {})
        if len(data) < 10:
            return refused
        first, ahead, seq, job_tag, need, flags = struct.unpack(">BbIHbb", data[:10])
        if job_tag != self.job_tag:
            return TreeOutcome("drop", "refused_tag", {})
        is_wait = first >> 4 == 15 and len(data) == 42
        wire = (first >> 4) - 12
        words, lanes = self.pool._parts(first & 7, ahead, data[10:])
        if not is_wait and (wire not in (0, self.wire) or words is None):
            return refused
        call = None
        if not is_wait and first & 4 and ahead == 0:
            call = (words[0] >> 24, words[0] >> 16 & 255, words[0] >> 8 & 255)
            if call[0] > 2 or call[2] > 4 or call[2] and wire:
                return refused
        state = self._round(data)
        d = (seq - state.seq + 2**31) % 2**32 - 2**31
        if d < 0:
            return TreeOutcome("drop", "stale", {})
        if d or not state.seen or state.count < len(self.below):
            return TreeOutcome("drop", "refused_window", {})
        if state in self.kept:
            return TreeOutcome("drop", "duplicates", {})
        if is_wait:
            return TreeOutcome("wait", "duplicates", dict.fromkeys(self.below, data))
        values = list(struct.unpack(self.pool._lanes(wire), lanes)) if lanes else None
        here = set(range(self.workers)) - self.behind(ABOVE)
        state.flags = flags & (OVERFLOW | MIXED)
        if call and call[0] and call[1] in here and not flags & MIXED and state.values is not None:
            if values is None:
                values = state.values
            else:
                values, overflowed = combined(call[2], state.values, values, (32, 16, 8)[wire])
                state.flags |= OVERFLOW if overflowed else 0
        state.need, state.ahead, state.wire, state.values = need, ahead, wire, values
        state.words, state.call = words, call
        self.kept.add(state)
        return TreeOutcome("multicast", "accepted", self._to_all(state))

    def _to_all(self, state: _Round) -> dict[Sender, bytes]:
        return {child: self._copy(state, child, r=False) for child in self.below}

    def _copy(self, state: _Round, receiver: Sender, r: bool) -> bytes:
        """A result as it goes to a rank or a switch below."""
        result = self.pool._result(state, r)
        if not isinstance(receiver, tuple):
            return result[:14] if self._is_without(state, receiver) else result
        if self._is_without(state, receiver):
            result = self._without(result)
        is_root = state.call is not None and state.call[0] and state.call[1] in self.behind(receiver)
        return self._padded(result) if is_root else result

    def _partial(self, state: _Round, r: bool) -> bytes:
        result = self.pool._result(state, r)
        flags = state.flags & (OVERFLOW | MIXED)
        first = (8 + state.wire) << 4 | result[0] & 15
        if not state.words:
            header = bytes([first | 4]) + result[1:9] + struct.pack("b", state.used)
            return header + result[10:] + bytes([flags, 0])
        columns = 0 if state.call else len(state.words)
        partial = bytes([first, 0x80 | flags << 4 | columns]) + result[2:9] + struct.pack("b", state.used) + result[10:]
        return self._padded(self._without(partial) if self._is_without(state, ABOVE) else partial)

    def _is_without(self, state: _Round, receiver: Sender) -> bool:
        """Whether a receiver gets no data of an addressed round."""
        if not state.call or state.call[0] == 0:
            return False
        return (state.call[1] in self.behind(receiver)) != (state.call[0] == 1)

    def _without(self, packet: bytes) -> bytes:
        return bytes([packet[0] & ~7 | 4]) + packet[1:14]

    def _padded(self, packet: bytes) -> bytes:
        if self.payload_bytes == 256 or packet[0] & 7 != 4:
            return packet
        return bytes([packet[0] | 2]) + packet[1:] + bytes(512)

    def _wait(self, state: _Round) -> bytes:
        missing = {rank for i, child in enumerate(self.below) if i not in state.seen for rank in self.behind(child)}
        bitmap = bytearray(32)
        for rank in missing:
            bitmap[rank // 8] |= 1 << rank % 8
        return struct.pack(">BbIHbb", 15 << 4, 0, state.seq, self.job_tag, 0, 0) + bytes(bitmap)
