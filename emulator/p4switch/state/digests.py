"""Digests (BMv2's learning engine): samples are collected in a buffer that is sent when it is full or its timeout
expires, and a sample is not resent until the receiver has acknowledged it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from threading import RLock

from emulator.p4switch.program import ir
from emulator.p4switch.state.handles import locked
from switchml.errors import ControlError

MAX_SAMPLES = 16
"""Default number of samples that fill a buffer."""
TIMEOUT_MS = 1000
"""Default age at which a buffer is sent."""


@dataclass(frozen=True)
class Digest:
    """A sent buffer: `samples` are tuples of field values, in order; `buffer_id` numbers a list's buffers."""

    list_id: int
    buffer_id: int
    samples: tuple[tuple[int, ...], ...]


class DigestList:
    """One learn list. `widths`: bits of each value of a sample. `listeners` are called with each sent Digest."""

    def __init__(
        self, learn_list: ir.LearnList, widths: tuple[int, ...], lock: RLock, clock: Callable[[], int]
    ) -> None:
        self.list = learn_list
        self.widths = widths
        self.lock = lock
        self.clock = clock
        self.listeners: list[Callable[[Digest], None]] = []
        self.max_samples = MAX_SAMPLES
        self.timeout_us = 1000 * TIMEOUT_MS
        self.reset()

    @locked
    def reset(self) -> None:
        self.buffer_id = 0
        self.pending: list[tuple[int, ...]] = []
        self.started_us = 0
        self.known: set[tuple[int, ...]] = set()
        self.unacknowledged: dict[int, dict[int, tuple[int, ...]]] = {}

    @locked
    def add(self, sample: tuple[int, ...]) -> None:
        """Add a sample, unless it is already waiting for acknowledgement."""
        if sample in self.known:
            return
        self.known.add(sample)
        if not self.pending:
            self.started_us = self.clock()
        self.pending.append(sample)
        if len(self.pending) >= self.max_samples:
            self.flush()

    @locked
    def flush(self) -> None:
        if not self.pending:
            return
        digest = Digest(self.list.id, self.buffer_id, tuple(self.pending))
        self.unacknowledged[self.buffer_id] = dict(enumerate(self.pending))
        self.pending = []
        self.buffer_id += 1
        for listener in list(self.listeners):
            listener(digest)

    @property
    def is_waiting(self) -> bool:
        """Whether there are samples that a timeout will send."""
        return bool(self.pending and self.timeout_us)

    @locked
    def poll(self) -> int | None:
        """Send the buffer if its timeout has expired. Otherwise returns µs until it will expire, or None if there is
        none."""
        if not self.is_waiting:
            return None
        left = self.started_us + self.timeout_us - self.clock()
        if left <= 0:
            self.flush()
            return None
        return left

    @locked
    def acknowledge(self, buffer_id: int, samples: Iterable[int] | None = None) -> None:
        """Release samples of a buffer (by their number in it; None: all) for resending. Unknown ones are ignored."""
        buffer = self.unacknowledged.get(buffer_id, {})
        for number in list(buffer) if samples is None else list(samples):
            self.known.discard(buffer.pop(number, None))
        if not buffer:
            self.unacknowledged.pop(buffer_id, None)

    @locked
    def set_timeout(self, timeout_ms: int) -> None:
        """Set the age at which a buffer is sent; 0: only when it is full."""
        if timeout_ms < 0:
            raise ControlError("Learn", "ERROR", f"a time-out can't be negative: {timeout_ms} ms")
        self.timeout_us = 1000 * timeout_ms

    @locked
    def set_max_samples(self, n: int) -> None:
        """Set the number of samples that fill a buffer."""
        if n < 1:
            raise ControlError("Learn", "ERROR", f"a buffer must hold at least one sample, not {n}")
        self.max_samples = n
        if len(self.pending) >= n:
            self.flush()
