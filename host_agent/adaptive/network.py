"""What the network does, learned from the collectives that training makes anyway, and from a few bytes that are sent
for their own sake where these are too small to tell: seconds a request and seconds a byte.

All samples are agreed (the least of all ranks' times: the last rank to arrive waits for nobody), so every rank learns
the same, bit for bit.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import median

KEPT = 5
"""Samples that an estimate is the median of."""
JUMP, LEAP = 1.5, 4.0
"""The network has changed if two samples in a row are so far from the estimate; it has become faster if one is. That
one sample was slow may have other reasons."""
LEAST_SHARE = 0.05
"""Of a sample's time that is put down to its bytes, whatever the requests take: an estimate never becomes 0."""
VISIBLE_SHARE = 0.5
"""From here on the time of the bytes stands out from the time of the requests."""
LATER = 3.0
"""How many times its least a latency may be."""
ALARM = 2.0
"""The ranks decide at once after a step so many times slower or faster than those before."""
PROBE_SHARE = 0.025
"""Of the time, at most, that goes into finding out how fast bytes go while steps send too few to tell."""
LEAST_PROBE_BYTES, MOST_PROBE_BYTES = 1 << 13, 1 << 20
MOST_LEAST_BYTES = 1 << 16
"""What the first probe grows to where smaller ones were wrong: token buckets let a few bytes pass at any rate."""
LASTING_S = 0.5
"""What a probe has found is to hold for so many seconds of exchanges."""


SUM, GATHER = 0, 1
"""Ways: sums go through the aggregator, gathers by whatever the backend has; their bytes differ in speed."""


PROBE = ((-1, -1),)
"""What a probe names as its choices."""


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
        is_probe = choices == PROBE
        is_same = is_probe or choices == self.choices
        self.choices = self.choices if is_probe else choices
        if not self.samples:
            return False
        known = median(self.samples)
        if max(rate / known, known / rate) > JUMP:
            goes_on = is_same and self.odd and (self.odd[-1] > known) == (rate > known)
            self.odd = [*self.odd, rate] if goes_on else [rate]
        elif not is_probe:  # a few bytes may slip through where many do not: token buckets
            self.odd = []
        return rate < known / LEAP or len(self.odd) > 1


class Network:
    """The two estimates, and in which `regime` they hold: a number that grows when the network changes."""

    def __init__(self) -> None:
        self.regime = 0
        self._latencies: dict[int, deque[float]] = {way: deque(maxlen=2 * KEPT) for way in (SUM, GATHER)}
        self._least_gather_s = math.inf
        self._rates = {SUM: _Rate(), GATHER: _Rate()}
        self._share = 1.0

    @property
    def is_known(self) -> bool:
        return bool(self._latencies[SUM]) and any(rate.samples for rate in self._rates.values())

    @property
    def latency_s(self) -> float:
        """Seconds of a request through the aggregator that hardly carries anything."""
        return self.latency_of(SUM)

    def latency_of(self, way: int) -> float:
        """The same of a request that way; as long as nothing is known of it, as the other."""
        known = self._latencies[way] or self._latencies[SUM]
        return median(known) if known else 0.0

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

    @property
    def is_suspicious(self) -> bool:
        """Whether the latest sample looks as if the network had become slower: a probe will tell."""
        return any(rate.odd for rate in self._rates.values())

    def hide_rate(self) -> None:
        """A probe showed the rate, steps still do not."""
        self._share = 0.0

    def seconds(self, requests: int, wire_bytes: float, way: int = SUM) -> float:
        """What an exchange should take."""
        return requests * self.latency_of(way) + wire_bytes * self.s_per_byte(way)

    def add_latency(self, seconds: float) -> None:
        self._latencies[SUM].append(seconds)

    def _is_latency(self, sample: Sample) -> bool:
        """Whether a gather's time is not one of its bytes, at the rate at which sums go: it goes over other sockets,
        whose latency is told by nothing else. Then it is learned."""
        if sample.way != GATHER or not self._rates[SUM].samples:
            return False
        bulk_s = sample.wire_bytes * self.s_per_byte(SUM)
        latency_s = (sample.seconds - bulk_s) / max(1, sample.requests)
        # Against the least ever: against the latest, it would creep up with the time that bytes take.
        if bulk_s > VISIBLE_SHARE * sample.seconds or latency_s > LATER * self._least_gather_s:
            return False
        self._least_gather_s = min(self._least_gather_s, max(latency_s, self.latency_s / LATER))
        self._latencies[GATHER].append(max(latency_s, 0.0))
        return True

    def add(self, sample: Sample) -> None:
        """Learn from a step; starts afresh if it shows that the network has changed."""
        if sample.wire_bytes <= 0:
            return
        if self._is_latency(sample):
            self._share = 0.0
            return
        known = self._rates[sample.way]
        bulk_s = max(sample.seconds - sample.requests * self.latency_of(sample.way), LEAST_SHARE * sample.seconds)
        self._share = bulk_s / max(sample.seconds, 1e-9)
        if not self.is_rate_visible:
            # The requests took the time: all that is known is that a byte takes no longer than this.
            known.odd = known.odd if sample.choices == PROBE else []
            slowest = sample.seconds / sample.wire_bytes
            if known.samples and median(known.samples) > JUMP * slowest:
                self._start_afresh(sample)
            if not known.samples or median(known.samples) > slowest:
                self._rates[sample.way].samples.append(slowest)
            return
        rate = bulk_s / sample.wire_bytes
        if known.has_changed(rate, sample.choices):
            self._start_afresh(sample)
        sums = self._rates[SUM]
        if sample.way == GATHER and sums.samples and rate > LEAP * median(sums.samples):
            sums.odd = [rate]  # the links are the same
        self._rates[sample.way].samples.append(rate)

    def _start_afresh(self, sample: Sample) -> None:
        self.regime += 1
        self._rates = {SUM: _Rate(), GATHER: _Rate()}
        self._rates[sample.way].choices = sample.choices


