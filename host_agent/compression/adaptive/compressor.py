"""Compressed all-reduces whose codec is chosen during training: the compressor that a CodecState uses for `--codec
auto`.

In every step, a bucket uses the same choice on all ranks. Before some steps, the ranks exchange their measurements (one
all-reduce of a few hundred numbers, whose maximum over the ranks counts) and then make the same decisions. After a step
(after every step unless steps are short), they report its network time without waiting for the result until the next
step; if it was out of proportion, they decide before that step.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np

from host_agent.compression.adaptive.network import GATHER, SUM, Network, Sample
from host_agent.compression.adaptive.policy import CHOICES, Auto, BucketPolicy, Costs, check_error_feedback
from host_agent.compression.adaptive.schedule import MIN_PROBE_BYTES, Calendar, Prober, Watch
from host_agent.compression.compressed import Echo, Meter, RankCompressor, Reducer, context_of, drive, warm_up
from switchml import codecs
from switchml.codecs import Codec, Max, StepContext, Sum
from switchml.codecs.base import ErrorFeedback
from switchml.codecs.exchange import StepGuard, failed_mean

REHEARSAL_SHARE = 0.004
"""Share of the time spent on measuring again what choices cost that are not in use."""
KEPT = 5
"""Number of measurements kept per choice; their median counts."""
LATEST_STEPS = 4
"""Number of latest steps from which a decision learns about the network; after an alarm, only the last one."""
LATEST_INTERVALS = 16
"""Number of latest intervals between the starts of two steps' exchanges, whose median is the step time."""


@dataclass
class Health:
    """Counters of the agent since joining; all zero without an agent."""

    rtt_s: float = 0.0
    sent: int = 0
    retransmitted: int = 0


@dataclass
class _Measured:
    """This rank's measurements of a choice for a bucket, from rehearsals and from use."""

    requests: int = 0
    wire_bytes: int = 0
    compute_s: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    errors: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))


@dataclass
class _Bucket:
    number: int
    name: str
    elements: int
    policy: BucketPolicy
    feedback_state: Any
    codec_states: list[Any]
    measured: list[_Measured] = field(default_factory=lambda: [_Measured() for _ in CHOICES])
    calls: int = 0
    rehearsed: int = 0
    durations_s: list[float] = field(default_factory=list)
    """Durations of the calls since the last decision."""


@dataclass
class _Record:
    """Measurements of one call on this rank."""

    step: int
    bucket: int
    choice: int
    route: int
    requests: int
    wire_bytes: float
    network_s: float


