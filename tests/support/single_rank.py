"""A worker under test: what a single rank sends, with an aggregator's side to answer it by hand. Time is a number
that the tests choose."""

from __future__ import annotations

import struct

import numpy as np

from switchml.protocol.packet import CODE_UNKNOWN, CODE_ZERO, RESULT
from switchml.protocol.retransmission import MICROSECOND, SECOND
from switchml.protocol.worker import Worker
from tests.support.packets import V2Packet, WaitPacket

TAG = 0x5A17
NEVER = np.iinfo(np.int64).max
LANES = 64


class Rank:
    """A worker that all-reduces tensors of int32 chunks, and an aggregator's side to answer it by hand."""

    def __init__(
        self, chunks: int = 0, *, slots: int = 16, workers: int = 2, isn: int = 0, window: int | None = None, **options
    ):
        self.worker = Worker(
            rank=0, workers=workers, slots=slots, job_tag=TAG, isn=isn, window=window, payload_bytes=256, **options
        )
        self.queue = self.worker.queues[0]
        self.window, self.rtt, self.timers = self.worker.window, self.worker.rtt, self.worker.timers
        self.counters, self.failure = self.worker.counters, self.worker.failure
        self.isn, self.slots = isn, slots
        self.tensors: list[np.ndarray] = []
        if chunks:
            self.start(chunks)

    def start(self, chunks: int) -> None:
        tensor = np.arange(chunks * LANES, dtype=np.int32)
        self.tensors.append(tensor)
        self.worker.start(tensor.ctypes.data, tensor.ctypes.data, tensor.size, "int32")

    def __call__(self, now: int, *datagrams: bytes) -> list[bytes]:
        return self.worker.receive(list(datagrams), now)

    def result(
        self, number: int, *, r: bool = False, ahead: int = CODE_UNKNOWN, flags: int = 0, job_tag: int = TAG
    ) -> bytes:
        """The result of round `number // S` in slot `number % S`, which is chunk `number`'s if none was repeated."""
        return V2Packet(RESULT, (self.isn + number) % 2**32, job_tag, CODE_ZERO, flags, ahead, [0] * LANES, r=r).pack()

    def wait(self, number: int, *missing: int) -> bytes:
        return WaitPacket((self.isn + number) % 2**32, TAG, missing).pack()


def seqs(packets: list[bytes]) -> list[int]:
    return [struct.unpack(">I", data[2:6])[0] for data in packets]


def is_repeat(data: bytes) -> bool:
    return bool(data[0] & 8)


def steady(rtt: int = 100 * MICROSECOND, rounds: int = 200, **options) -> tuple[Rank, int]:
    """A rank whose estimates have settled at `rtt`, idle, and the time."""
    rank, now = Rank(**options), SECOND
    for number in range(rounds):
        rank.start(1)
        rank(now)
        now += rtt
        assert rank(now, rank.result(number)) == []
    return rank, now
