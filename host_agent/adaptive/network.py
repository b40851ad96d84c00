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


SUM, GATHER = 0, 1
"""Ways: sums go through the aggregator, gathers by whatever the backend has; their bytes differ in speed."""


@dataclass(frozen=True)
class Sample:
    """The exchanges of one step together that went one `way`. `wire_bytes`: on the busier direction of a rank's link.
    `choices`: what their buckets went through; a difference between steps with the same is one of the network."""

    choices: tuple[tuple[int, int], ...]
    requests: int
    wire_bytes: int
    seconds: float
    way: int = SUM


class _Rate:
    """Seconds a byte, one way."""

    def __init__(self) -> None:
        self.samples: deque[float] = deque(maxlen=KEPT)
        self.odd: list[float] = []
        self.choices: tuple = ()

    def has_changed(self, rate: float, choices: tuple) -> bool:
        """Whether a sample shows another network than those before."""
        is_same, self.choices = choices == self.choices, choices
        if not self.samples:
            return False
        known = median(self.samples)
        factor = max(rate / known, known / rate)
        self.odd = [*self.odd, rate] if factor > JUMP and (is_same or not self.odd) else []
        return factor > LEAP or len(self.odd) > 1


class Network:
    """The two estimates, and in which `regime` they hold: a number that grows when the network changes."""

    def __init__(self) -> None:
        self.regime = 0
        self._latencies: deque[float] = deque(maxlen=2 * KEPT)
        self._rates = {SUM: _Rate(), GATHER: _Rate()}
        self._share = 1.0

    @property
    def is_known(self) -> bool:
        return bool(self._latencies) and any(rate.samples for rate in self._rates.values())

    @property
    def latency_s(self) -> float:
        """Seconds of a request that hardly carries anything."""
        return median(self._latencies) if self._latencies else 0.0

    def s_per_byte(self, way: int = SUM) -> float:
        """As seen that way; if nothing was since the network changed, as seen the other."""
        known = self._rates[way].samples or self._rates[1 - way].samples
        return median(known) if known else 0.0

    @property
    def goodput_bps(self) -> float:
        """Bits a second that a long collective gets; 0 if unknown."""
        best = min((median(rate.samples) for rate in self._rates.values() if rate.samples), default=0.0)
        return 8 / best if best else 0.0

    @property
    def is_rate_visible(self) -> bool:
        """Whether the latest samples say how fast bytes go, and not only that they go faster than could be seen."""
        return self._share >= VISIBLE_SHARE

    def seconds(self, requests: int, wire_bytes: float, way: int = SUM) -> float:
        """What an exchange should take."""
        return requests * self.latency_s + wire_bytes * self.s_per_byte(way)

    def add_latency(self, seconds: float) -> None:
        self._latencies.append(seconds)

    def add(self, sample: Sample) -> None:
        """Learn from a step; starts afresh if it shows that the network has changed."""
        if sample.wire_bytes <= 0:
            return
        known = self._rates[sample.way]
        bulk_s = max(sample.seconds - sample.requests * self.latency_s, LEAST_SHARE * sample.seconds)
        self._share = bulk_s / max(sample.seconds, 1e-9)
        if not self.is_rate_visible:
            # The requests took the time: all that is known is that a byte takes no longer than this.
            slowest = sample.seconds / sample.wire_bytes
            if not known.samples or median(known.samples) > slowest:
                known.samples.append(slowest)
            return
        rate = bulk_s / sample.wire_bytes
        if known.has_changed(rate, sample.choices):
            self.regime += 1
            self._rates = {SUM: _Rate(), GATHER: _Rate()}
            self._rates[sample.way].choices = sample.choices
        self._rates[sample.way].samples.append(rate)
