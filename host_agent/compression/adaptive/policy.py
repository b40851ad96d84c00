"""Choice of a bucket's codec: the shortest expected time among the choices within the bound on the error.

Pure arithmetic on numbers that all ranks have agreed on: no clock, network or randomness, so that every rank makes the
same decision.
"""

import math
from collections import deque
from dataclasses import dataclass, field

from host_agent.compression.adaptive.network import KEPT, SUM, Network
from switchml.codecs.base import CodecSettings, ErrorFeedback, setting
from switchml.codecs.registry import parse_error_feedback, parse_settings
from switchml.errors import ConfigError

CHOICES = ("none", "fp16", "thc", "topk:ratio=0.1", "topk:ratio=0.03", "topk:ratio=0.01", "topk:ratio=0.003")
"""Choices from exact to coarse. All work with residual error feedback, so that a bucket may change from any to any
other."""

ERROR_FEEDBACKS = ("residual", "none")
"""Error feedback that suits every choice: the residual has the same meaning for all, so a change of codec loses
nothing."""
ALIKE, STAY = 1.03, 1.08
"""Tolerance factors: among choices within ALIKE of the fastest, the most exact is taken; the current choice is kept
within STAY of the fastest."""
TRIAL_STEPS = 40
"""Number of measured steps after which a trial's measurement replaces the model's estimate."""
HOPELESS_STEPS, HOPELESS = 8, 2.5
"""A trial also ends after HOPELESS_STEPS steps that took more than HOPELESS times as long as those with the best
choice."""
SLACK = 0.15
"""Assumed error of the model, as a share of a step with the best choice: choices whose expected time is longer by less
are tried."""
OTHER_RATE = 8.0
"""Measurements remain valid while the network's rate changes by less than this factor."""
AGAIN_STEPS = 4000
"""Number of steps after which a choice may be tried again; doubled after each trial."""


@dataclass(frozen=True)
class Auto(CodecSettings):
    """`--codec auto`: settings of the automatic choice."""

    name = "auto"

    error: float = setting(
        0.9, "largest share of a bucket's norm that a step may leave for later ones", above=0, most=1
    )


def is_auto(text: str) -> bool:
    """Whether the text of a codec selects the automatic choice."""
    return text.strip().partition(":")[0] == Auto.name


def parse_auto(text: str) -> Auto:
    """Parse the settings in "auto" or "auto:error=0.9". Raises ConfigError."""
    return parse_settings("codec", {Auto.name: Auto}, text)


def check_error_feedback(choice: str | ErrorFeedback | None) -> ErrorFeedback:
    """Return the error feedback for `choice`, by default residual. Raises ConfigError if it does not suit
    every choice."""
    feedback = choice if isinstance(choice, ErrorFeedback) else parse_error_feedback(choice or "residual")
    if feedback.name not in ERROR_FEEDBACKS:
        raise ConfigError(f"memory {feedback.name} with codec auto: expected one of {', '.join(ERROR_FEEDBACKS)}")
    return feedback


@dataclass(frozen=True)
class Costs:
    """Costs of a choice for a bucket, as agreed by the ranks; infinite if unknown. `wire_bytes`, `requests`: of one
    exchange, which takes the network's `route`."""

    requests: int = 0
    wire_bytes: int = 0
    compute_s: float = math.inf
    error: float = math.inf
    route: int = SUM

    @property
    def is_known(self) -> bool:
        return math.isfinite(self.compute_s)


@dataclass
class _Trial:
    """Measured step times of a choice, at about the same network rate: (median seconds, steps) pairs."""

    medians: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=KEPT))
    steps: int = 0
    last_step: int = 0
    times: int = 1
    """Number of trials of this choice so far."""

    @property
    def seconds(self) -> float:
        weights = sum(steps for _, steps in self.medians)
        return sum(seconds * steps for seconds, steps in self.medians) / weights

    def is_over(self, best_s: float) -> bool:
        return self.steps >= TRIAL_STEPS or (self.steps >= HOPELESS_STEPS and self.seconds > HOPELESS * best_s)