class AutoCompressor(RankCompressor):
    """Like `compressed.Compressor`, but with a codec that may change between steps.

    `settings`: the bound on the error. `health`: returns the agent's counters. `decisions` lists each change: the step
    from which it applies (counted from 1), bucket, elements, old and new choice, and the estimates behind it, in bits
    and seconds. Raises ConfigError for error feedback that does not suit every choice.
    """

    def __init__(
        self,
        reducer: Reducer,
        settings: Auto,
        memory: str | ErrorFeedback | None = None,
        *,
        seed: int = 0,
        health: Callable[[], Health] = Health,
    ):
        super().__init__(reducer, check_error_feedback(memory), seed)
        self.settings = settings
        self.codecs = [codecs.parse(text) for text in CHOICES]
        warm_up(self.codecs, reducer)
        self.network, self._calendar, self._watch, self._prober = Network(), Calendar(), Watch(), Prober()
        self._reports: list[tuple[tuple[Any, ...], Callable[[], np.ndarray]]] = []
        self._probe = 0, math.inf
        self.decisions: list[dict[str, Any]] = []
        self.step = 0
        self._health = health
        self._health_before = Health()
        self._buckets: dict[tuple[str, int], _Bucket] = {}
        self._done: set[str] = set()
        self._done_before: frozenset[str] = frozenset()
        self._records: list[_Record] = []
        self._decision_s = math.inf
        self._elapsed_before = 0.0
        self._began_at_s = time.perf_counter()
        self._intervals_s: deque[float] = deque(maxlen=LATEST_INTERVALS)
        self._rehearsed_s = 0.0
        self._busy_s = 0.0

    @property
    def choices(self) -> list[str]:
        """Choices of the latest step's buckets, in order of the buckets."""
        return [CHOICES[bucket.policy.current] for bucket in self._buckets.values() if bucket.name in self._done]

    def allreduce(self, name: str, x: np.ndarray, shape: tuple[int, ...] | None = None) -> np.ndarray:
        """Mean of `x`, float32[n], over the ranks; identical bits on every rank. `name`: the bucket's name; a name that
        was used in this step already begins a new step."""
        self._agree(str(self.settings))
        if name in self._done:
            self._done_before = frozenset(self._done)
            self._done.clear()
            self.step += 1
            self._intervals_s.append(time.perf_counter() - self._began_at_s)
            is_alarm = self._is_alarmed()
            if is_alarm or self.step >= self._calendar.decide_at:
                self._decide(is_alarm)
        if not self._done:
            self._began_at_s = time.perf_counter()
        self._done.add(name)
        bucket = self._bucket(name, x.size)
        choice, codec = bucket.policy.current, self.codecs[bucket.policy.current]
        context = context_of(self.reducer, name, step=self.step, seed=self.seed, lr=self.lr, shape=shape)
        start = time.perf_counter()
        guard = StepGuard(bucket.feedback_state, bucket.codec_states[choice])
        if self.guards is not None:
            self.guards.append(guard)
        with np.errstate(invalid="ignore", over="ignore"):
            compensated = self.error_feedback.compensate(bucket.feedback_state, x, context)
        flag = guard.flag(compensated)
        flags = self.reducer.later(flag, context)
        rehearsed_s = 0.0 if flag.values[0] else self._rehearse_one(bucket, compensated, context)
        measured = bucket.measured[choice]
        meter = Meter(self.reducer, counts=not measured.errors)
        outcome = drive(codec.exchange(bucket.codec_states[choice], compensated, context), meter, context)
        has_failed = guard.failed(flags(), outcome.mean)
        if not has_failed:
            self.error_feedback.update(bucket.feedback_state, compensated, outcome.own, context)
        compute_s = time.perf_counter() - start - rehearsed_s - meter.seconds
        self._busy_s += compute_s + meter.seconds
        self._records.append(
            _Record(
                self.step,
                bucket.number,
                choice,
                _route_of(codec),
                meter.requests or measured.requests,
                meter.wire_bytes or measured.wire_bytes,
                meter.seconds,
            )
        )
        if bucket.calls:  # the first call touches memory for the first time
            measured.compute_s.append(compute_s)
        bucket.durations_s.append(compute_s + meter.seconds)
        bucket.calls += 1
        is_complete = name in self._done_before <= self._done
        if is_complete and self._calendar.is_reported(self.step):
            self._report(context)
        return failed_mean(outcome.mean) if has_failed else outcome.mean

    # -- detecting changes --

    def _report(self, context: StepContext) -> None:
        """Queue the exchange of the completed step's network time. It is queued before any other request can be, so
        that the order is the same on all ranks."""
        records = [record for record in self._records if record.step == self.step]
        choices = tuple((record.bucket, record.choice) for record in records)
        spent_s = sum(record.network_s for record in records)
        self._reports.append((choices, self.reducer.later(Max(np.array([-spent_s], np.float32)), context)))

    def _is_alarmed(self) -> bool:
        """Whether the previous step's network time was out of proportion; the minimum over the ranks counts."""
        reports, self._reports = self._reports, []
        times = [(choices, -float(answer()[0])) for choices, answer in reports]
        latency_s = self.network.latency_s
        return any([self._watch.sees_change(choices, seconds, latency_s) for choices, seconds in times])

    def _probe_rate(self, wire_bytes: int) -> None:
        """Send a probe of `wire_bytes` bytes and time it."""
        context = context_of(self.reducer, "probe")
        start = time.perf_counter()
        self.reducer.reduce(Sum(np.zeros(wire_bytes // 4, np.int32), "int32"), context)
        self._probe = wire_bytes, time.perf_counter() - start

    def _make_sure(self) -> None:
        """After an alarm, confirm the estimated rate, which may be an outlier: probe it, and agree on the result at
        once."""
        self._probe_rate(MIN_PROBE_BYTES)
        context = context_of(self.reducer, "probed")
        times = np.array([-self._probe[1], -self._decision_s], np.float32)
        probe_s, latency_s = (-float(least) for least in self.reducer.reduce(Max(times), context))
        self._prober.record(self._probe[0], probe_s, latency_s, self.network)
        self._probe = 0, math.inf

    def _bucket(self, name: str, elements: int) -> _Bucket:
        key = (name, elements)
        if key not in self._buckets:
            # DDP rebuilds its buckets after the first step, so earlier buckets of this name no longer exist.
            for other in [k for k in self._buckets if k[0] == name]:
                del self._buckets[other]
            self._buckets[key] = _Bucket(
                number=len(self._buckets),
                name=name,
                elements=elements,
                policy=BucketPolicy(self.settings.error),
                feedback_state=self.error_feedback.new_state(),
                codec_states=[codec.new_state() for codec in self.codecs],
            )
            for number, bucket in enumerate(self._buckets.values()):
                bucket.number = number
            self._records.clear()
        return self._buckets[key]

    # -- costs of choices --

    def _rehearse_one(self, bucket: _Bucket, x: np.ndarray, context: StepContext) -> float:
        """Measure one choice on this vector, if a rehearsal is due; returns the seconds spent."""
        if bucket.calls == 0:
            return 0.0
        is_first_round = bucket.rehearsed < len(self.codecs)
        if not is_first_round and self._rehearsed_s > REHEARSAL_SHARE * self._busy_s:
            return 0.0
        choice = bucket.rehearsed % len(self.codecs)
        bucket.rehearsed += 1
        start = time.perf_counter()
        echo = Echo(self.reducer)
        codec = self.codecs[choice]
        outcome = drive(codec.exchange(codec.new_state(), x, context), echo, context)
        rest = x - outcome.own  # the residual that error feedback would keep
        spent_s = time.perf_counter() - start
        measured = bucket.measured[choice]
        measured.requests, measured.wire_bytes = echo.requests, echo.wire_bytes
        measured.compute_s.append(spent_s)
        measured.errors.append(_share(rest, x))
        spent_s = time.perf_counter() - start
        self._rehearsed_s += spent_s
        return spent_s

    # -- agreement and decisions --

    def _decide(self, is_alarm: bool) -> None:
        """1. Exchange this rank's measurements since the last decision and take the maximum over the ranks (for network
           times the minimum: the rank that arrives last waits for nobody).
        2. Update the network estimate.
        3. Decide for each bucket used since the last decision, which are the same on all ranks, since every rank makes
           the same calls.
        """
        buckets = [bucket for bucket in self._buckets.values() if bucket.durations_s]
        records = [r for r in self._records if r.step >= self.step - (1 if is_alarm else LATEST_STEPS)]
        steps = max(1, self.step - self._calendar.decided_at)
        health, elapsed_s = self._health(), self._busy_s
        sent = health.sent - self._health_before.sent
        loss = (health.retransmitted - self._health_before.retransmitted) / sent if sent > 0 else 0.0
        mine = np.array(
            [
                *(-self._decision_s, elapsed_s, median(self._intervals_s), health.rtt_s, loss, -self._probe[1]),
                *(median(bucket.durations_s) for bucket in buckets),
                *_costs_of(buckets),
                *_times_of(records),
            ],
            np.float32,
        )
        start = time.perf_counter()
        worst = self.reducer.reduce(Max(mine), context_of(self.reducer, "auto"))
        self._decision_s = time.perf_counter() - start
        self._health_before = health
        self._records = []
        latency_s, probe_s = -float(worst[0]), -float(worst[5])
        elapsed_s, step_s, rtt_s, loss = worst[1:5].tolist()
        durations, rest = np.split(worst[6:], [len(buckets)])
        costs = rest[: 3 * len(buckets) * len(CHOICES)].reshape(len(buckets), len(CHOICES), 3)
        times = rest[costs.size :].reshape(-1, 2)
        regime = self.network.regime
        if latency_s < math.inf:
            self.network.add_latency(latency_s)
        if self._probe[0]:
            self._prober.record(self._probe[0], probe_s, latency_s, self.network)
            self._probe = 0, math.inf
        self.network.learn(self.step, _samples(records, times))
        if is_alarm:
            self._make_sure()
        exchange_s = (elapsed_s - self._elapsed_before) / steps
        self._elapsed_before = elapsed_s
        if self.network.regime == regime:
            for bucket, seconds in zip(buckets, durations.tolist(), strict=True):
                bucket.policy.record(self.step, seconds, len(bucket.durations_s))
        for bucket in buckets:
            bucket.durations_s.clear()
        for bucket, table in zip(buckets, costs, strict=True):
            self._decide_for(bucket, table, max(step_s - exchange_s, 0.0), {"rtt_s": rtt_s, "loss": loss})
        is_new = is_alarm or self.network.is_suspicious or self.network.regime != regime
        is_open = is_new or any(bucket.policy.is_open for bucket in buckets)
        self._calendar.plan(self.step, exchange_s, self.network, is_open)
        wire_bytes, wait_s = self._prober.due(self.network, elapsed_s)
        if wire_bytes:
            self._probe_rate(wire_bytes)
        if exchange_s > 0:
            self._calendar.hasten(self.step, wait_s / exchange_s)

    def _decide_for(self, bucket: _Bucket, table: np.ndarray, training_s: float, observed: dict[str, float]) -> None:
        """Decide for one bucket. `table`: float32[choices, 3], the values of `_costs_of` for this bucket as agreed by
        the ranks."""
        policy, before = bucket.policy, bucket.policy.current
        policy.costs = [
            Costs(measured.requests, round(wire_bytes), compute_s, error, _route_of(codec))
            for codec, measured, (wire_bytes, compute_s, error) in zip(
                self.codecs, bucket.measured, table.tolist(), strict=True
            )
        ]
        after = policy.decide(self.step, self.network, training_s)
        if after == before:
            return
        self.decisions.append(
            {
                "step": self.step + 1,
                "bucket": bucket.number,
                "elements": bucket.elements,
                "from": CHOICES[before],
                "to": CHOICES[after],
                "error": policy.costs[after].error,
                "wire_bytes": policy.costs[after].wire_bytes,
                "compress_s": policy.costs[after].compute_s,
                "expected_s": policy.expected_s(after, self.network),
                "goodput_bps": self.network.goodput_bps,
                "latency_s": self.network.latency_s,
                **observed,
            }
        )


def _route_of(codec: Codec) -> int:
    return GATHER if codec.aggregation in ("gather", "sparse-sum") else SUM


def _costs_of(buckets: list[_Bucket]) -> list[float]:
    """Bytes on the wire (fewer where a rank's elements are close together), seconds of computation, and error, for each
    bucket and choice; the latter two are infinite for choices that this rank has not measured."""
    return [
        value
        for bucket in buckets
        for measured in bucket.measured
        for value in (
            (measured.wire_bytes, median(measured.compute_s), median(measured.errors))
            if measured.errors
            else (0, math.inf, math.inf)
        )
    ]


def _times_of(records: list[_Record]) -> list[float]:
    return [value for record in records for value in (-record.network_s, record.wire_bytes)]


def _samples(records: list[_Record], times: np.ndarray) -> list[Sample]:
    """Combine the exchanges of each step that took the same route. `times`: float32[records, 2], `_times_of`
    as agreed."""
    exchanges: dict[tuple[int, int], list[_Record]] = {}
    for record, (least_s, wire_bytes) in zip(records, times.tolist(), strict=True):
        agreed = replace(record, network_s=-least_s, wire_bytes=wire_bytes)
        exchanges.setdefault((record.step, record.route), []).append(agreed)
    return [
        Sample(
            tuple((part.bucket, part.choice) for part in parts),
            sum(part.requests for part in parts),
            round(sum(part.wire_bytes for part in parts)),
            sum(part.network_s for part in parts),
            route,
        )
        for (_, route), parts in exchanges.items()
    ]


def _share(rest: np.ndarray, x: np.ndarray) -> float:
    """Relative error |rest| / |x|: 0 for a zero vector, infinite if a value is not finite."""
    whole, left = (float(np.einsum("i,i", v, v)) for v in (x, rest))
    if not math.isfinite(whole + left):
        return math.inf
    return math.sqrt(left / whole) if whole > 0 else 0.0
