"""Egress queues with rate limits: one for each port and priority, served in order of priority (0 is the lowest).

A queue without a rate drains immediately: no packet ever waits in it, and it is full only if its depth is 0. In a queue
with a rate, packets leave 1/rate seconds apart, and a packet that finds the queue full is dropped silently."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from emulator.p4switch.state.state import Queues

T = TypeVar("T")


@dataclass
class _Queue(Generic[T]):
    """A rate-limited queue. `waiting`: (earliest departure in µs, packet)."""

    waiting: deque[tuple[float, T]] = field(default_factory=deque)
    last_sent_us: float = float("-inf")


class EgressQueues(Generic[T]):
    """Packets between ingress and egress. `clock` returns µs."""

    def __init__(self, settings: Queues, clock: Callable[[], int]) -> None:
        self.settings = settings
        self.clock = clock
        self._at_once: deque[T] = deque()
        self._queues: dict[tuple[int, int], _Queue[T]] = {}

    def size(self, port: int, priority: int) -> int:
        """Number of packets in a queue."""
        queue = self._queues.get((port, priority))
        return len(queue.waiting) if queue else 0

    def push(self, port: int, priority: int, packet: T) -> bool:
        """Append a packet. Returns False if the queue is full."""
        if self.size(port, priority) >= self.settings.depth(port, priority):
            return False
        rate = self.settings.rate(port, priority)
        if not rate and not self.size(port, priority):
            self._at_once.append(packet)
            return True
        queue = self._queues.setdefault((port, priority), _Queue())
        queue.last_sent_us = max(self.clock(), queue.last_sent_us + (1e6 / rate if rate else 0))
        queue.waiting.append((queue.last_sent_us, packet))
        return True

    def pop(self) -> T | None:
        """The next packet that may leave now, the highest priority of a port first; None if there is none."""
        if self._at_once:
            return self._at_once.popleft()
        now = self.clock()
        for port, priority in sorted(self._queues, key=lambda key: (key[0], -key[1])):
            waiting = self._queues[port, priority].waiting
            if waiting and waiting[0][0] <= now:
                return waiting.popleft()[1]
        return None

    def next_us(self) -> float | None:
        """Time at which the next packet may leave, or None if none waits."""
        if self._at_once:
            return self.clock()
        return min((queue.waiting[0][0] for queue in self._queues.values() if queue.waiting), default=None)