class BucketPolicy:
    """Decisions for one bucket. `costs[i]` belongs to `CHOICES[i]`; `current` is the index of the choice in use."""

    def __init__(self, error: float, choices: int = len(CHOICES)):
        self.error = error
        self.costs = [Costs() for _ in range(choices)]
        self.current = 0
        self._trials: dict[int, _Trial] = {}
        self._s_per_byte = 0.0
        """Network rate at which the trials were measured."""
        self.is_open = True
        """Whether the next decision is likely to change the choice."""

    def record(self, step: int, seconds: float, steps: int) -> None:
        """Record `steps` steps with the current choice, the last one before `step`, whose computation and exchange took
        `seconds` each (median), in the network of the last decision."""
        trial = self._trials.setdefault(self.current, _Trial())
        trial.medians.append((seconds, steps))
        trial.steps += steps
        trial.last_step = step

    def expected_s(self, choice: int, network: Network) -> float:
        """Duration of a step with `choice` according to the model, without waiting for other ranks or contention."""
        costs = self.costs[choice]
        return costs.compute_s + network.seconds(costs.requests, costs.wire_bytes, costs.route)

    def admissible(self) -> list[int]:
        """Choices whose costs are known and whose error is within the bound; `none` (0) is always within it."""
        return [i for i, costs in enumerate(self.costs) if costs.is_known and (i == 0 or costs.error <= self.error)]

    def decide(self, step: int, network: Network, training_s: float = 0.0) -> int:
        """Decide on the choice from `step` on. `training_s`: agreed seconds of a step excluding all buckets' exchanges.

        1. In a new network, take the choice with the shortest expected time, or the most exact of those nearly as
           short.
        2. Try each choice whose expected time is nearly as short for some steps.
        3. Take the choice with the shortest measured time, unless the gain is small.
        """
        allowed = self.admissible()
        if not allowed or not network.is_known:
            return self.current
        expected = {choice: self.expected_s(choice, network) for choice in allowed}
        times = network.s_per_byte / self._s_per_byte if self._s_per_byte else math.inf
        if not 1 / OTHER_RATE <= times <= OTHER_RATE:
            self._s_per_byte = network.s_per_byte
            self._trials.clear()
            self.current = _most_exact(expected)
        else:
            self._forget_late(step)
            self.current = self._next(expected, SLACK * (training_s + min(expected.values())))
        return self.current

    def _next(self, expected: dict[int, float], slack_s: float) -> int:
        measured_s = {
            choice: trial.seconds for choice, trial in self._trials.items() if choice in expected and trial.medians
        }
        best_s = min(measured_s.values(), default=0.0)
        trial = self._trials.get(self.current)
        self.is_open = True
        if self.current in expected and (trial is None or not trial.is_over(best_s)):
            return self.current
        most_s = min(expected.values()) + slack_s
        untried = [choice for choice in expected if choice not in measured_s and expected[choice] <= most_s]
        if untried or not measured_s:
            return min(untried or expected, key=expected.__getitem__)
        best = _most_exact(measured_s)
        if self.current in measured_s and measured_s[self.current] <= STAY * best_s:
            best = self.current
        self.is_open = best != self.current
        return best

    def _forget_late(self, step: int) -> None:
        """Allow another trial of choices that were tried long ago."""
        for choice, trial in self._trials.items():
            if choice != self.current and trial.medians and step - trial.last_step > AGAIN_STEPS * trial.times:
                self._trials[choice] = _Trial(times=2 * trial.times)


def _most_exact(seconds: dict[int, float]) -> int:
    """The most exact of the choices within a factor ALIKE of the fastest."""
    least = min(seconds.values())
    return min(choice for choice, one in seconds.items() if one <= ALIKE * least)
