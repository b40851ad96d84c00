"""Estimates of the network's latency per request and time per byte, from the collectives of training, and from probes
where these collectives are too small to show the rate.

The ranks agree on all samples (the minimum of their times: the rank that arrives last waits for nobody), so every rank
has the same estimates, bit for bit. Other load on the machine makes times longer for several consecutive steps, and
never shorter. Therefore estimates are low quartiles, faster samples are accepted sooner than slower ones, and slower
ones only if the time of their bytes is visible, and in three samples.
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

KEPT = 8
"""Number of samples in an estimate."""
JUMP, LEAP = 1.5, 4.0
"""Factors from the estimate that indicate a change of the network: two consecutive samples beyond JUMP, or one that is
faster by LEAP."""
SLOWER, PROBE_COUNTS = 3, 2
"""Number of samples that show that the network has become slower; a probe, made for this purpose, counts as
PROBE_COUNTS."""
LASTING_STEPS, CLEARLY = 16, 8.0
"""Unless samples are slower by the factor CLEARLY, or include a probe, they must span LASTING_STEPS steps: other load
on the machine has passed by then."""
MIN_SHARE = 0.05
"""Minimum share of a sample's time attributed to its bytes, however long the requests take, so that an estimate is
never 0."""
VISIBLE_SHARE = 0.35
"""Share of a sample's time from which the time of its bytes can be distinguished from that of its requests."""
FELT_SHARE = 0.05
"""Share of a step's time in bytes from which steps would take several times as long if the network were fifty times
slower."""
LATER = 3.0
"""Accepted latencies, as a multiple of the lowest."""

SUM, GATHER = 0, 1
"""Routes: sums pass through the aggregator, gathers use other sockets; latencies per request differ."""


def low(samples: Iterable[float]) -> float:
    """Lower quartile: the typical sample without other load on the machine."""
    ordered = sorted(samples)
    return ordered[len(ordered) // 4]


@dataclass(frozen=True)
class Sample:
    """All exchanges of one step that took one `route`. `wire_bytes`: on the busier direction of a rank's link.
    `choices`: the (bucket, choice) pairs of the exchanges."""

    choices: tuple[tuple[int, int], ...]
    requests: int
    wire_bytes: int
    seconds: float
    route: int = SUM


class Network:
    """Network estimates, valid for one `regime`: a number that is incremented when the network changes."""

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
        """Seconds of a request through the aggregator with hardly any payload."""
        return self.latency_of(SUM)

    def latency_of(self, route: int) -> float:
        """Latency of a request by `route`; while that is unknown, the latency of sums."""
        known = self._latencies[route] or self._latencies[SUM]
        return low(known) if known else 0.0

    @property
    def s_per_byte(self) -> float:
        return low(self._rates) if self._rates else 0.0

    @property
    def goodput_bps(self) -> float:
        """Bits per second of a long collective; 0 if unknown."""
        return 8 / self.s_per_byte if self._rates else 0.0

    @property
    def is_rate_felt(self) -> bool:
        """Whether steps would soon take much longer if the time per byte grew."""
        return self._share >= FELT_SHARE

    @property
    def is_rate_visible(self) -> bool:
        """Whether the latest step measured the rate, rather than only a lower bound on it."""
        return self._share >= VISIBLE_SHARE

    @property
    def is_suspicious(self) -> bool:
        """Whether the latest samples suggest that the network has changed."""
        return bool(self._odd)

    def seconds(self, requests: int, wire_bytes: float, route: int = SUM) -> float:
        """Expected duration of an exchange."""
        return requests * self.latency_of(route) + wire_bytes * self.s_per_byte

    def add_latency(self, seconds: float) -> None:
        self._latencies[SUM].append(seconds)

    def learn(self, step: int, samples: Iterable[Sample]) -> None:
        """Learn from the consecutive steps before `step`. Samples of the same route and choices count as one, since a
        delay affects consecutive steps."""
        alike: dict[tuple[Any, ...], list[Sample]] = {}
        for sample in samples:
            if sample.wire_bytes > 0:
                alike.setdefault((sample.route, sample.choices), []).append(sample)
        for steps in alike.values():
            steps.sort(key=lambda sample: sample.seconds)
            self._add(step, steps[len(steps) // 4])

    def learn_probe(self, wire_bytes: int, seconds: float, latency_s: float) -> bool:
        """Learn from a probe sent right after a request that took `latency_s`; returns whether it was large enough to
        show the rate."""
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
        bulk_s = max(sample.seconds - sample.requests * self.latency_of(sample.route), MIN_SHARE * sample.seconds)
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
        """Treat a gather as a latency sample if, at the known rate, its bytes take little of its time; no other sample
        shows the latency of gathers. A longer time means a late rank or a slower network, which a probe will show."""
        bulk_s = sample.wire_bytes * self.s_per_byte
        if bulk_s > VISIBLE_SHARE * sample.seconds:
            return False
        self._share = bulk_s / max(sample.seconds, 1e-9)
        latency_s = max((sample.seconds - bulk_s) / max(1, sample.requests), 0.0)
        # Compared with the lowest ever: compared with the latest, it would creep up with the time of the bytes.
        if latency_s <= LATER * self._least_gather_s:
            self._least_gather_s = min(self._least_gather_s, max(latency_s, self.latency_s / LATER))
            self._latencies[GATHER].append(latency_s)
        return True

    def _bound(self, slowest: float) -> None:
        """Learn from a sample dominated by the time of its requests: a byte takes at most `slowest` seconds."""
        if self._rates and self.s_per_byte > JUMP * slowest:
            self._start_afresh()
        if not self._rates or self.s_per_byte > slowest:
            self._rates.append(slowest)

    def _judge(self, rate: float, counts: int, is_sure: bool) -> None:
        """Add a sample's seconds per byte; start a new regime if the network has changed. `is_sure`: whether other load
        on the machine is an unlikely cause of a slow sample."""
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
