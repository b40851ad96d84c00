"""When: to decide, to report what a step took, to heed an alarm, to send a probe.

All that is measured is agreed before it comes here, and there is no clock, so all ranks do the same at the same step.
What this costs is bounded by shares of the time, and becomes less the longer nothing changes.
"""

import math
from collections import deque

from host_agent.compression.adaptive.network import KEPT, Network, low

WORRY, ALARM = 2.0, 8.0
"""The ranks decide at once after two steps so many times slower or faster than those before (not two in a row: what
delays a machine delays several), or one even more so."""
DECISION_SHARE = 0.03
"""Of the time goes into agreeing, at most, unless steps are so long that one decision a step is less. While decisions
change nothing the pause between them doubles."""
MOST_STEPS = 64
"""Between two decisions. What happens in between is seen by the `Watch`."""
REPORT_SHARE, MOST_UNREPORTED, MOST_UNREPORTED_FEW = 0.03, 8, 16
"""A report of what a step took keeps nobody waiting, but is a collective all the same: it may take this share of the
time, were it waited for, or comes after every eighth step; after every sixteenth where the step's bytes are so few that
a slower network would hardly be felt."""
PROBE_SHARE = 0.015
"""Of the time, at most, that goes into finding out how fast bytes go while steps send too few to tell."""
LEAST_PROBE_BYTES, MOST_PROBE_BYTES = 1 << 13, 1 << 20
MOST_LEAST_BYTES = 1 << 16
"""What the first probe grows to where smaller ones were wrong: token buckets let a few bytes pass at any rate."""
LASTING_S = 0.5
"""What a probe has found is to hold for so many seconds of exchanges."""


class Calendar:
    """The steps after which something is done."""

    def __init__(self) -> None:
        self.decide_at = 1
        self.decided_at = 0
        self._pause = self._report_every = 1

    def plan(self, step: int, step_s: float, network: Network, is_open: bool) -> None:
        """A decision was made before `step`. `step_s`: of a step's exchanges. `is_open`: the next may well differ."""
        in_steps = network.latency_s / step_s if step_s > 0 else 0.0
        least = max(1, math.ceil(in_steps / DECISION_SHARE))
        self._pause = min(MOST_STEPS, least if is_open else max(least, 2 * self._pause))
        most = MOST_UNREPORTED if network.is_rate_felt else MOST_UNREPORTED_FEW
        self._report_every = max(1, min(most, math.ceil(in_steps / REPORT_SHARE)))
        self.decide_at, self.decided_at = step + self._pause, step

    def hasten(self, step: int, steps: float = 1) -> None:
        """The next decision after `step` should not come later than after so many more."""
        self.decide_at = min(self.decide_at, step + max(1, math.ceil(min(steps, MOST_STEPS))))

    def is_reported(self, step: int) -> bool:
        """Whether to report what `step` took; before a decision, which includes it anyway, it is not worth it."""
        return 0 < step < self.decide_at - 1 and (step - self.decided_at) % self._report_every == 0


class Watch:
    """Sees by the next step that the network has changed; fed with agreed seconds of the exchanges of each step."""

    def __init__(self) -> None:
        self._choices: tuple[str, ...] = ()
        self._times: deque[float] = deque(maxlen=KEPT)
        self._is_wary = False
        """The last step that was reported was odd: if the next one is too, that is an alarm."""

    def sees_change(self, choices: tuple[str, ...], seconds: float, latency_s: float) -> bool:
        """Whether steps are out of all proportion to those before them that took the same `choices`."""
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
    """Probes, bytes that only show how fast they go: few at first, more where they went too fast to be timed."""

    def __init__(self) -> None:
        self._least = self._bytes = LEAST_PROBE_BYTES
        self._probed_at_s = 0.0
        self._regime = -1
        self._new_regime = -2, 0.0  # which a probe was the first to see, and when
        self._now_s = self._expected_s = 0.0

    def due(self, network: Network, now_s: float) -> tuple[int, float]:
        """How many bytes to send now, 0: none; and in how many seconds of exchanges the next may be due. `now_s`:
        agreed seconds spent on exchanges so far."""
        self._now_s = now_s
        if network.is_rate_visible or not network.is_known:
            self._probed_at_s = now_s
            return 0, math.inf
        if network.regime != self._regime:
            if (
                self._new_regime[0] == self._regime and now_s - self._new_regime[1] < LASTING_S
            ):  # it was too small to tell
                self._least = min(2 * self._least, MOST_LEAST_BYTES)
            self._regime, self._bytes = network.regime, self._least
        self._expected_s = network.seconds(1, self._bytes)
        wait_s = self._probed_at_s + self._expected_s / PROBE_SHARE - now_s
        if wait_s > 0:
            return 0, wait_s
        self._probed_at_s = now_s
        return self._bytes, 0.0

    def took(self, wire_bytes: int, seconds: float, latency_s: float, network: Network) -> None:
        """A probe of so many bytes took so long, as agreed, and `latency_s` the request before it."""
        regime = network.regime
        is_visible = network.learn_probe(wire_bytes, seconds, latency_s)
        self._bytes = wire_bytes if is_visible else min(4 * wire_bytes, MOST_PROBE_BYTES)
        # What it took too long is saved up for before the next.
        self._probed_at_s = self._now_s + max(0.0, seconds - self._expected_s) / PROBE_SHARE
        if network.regime != regime:  # go on at once, with larger ones: there may be more to find
            self._regime, self._probed_at_s = network.regime, -math.inf
            self._new_regime = network.regime, self._now_s
