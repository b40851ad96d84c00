"""What the network does, learned from the collectives that training makes anyway, and from probes where these are too
small to tell: seconds a request and seconds a byte.

All samples are agreed (the least of all ranks' times: the last rank to arrive waits for nobody), so every rank learns
the same, bit for bit. A machine that does other things as well makes times longer, for some steps on end, and never
shorter: so estimates are low quartiles, what is faster is believed sooner than what is slower, and what is slower only
where its bytes stand out, and three times over.
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

KEPT = 8
"""Samples that an estimate is made from."""
JUMP, LEAP = 1.5, 4.0
"""The network has changed if samples are so far from the estimate: two in a row, or one that is a leap faster."""
SLOWER, PROBE_COUNTS = 3, 2
"""It has become slower if so many say so; a probe, which is made to find that out, counts for so many."""
LASTING_STEPS, CLEARLY = 16, 8.0
"""And unless steps take so many times as long, or a probe is among them, they must lie so many steps apart: what else
the machine does is over by then."""
LEAST_SHARE = 0.05
"""Of a sample's time that is put down to its bytes, whatever the requests take: an estimate never becomes 0."""
VISIBLE_SHARE = 0.35
"""From here on the time of the bytes stands out from the time of the requests."""
FELT_SHARE = 0.05
"""And from here on steps would take several times as long, were the network fifty times slower."""
LATER = 3.0
"""How many times its least a latency may be."""

SUM, GATHER = 0, 1
"""Routes: sums go through the aggregator, gathers over other sockets; their requests differ in what they take."""


