"""One rank of the protocol, written for readability: docs/protocol.md sections 4 to 6 without the timers.

Chunking, rounds, the three modes of a chunk, the window, and every byte of a packet. Tensors are Python lists, packets
`struct` and lists of ints; nothing here comes from `switchml/`. A rank whose network loses nothing and keeps the order
sends exactly these packets in this order.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from tests.support import reference_fixedpoint as numbers

SPECULATE, EXACT, CLASSIFY = "speculate", "exact", "classify"
HEADER = ">BbIHbb"
STRUCT = "ihb"
OVERFLOW, MIXED = 1, 2


class RanksDisagree(Exception):
    """A result's flags say that the ranks' contributions can't be added."""


@dataclass
class Task:
    """One all-reduce; `history` the codes that the last equal tensor's first chunks needed."""

    dtype: str
    divisor: int
    result: list
    per_chunk: int
    history: list[int] | None
    chunks: int = 0
    done: int = 0
    misfits: int = 0


@dataclass
class Chunk:
    """Chunk `position` of a task, and its progress."""

    task: Task
    position: int
    values: list
    mode: str = ""
    used: int = 0
    need: int = 0
    classes: list[int] = field(default_factory=list)
    digits: int = 1
    sums: list[list[int]] = field(default_factory=list)
    done: bool = False


