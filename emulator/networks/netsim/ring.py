"""Gloo's ring all-reduce over TCP, the baseline: each rank sends to one neighbor while it receives from the other and
adds the received data.

The schedule is that of gloo/allreduce.cc (facebookincubator/gloo): a tensor is cut into n chunks of m >= 2 segments of
at most 1 MiB; in each of two phases a rank posts segment i once segment i-2 has been received and added, m*n - 2
segments in all.
"""

from collections.abc import Callable, Generator

import simpy

from emulator.networks.netsim.link import Environment
from emulator.networks.netsim.tcp import Connection

MAX_SEGMENT_BYTES = 1 << 20
"""AllreduceOptions' kMaxSegmentSize in gloo/allreduce.h."""


def segments(workers: int, size_bytes: int) -> tuple[int, int]:
    """(segments per phase, bytes per segment) for a float32 tensor."""
    target_bytes = min(-(-size_bytes // (2 * workers)), MAX_SEGMENT_BYTES)
    segment_bytes = -(-target_bytes // 4) * 4
    count = max(-(-size_bytes // segment_bytes), 2 * workers)
    return -(-count // workers) * workers, segment_bytes


def sent_bytes(workers: int, size_bytes: int) -> int:
    """Bytes that rank 0 sends in one all-reduce: 2(n-1)/n of the tensor, or more if a chunk has more
    than two segments."""
    if workers == 1:
        return 0
    count, segment_bytes = segments(workers, size_bytes)
    per_rank = count // workers
    total = 0
    for shift in (1, 0):
        for i in range(count - 2):
            offset = (shift * per_rank + i) * segment_bytes % (count * segment_bytes)
            total += min(max(size_bytes - offset, 0), segment_bytes)
    return total


class RingRank:
    """One rank of the ring. `connection` goes to rank - 1, None if there is only one rank; `take` receives the bytes
    from rank + 1."""

    def __init__(self, env: Environment, rank: int, workers: int, size_bytes: int):
        self.env, self.rank, self.workers, self.size_bytes = env, rank, workers, size_bytes
        self.connection: Connection | None = None
        self._received = self._needed = 0
        self._waiting: simpy.Event | None = None

    def take(self, count: int) -> None:
        """Handle `count` bytes that arrived in order."""
        self._received += count
        if self._waiting is not None and self._received >= self._needed:
            waiting, self._waiting = self._waiting, None
            waiting.succeed()

    def run(self, on_done: Callable[[int], None]) -> Generator[simpy.Event, None, None]:
        """Simpy process of one all-reduce."""
        if self.connection is not None:
            count, segment_bytes = segments(self.workers, self.size_bytes)
            for shift in (1, 0):
                for i in range(count):
                    if i >= 2:
                        length = self._length(i - 2, shift + 1, count, segment_bytes)
                        self._needed += length
                        if self._received < self._needed:
                            self._waiting = self.env.event()
                            yield self._waiting
                    if i < count - 2:
                        length = self._length(i, shift, count, segment_bytes)
                        if length:
                            self.connection.write(length)
        on_done(self.rank)

    def _length(self, i: int, shift: int, count: int, segment_bytes: int) -> int:
        """Bytes of the i-th segment counted from chunk rank + shift, which may lie beyond the tensor's end."""
        offset = ((self.rank + shift) * (count // self.workers) + i) * segment_bytes % (count * segment_bytes)
        return min(max(self.size_bytes - offset, 0), segment_bytes)