def low(samples: Iterable[float]) -> float:
    """The lower quartile: what a sample is where nothing else keeps the machine busy."""
    ordered = sorted(samples)
    return ordered[len(ordered) // 4]


@dataclass(frozen=True)
class Sample:
    """The exchanges of one step together that took one `route`. `wire_bytes`: on the busier direction of a rank's link.
    `choices`: what their buckets went through."""

    choices: tuple[tuple[int, int], ...]
    requests: int
    wire_bytes: int
    seconds: float
    route: int = SUM


class Network:
    """The estimates, and in which `regime` they hold: a number that grows when the network changes."""

    def __init__(self) -> None:
        self.regime = 0
        self._latencies: dict[int, deque[float]] = {route: deque(maxlen=KEPT) for route in (SUM, GATHER)}
        self._least_gather_s = math.inf
        self._rates: deque[float] = deque(maxlen=KEPT)
        self._odd: list[float] = []
        self._odd_since = 0
        self._share = 1.0

    @property
    def is_known(self) -> bool:
        return bool(self._latencies[SUM] and self._rates)

    @property
    def latency_s(self) -> float:
        """Seconds of a request through the aggregator that hardly carries anything."""
        return self.latency_of(SUM)

    def latency_of(self, route: int) -> float:
        """The same of a request by that route; as long as nothing is known of it, as the other."""
        known = self._latencies[route] or self._latencies[SUM]
        return low(known) if known else 0.0

    @property
    def s_per_byte(self) -> float:
        return low(self._rates) if self._rates else 0.0

    @property
    def goodput_bps(self) -> float:
        """Bits a second that a long collective gets; 0 if unknown."""
        return 8 / self.s_per_byte if self._rates else 0.0

    @property
    def is_rate_felt(self) -> bool:
        """Whether steps would soon take much longer if bytes did."""
        return self._share >= FELT_SHARE

    @property
    def is_rate_visible(self) -> bool:
        """Whether the latest step said how fast bytes go, and not only that they go faster than could be seen."""
        return self._share >= VISIBLE_SHARE

    @property
    def is_suspicious(self) -> bool:
        """Whether the latest samples look as if the network had changed."""
        return bool(self._odd)

    def seconds(self, requests: int, wire_bytes: float, route: int = SUM) -> float:
        """What an exchange should take."""
        return requests * self.latency_of(route) + wire_bytes * self.s_per_byte

    def add_latency(self, seconds: float) -> None:
        self._latencies[SUM].append(seconds)

    def learn(self, step: int, samples: Iterable[Sample]) -> None:
        """Learn before `step` from steps that followed each other. They count as one for each route and choices: what
        delays one step delays the next as well."""
        alike: dict[tuple[Any, ...], list[Sample]] = {}
        for sample in samples:
            if sample.wire_bytes > 0:
                alike.setdefault((sample.route, sample.choices), []).append(sample)
        for steps in alike.values():
            steps.sort(key=lambda sample: sample.seconds)
            self._add(step, steps[len(steps) // 4])

    def learn_probe(self, wire_bytes: int, seconds: float, latency_s: float) -> bool:
        """Learn from a probe, right after a request that took `latency_s`; whether it was enough to show the rate."""
        latency_s = max(latency_s, self.latency_s)
        bulk_s = seconds - latency_s
        is_visible = bulk_s >= VISIBLE_SHARE * seconds
        if is_visible:
            self._judge(bulk_s / wire_bytes, PROBE_COUNTS, is_sure=True)
        else:
            self._bound(seconds / wire_bytes)
        return is_visible

    def _add(self, step: int, sample: Sample) -> None:
        if sample.route == GATHER and self._rates and self._takes_for_latency(sample):
            return
        bulk_s = max(sample.seconds - sample.requests * self.latency_of(sample.route), LEAST_SHARE * sample.seconds)
        self._share = bulk_s / max(sample.seconds, 1e-9)
        if self.is_rate_visible:
            if not self._odd:
                self._odd_since = step
            times = sample.seconds / max(self.seconds(sample.requests, sample.wire_bytes, sample.route), 1e-9)
            is_sure = times >= CLEARLY or step - self._odd_since >= LASTING_STEPS
            self._judge(bulk_s / sample.wire_bytes, 1, is_sure)
        else:
            self._odd = []
            self._bound(sample.seconds / sample.wire_bytes)

    def _takes_for_latency(self, sample: Sample) -> bool:
        """A gather whose bytes can hardly take most of its time, at the rate that is known, tells what its requests
        take: nothing else does. What takes longer than that is late, or the network is slower: a probe will tell."""
        bulk_s = sample.wire_bytes * self.s_per_byte
        if bulk_s > VISIBLE_SHARE * sample.seconds:
            return False
        self._share = bulk_s / max(sample.seconds, 1e-9)
        latency_s = max((sample.seconds - bulk_s) / max(1, sample.requests), 0.0)
        # Against the least ever: against the latest, it would creep up with the time that bytes take.
        if latency_s <= LATER * self._least_gather_s:
            self._least_gather_s = min(self._least_gather_s, max(latency_s, self.latency_s / LATER))
            self._latencies[GATHER].append(latency_s)
        return True

    def _bound(self, slowest: float) -> None:
        """The requests took the time: all that is known is that a byte takes no longer than `slowest`."""
        if self._rates and self.s_per_byte > JUMP * slowest:
            self._start_afresh()
        if not self._rates or self.s_per_byte > slowest:
            self._rates.append(slowest)

    def _judge(self, rate: float, counts: int, is_sure: bool) -> None:
        """A sample's seconds a byte; starts afresh if the network has changed. `is_sure`: whether the machine can
        hardly be why it is slow."""
        known = self.s_per_byte or rate
        if known / JUMP <= rate <= known * JUMP:
            self._odd = []
            self._rates.append(rate)
            return
        is_faster = rate < known
        goes_on = self._odd and (self._odd[-1] < known) == is_faster
        self._odd = (self._odd if goes_on else []) + counts * [rate]
        if rate < known / LEAP or (len(self._odd) >= 2 if is_faster else len(self._odd) >= SLOWER and is_sure):
            changed_rate = low(self._odd)
            self._start_afresh()
            self._rates.append(changed_rate)

    def _start_afresh(self) -> None:
        self.regime += 1
        self._rates.clear()
        self._odd = []