class Watch:
    """Sees by the next step that the network has changed; fed with agreed seconds of the exchanges of each step."""

    def __init__(self) -> None:
        self._choices: tuple = ()
        self._times: deque[float] = deque(maxlen=KEPT)

    def sees_change(self, choices: tuple, seconds: float, latency_s: float) -> bool:
        """Whether a step was out of all proportion to those before it that took the same `choices`."""
        if choices != self._choices:
            self._choices = choices
            self._times.clear()
        known_s = median(self._times) if self._times else seconds
        is_odd = seconds > ALARM * known_s + latency_s or known_s > ALARM * seconds + latency_s
        if is_odd:
            self._times.clear()
        self._times.append(seconds)
        return is_odd


class Prober:
    """Bytes that say nothing but how fast they go: few at first, more where they went too fast to be timed."""

    def __init__(self) -> None:
        self._least = self._bytes = LEAST_PROBE_BYTES
        self._probed_at_s = 0.0
        self._regime = -1
        self._found = -2, 0.0  # regime, and when
        self._now_s = self._expected_s = 0.0

    def due(self, network: Network, now_s: float) -> int:
        """How many bytes to send now, 0: none. `now_s`: agreed seconds spent on exchanges so far."""
        self._now_s = now_s
        if network.is_rate_visible or not network.is_known:
            self._probed_at_s = now_s
            return 0
        if network.regime != self._regime:
            if self._found[0] == self._regime and now_s - self._found[1] < LASTING_S:  # it was too small to tell
                self._least = min(2 * self._least, MOST_LEAST_BYTES)
            self._regime, self._bytes = network.regime, self._least
        self._expected_s = network.seconds(1, self._bytes)
        if self._expected_s > PROBE_SHARE * (now_s - self._probed_at_s):
            return 0
        self._probed_at_s = now_s
        return self._bytes

    def took(self, wire_bytes: int, seconds: float, network: Network) -> None:
        """A probe of so many bytes took so long, as agreed."""
        regime, was_visible = network.regime, network.is_rate_visible
        network.add(Sample(PROBE, 1, wire_bytes, seconds))
        # What it took too long is saved up for before the next.
        self._probed_at_s = self._now_s + max(0.0, seconds - self._expected_s) / PROBE_SHARE
        if network.is_rate_visible and not was_visible:
            network.hide_rate()
        elif not network.is_rate_visible:
            self._bytes = min(4 * self._bytes, MOST_PROBE_BYTES)
        if network.regime != regime:  # go on at once, with larger ones: there may be more to find
            self._regime, self._probed_at_s = network.regime, -math.inf
            self._found = network.regime, self._now_s