class ReferenceWorker:
    """One rank: `start` queues tensors, `receive` takes results and returns the packets that follow."""

    def __init__(self, workers: int, slots: int, job_tag: int, isn: int, window: int, payload_bytes: int):
        self.workers, self.slots, self.job_tag, self.isn, self.window = workers, slots, job_tag, isn, window
        self.payload_bytes = payload_bytes
        self.size = {256: 1, 1024: 3}[payload_bytes]
        self.chunks: list[Chunk] = []
        self.base = self.in_flight = 0
        self.round = [0] * slots
        self.agreed = [numbers.UNKNOWN] * slots
        self.repeats = 0

    def lanes(self, dtype: str) -> int:
        """How many lanes a packet of this dtype has."""
        return self.payload_bytes // numbers.lane_bytes(dtype)

    def start(self, values: list, dtype: str, divisor: int = 1, history: list[int] | None = None) -> Task:
        """Queue an all-reduce; its chunks are numbered on from those of earlier ones."""
        per_chunk = numbers.per_chunk(dtype, self.payload_bytes)
        task = Task(dtype, divisor, list(values), per_chunk, history)
        for position, first in enumerate(range(0, len(values), per_chunk)):
            self.chunks.append(Chunk(task, position, values[first : first + per_chunk]))
            task.chunks += 1
        return task

    def receive(self, results: list[bytes]) -> list[bytes]:
        """The packets to send: repeats in the order of the results, then the chunks that the window now allows."""
        packets = []
        for data in results:
            packets += self._result(data)
        self.in_flight += len(packets) - len(results)
        while self.in_flight < self.window and (free := self._free()) is not None:
            packets.append(self._first_round(free))
            self.in_flight += 1
        return packets

    def _free(self) -> int | None:
        """The lowest chunk whose slot is free."""
        for number in range(self.base, len(self.chunks)):
            before = number - self.slots
            if not self.chunks[number].mode and (before < 0 or self.chunks[before].done):
                return number
        return None

    def _first_round(self, number: int) -> bytes:
        chunk, slot = self.chunks[number], number % self.slots
        dtype = chunk.task.dtype
        chunk.need = self._need(dtype, chunk.values)
        if self.agreed[slot] != numbers.UNKNOWN:
            assert chunk.need <= self.agreed[slot]
            self._know(chunk, self.agreed[slot])
        else:
            guess = numbers.ZERO if chunk.need == numbers.UNKNOWN else chunk.need
            if chunk.task.history is not None and chunk.position < len(chunk.task.history):
                slack = numbers.spread(dtype, self.workers) // 2
                guess = max(guess, min(chunk.task.history[chunk.position] + slack, 126))
            chunk.mode, chunk.used = SPECULATE, numbers.canonical(dtype, guess)
        return self._packet(number)

    def _packet(self, number: int) -> bytes:
        """A contribution in its present mode; `ahead` is what the chunk that uses this slot next needs, if known."""
        chunk, slot = self.chunks[number], number % self.slots
        dtype, ahead = chunk.task.dtype, numbers.UNKNOWN
        if number + self.slots < len(self.chunks):
            after = self.chunks[number + self.slots]
            ahead = self._need(after.task.dtype, after.values)
        if chunk.mode == CLASSIFY:
            lanes = numbers.classify(dtype, chunk.values)
        elif chunk.mode == SPECULATE and chunk.need == (
            numbers.DIGITS_NEEDED if dtype in numbers.DIGITS else numbers.UNKNOWN
        ):
            lanes = []
        elif dtype in numbers.DIGITS:
            lanes = numbers.digit(dtype, chunk.values, len(chunk.sums), chunk.digits)
        else:
            lanes = numbers.encode(dtype, chunk.values, chunk.used, self.workers, classed=bool(chunk.classes))
        lanes += [0] * (self.lanes(dtype) - len(lanes))
        seq = (self.isn + self.round[slot] * self.slots + slot) % 2**32
        wire = numbers.wire(dtype)
        first = 8 + wire << 4 | self.size
        header = struct.pack(HEADER, first, ahead, seq, self.job_tag, chunk.need, chunk.used)
        return header + struct.pack(f">{len(lanes)}{STRUCT[wire]}", *lanes)

    def _result(self, data: bytes) -> list[bytes]:
        """Section 4's table; returns the packet of the chunk's next round, if there is one."""
        first, ahead, seq, job_tag, need, flags = struct.unpack(HEADER, data[:10])
        slot = seq % self.slots
        assert job_tag == self.job_tag and first & 15 == self.size
        assert seq == (self.isn + self.round[slot] * self.slots + slot) % 2**32
        mine = range(slot, len(self.chunks), self.slots)
        number = next(n for n in mine if self.chunks[n].mode and not self.chunks[n].done)
        chunk = self.chunks[number]
        dtype = chunk.task.dtype
        assert flags & MIXED or first >> 4 == 12 + numbers.wire(dtype)
        lanes = list(struct.unpack(f">{self.lanes(dtype)}{STRUCT[numbers.wire(dtype)]}", data[10:]))
        self.round[slot] += 1
        self.agreed[slot] = ahead

        if chunk.mode == SPECULATE and need == numbers.UNKNOWN and dtype not in numbers.BITS:
            chunk.need = numbers.need(dtype, chunk.values, finite_only=True)
            return [self._repeat(number, CLASSIFY, numbers.UNKNOWN)]
        has_more = dtype in numbers.DIGITS and need != numbers.ZERO
        is_guessed = chunk.used in numbers.allowed(dtype, need, self.workers) and not has_more
        if chunk.mode == SPECULATE and (flags or not is_guessed):
            self._know(chunk, need)
            return [self._repeat(number, EXACT, chunk.used)]
        if flags:
            raise RanksDisagree("MIXED" if flags & MIXED else "OVERFLOW")
        if chunk.mode == CLASSIFY:
            chunk.classes = lanes
            return [self._repeat(number, EXACT, numbers.canonical(dtype, need))]
        if len(chunk.sums) + 1 < chunk.digits:
            chunk.sums.append(lanes)
            return [self._repeat(number, EXACT, chunk.used)]
        self._finish(chunk, lanes, need)
        return []

    def _need(self, dtype: str, values: list) -> int:
        return numbers.need(dtype, values, workers=self.workers)

    def _know(self, chunk: Chunk, need: int) -> None:
        """All ranks know what the chunk needs."""
        dtype = chunk.task.dtype
        chunk.mode, chunk.used = EXACT, numbers.canonical(dtype, need)
        if dtype in numbers.DIGITS and need != numbers.ZERO:
            chunk.digits = numbers.DIGITS[dtype][0]

    def _repeat(self, number: int, mode: str, used: int) -> bytes:
        self.repeats += 1
        self.chunks[number].mode, self.chunks[number].used = mode, used
        return self._packet(number)

    def _finish(self, chunk: Chunk, lanes: list[int], need: int) -> None:
        task = chunk.task
        per = numbers.LANES[task.dtype]
        lanes = lanes[: per * len(chunk.values)]
        if task.dtype in numbers.DIGITS:
            sums = [each[: len(chunk.values)] for each in (*chunk.sums, lanes)]
            values, misfits = numbers.from_digits(task.dtype, sums, task.divisor)
        else:
            values, misfits = numbers.decode(task.dtype, lanes, chunk.used, self.workers, task.divisor)
        if chunk.classes:
            values = numbers.apply_classes(task.dtype, chunk.classes[: len(lanes)], values)
        first = chunk.position * task.per_chunk
        task.result[first : first + len(values)] = values
        task.misfits += misfits
        task.done += 1
        if task.history is not None and chunk.position < len(task.history):
            task.history[chunk.position] = need
        chunk.done = True
        while self.base < len(self.chunks) and self.chunks[self.base].done:
            self.base += 1
