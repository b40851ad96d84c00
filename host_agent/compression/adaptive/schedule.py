"""Schedule of decisions, step-time reports, alarms and probes.

The ranks agree on all measurements before they are passed in, and there is no clock, so all ranks do the same at the
same step. The cost is bounded by shares of the time, and decreases while nothing changes.
"""

import math
from collections import deque

from host_agent.compression.adaptive.network import KEPT, Network, low

WORRY, ALARM = 2.0, 8.0
"""Factors of change in step time that trigger a decision: ALARM in one step, or WORRY and then WORRY again in the next
(one machine delay can affect several steps)."""
DECISION_SHARE = 0.03
"""Maximum share of the time spent on agreement, unless steps are so long that one decision per step takes less. While
decisions change nothing, the pause between them doubles."""
MAX_STEPS = 64
"""Maximum number of steps between two decisions. `Watch` detects changes in between."""
REPORT_SHARE, MAX_UNREPORTED, MAX_UNREPORTED_FEW = 0.03, 8, 16
"""A report of a step's time is asynchronous, but is still a collective: reports may take REPORT_SHARE of the time, as
if they were synchronous, or are made after every MAX_UNREPORTED steps; after every MAX_UNREPORTED_FEW where the steps
send so few bytes that a slower network would hardly matter."""
PROBE_SHARE = 0.015
"""Maximum share of the time spent on measuring the rate with probes while steps send too few bytes to show it."""
MIN_PROBE_BYTES, MAX_PROBE_BYTES = 1 << 13, 1 << 20
MAX_MIN_BYTES = 1 << 16
"""Limit to which the first probe grows if smaller ones were misleading: token buckets let a few bytes pass at any rate.
"""
LASTING_S = 0.5
"""Seconds of exchanges for which a probe's result should hold."""


class Calendar:
    """The steps after which decisions and reports are due."""

    def __init__(self) -> None:
        self.decide_at = 1
        self.decided_at = 0
        self._pause = self._report_every = 1

    def plan(self, step: int, step_s: float, network: Network, is_open: bool) -> None:
        """Schedule the next decision after one before `step`. `step_s`: seconds of a step's exchanges. `is_open`:
        whether the next decision is likely to change the choice."""
        in_steps = network.latency_s / step_s if step_s > 0 else 0.0
        least = max(1, math.ceil(in_steps / DECISION_SHARE))
        self._pause = min(MAX_STEPS, least if is_open else max(least, 2 * self._pause))
        most = MAX_UNREPORTED if network.is_rate_felt else MAX_UNREPORTED_FEW
        self._report_every = max(1, min(most, math.ceil(in_steps / REPORT_SHARE)))
        self.decide_at, self.decided_at = step + self._pause, step

    def hasten(self, step: int, steps: float = 1) -> None:
        """Bring the next decision forward to at most `steps` steps after `step`."""
        self.decide_at = min(self.decide_at, step + max(1, math.ceil(min(steps, MAX_STEPS))))

    def is_reported(self, step: int) -> bool:
        """Whether to report the time of `step`; not right before a decision, which includes it anyway."""
        return 0 < step < self.decide_at - 1 and (step - self.decided_at) % self._report_every == 0


class Watch:
    """Detection of network changes between decisions, from the agreed seconds of each step's exchanges."""

    def __init__(self) -> None:
        self._choices: tuple[str, ...] = ()
        self._times: deque[float] = deque(maxlen=KEPT)
        self._is_wary = False
        """Whether the last reported step was suspicious: if the next one is too, that is an alarm."""

    def sees_change(self, choices: tuple[str, ...], seconds: float, latency_s: float) -> bool:
        """Whether the step is out of proportion to earlier ones with the same `choices`."""
        if choices != self._choices:
            self._choices, self._is_wary = choices, False
            self._times.clear()
        known_s = low(self._times) if self._times else seconds
        times = max((seconds - latency_s) / known_s, (known_s - latency_s) / max(seconds, 1e-9))
        is_alarm = times > (WORRY if self._is_wary else ALARM)
        self._is_wary = times > WORRY and not is_alarm
        if is_alarm:
            self._times.clear()
        if not self._is_wary:
            self._times.append(seconds)
        return is_alarm


class Prober:
    """Sends probes, transfers that only measure the rate: small at first, larger if they were too fast to be timed."""

    def __init__(self) -> None:
        self._least = self._bytes = MIN_PROBE_BYTES
        self._probed_at_s = 0.0
        self._regime = -1
        self._new_regime = -2, 0.0  # regime that a probe detected first, and the time of detection
        self._now_s = self._expected_s = 0.0

    def due(self, network: Network, now_s: float) -> tuple[int, float]:
        """Number of bytes to send now (0: none), and seconds of exchanges until the next probe may be due. `now_s`:
        agreed seconds spent on exchanges so far."""
        self._now_s = now_s
        if network.is_rate_visible or not network.is_known:
            self._probed_at_s = now_s
            return 0, math.inf
        if network.regime != self._regime:
            if (
                self._new_regime[0] == self._regime and now_s - self._new_regime[1] < LASTING_S
            ):  # the probe was too small to show the rate
                self._least = min(2 * self._least, MAX_MIN_BYTES)
            self._regime, self._bytes = network.regime, self._least
        self._expected_s = network.seconds(1, self._bytes)
        wait_s = self._probed_at_s + self._expected_s / PROBE_SHARE - now_s
        if wait_s > 0:
            return 0, wait_s
        self._probed_at_s = now_s
        return self._bytes, 0.0

    def record(self, wire_bytes: int, seconds: float, latency_s: float, network: Network) -> None:
        """Record the agreed duration of a probe of `wire_bytes` bytes, and `latency_s`, that of the request
        before it."""
        regime = network.regime
        is_visible = network.learn_probe(wire_bytes, seconds, latency_s)
        self._bytes = wire_bytes if is_visible else min(4 * wire_bytes, MAX_PROBE_BYTES)
        # Time beyond the expected is compensated by a longer pause before the next probe.
        self._probed_at_s = self._now_s + max(0.0, seconds - self._expected_s) / PROBE_SHARE
        if network.regime != regime:  # continue at once, with larger probes: the rate may have changed further
            self._regime, self._probed_at_s = network.regime, -math.inf
            self._new_regime = network.regime, self._now_s
