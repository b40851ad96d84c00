"""What the network does, learned from the collectives that training makes anyway: seconds a request and seconds a byte.

All samples are agreed (the least of all ranks' times: the last rank to arrive waits for nobody), so every rank learns
the same, bit for bit.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median

KEPT = 5
"""Samples that an estimate is the median of."""
JUMP, LEAP = 1.5, 4.0
"""The network has changed if two samples in a row are so far from the estimate, or one is."""
LEAST_SHARE = 0.05
"""Of a sample's time that is put down to its bytes, whatever the requests take: an estimate never becomes 0."""
VISIBLE_SHARE = 0.3
"""From here on the time of the bytes stands out from the time of the requests."""


@dataclass(frozen=True)
class Sample:
    """The exchanges of one step together. `wire_bytes`: on the busier direction of a rank's link. `choices`: what its
    buckets went through; a difference between steps with the same is a difference of the network."""

    choices: tuple[tuple[int, int], ...]
    requests: int
    wire_bytes: int
    seconds: float


class Network:
    """The two estimates, and in which `regime` they hold: a number that grows when the network changes."""

    def __init__(self) -> None:
        self.regime = 0
        self._latencies: deque[float] = deque(maxlen=2 * KEPT)
        self._rates: deque[float] = deque(maxlen=KEPT)
        self._last_choices: tuple | None = None
        self._odd: list[float] = []
        self._share = 1.0

    @property
    def is_known(self) -> bool:
        return bool(self._latencies and self._rates)

    @property
    def latency_s(self) -> float:
        """Seconds of a request that hardly carries anything."""
        return median(self._latencies) if self._latencies else 0.0

    @property
    def s_per_byte(self) -> float:
        return median(self._rates) if self._rates else 0.0

    @property
    def goodput_bps(self) -> float:
        """Bits a second that a long collective gets; 0 if unknown."""
        return 8 / self.s_per_byte if self.s_per_byte else 0.0

    @property
    def is_rate_visible(self) -> bool:
        """Whether the latest samples say how fast bytes go, and not only that they go faster than could be seen."""
        return self._share >= VISIBLE_SHARE

    def seconds(self, requests: int, wire_bytes: float) -> float:
        """What an exchange should take."""
        return requests * self.latency_s + wire_bytes * self.s_per_byte

    def add_latency(self, seconds: float) -> None:
        self._latencies.append(seconds)

    def add(self, sample: Sample) -> None:
        """Learn from a step; starts afresh if it shows that the network has changed."""
        if sample.wire_bytes <= 0:
            return
        bulk_s = max(sample.seconds - sample.requests * self.latency_s, LEAST_SHARE * sample.seconds)
        rate = bulk_s / sample.wire_bytes
        self._share = bulk_s / max(sample.seconds, 1e-9)
        is_same, self._last_choices = sample.choices == self._last_choices, sample.choices
        if not self.is_rate_visible:
            # The requests took the time: all that is known is that a byte takes no longer than this.
            slowest = sample.seconds / sample.wire_bytes
            if not self._rates or self.s_per_byte > slowest:
                self._rates.append(slowest)
            return
        if self._rates:
            factor = max(rate / self.s_per_byte, self.s_per_byte / rate)
            self._odd = [*self._odd, rate] if factor > JUMP and (is_same or not self._odd) else []
            if factor > LEAP or len(self._odd) > 1:
                self.regime += 1
                self._rates.clear()
                self._rates.append(rate)
                self._odd = []
                return
        self._rates.append(rate)
