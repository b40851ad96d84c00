"""Which choice a bucket takes: the shortest expected time among those within the bound on the error.

Pure arithmetic over numbers that all ranks have agreed on: no clock, no network, no randomness, so that every rank
comes to the same decision.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import median

from host_agent.adaptive.network import KEPT, SUM, Network, low
from switchml.codecs.base import Memory, Settings, setting
from switchml.codecs.registry import parse_memory, parse_settings
from switchml.errors import ConfigError

CHOICES = (
    "none",
    "fp16",
    "thc",
    "topk:ratio=0.1",
    "topk:ratio=0.03",
    "topk:ratio=0.01",
    "topk:ratio=0.003",
)
"""From exact to coarse. All get along with one residual memory, so that a bucket may go from any to any other."""

MEMORIES = ("residual", "none")
"""What suits every choice: their errors have one meaning, so a change of codec loses nothing."""
STAY = 1.08
"""A change must promise to be faster by this factor."""
ALIKE = 1.03
"""Among choices that are as fast but for this factor, the most exact is taken."""
LATENCY_NOISE, STEP_NOISE = 0.05, 0.02
"""And but for these shares of the network's latency and of a whole step, for both."""
SPREAD_TIMES = 4
"""Of what a choice took: from so many on they tell how much they vary, and what the model leaves out."""
FORGET_STEPS, MOST_DOUBLINGS = 25, 6
"""What a choice took that is not in use is believed for so many steps; then the estimate counts again. Each time that
the choice is given up in the same network it is believed twice as long."""
HALF_LIFE_STEPS = 200
"""After so many steps out of use half is believed of what a choice took longer than was expected of it."""


@dataclass(frozen=True)
class Auto(Settings):
    """`--codec auto`: what may be chosen."""

    name = "auto"

    error: float = setting(
        0.9, "largest share of a bucket's norm that a step may leave for later ones", above=0, most=1
    )


def is_auto(text: str) -> bool:
    """Whether the text of a codec means that it is to be chosen."""
    return text.strip().partition(":")[0] == Auto.name


def parse_auto(text: str) -> Auto:
    """The settings in "auto" or "auto:error=0.9". Raises ConfigError."""
    return parse_settings("codec", {Auto.name: Auto}, text)


def check_memory(text: str | None) -> Memory:
    """The memory that `text` names, by default residual. Raises ConfigError if it does not suit every choice."""
    memory = parse_memory(text or "residual")
    if memory.name not in MEMORIES:
        raise ConfigError(f"memory {memory.name} with codec auto: expected one of {', '.join(MEMORIES)}")
    return memory


@dataclass(frozen=True)
class Costs:
    """What a choice costs a bucket, as agreed; infinite where not known. `wire_bytes`, `requests`: of one exchange,
    which goes the network's `way`."""

    requests: int = 0
    wire_bytes: int = 0
    compute_s: float = math.inf
    error: float = math.inf
    way: int = SUM

    @property
    def is_known(self) -> bool:
        return math.isfinite(self.compute_s)


@dataclass
class _Seen:
    """What a choice really took, in this regime."""

    times_s: deque = field(default_factory=lambda: deque(maxlen=KEPT))
    step: int = 0
    given_up: int = 0
    """Times that another one was taken instead."""

    def forget_late(self, step: int) -> None:
        """Drop what was seen too long before `step`."""
        if step - self.step > FORGET_STEPS << min(max(self.given_up - 1, 0), MOST_DOUBLINGS):
            self.times_s.clear()


class BucketPolicy:
    """The decisions about one bucket. `costs[i]` is of `CHOICES[i]`; `current` the index of the one in use."""

    def __init__(self, error: float, choices: int = len(CHOICES)):
        self.error = error
        self.costs = [Costs() for _ in range(choices)]
        self.current = 0
        self._seen: dict[int, _Seen] = {}
        self._step = 0
        self._extra: dict[int, tuple[float, int]] = {}
        """Seconds above the model's, and the step that they were seen in: they outlive a regime."""
        self._regime, self._decided_in = 0, -1
        self._candidate = 0
        self.is_undecided = self.has_changed = False
        """What the last decision was: whether another choice was the best for the first time (it is taken if it is
        again), and whether one was taken."""

    def took(self, step: int, choice: int, seconds: float, network: Network) -> None:
        """Steps with `choice` took `seconds`, computing and exchanging: a figure for all that followed each other."""
        self._follow(network)
        seen = self._seen.setdefault(choice, _Seen())
        seen.times_s.append(seconds)
        seen.step = self._step = step
        if len(seen.times_s) >= SPREAD_TIMES and self.costs[choice].is_known and not network.is_suspicious:
            model_s = self._model_s(choice, network)
            self._extra[choice] = min(max(low(seen.times_s) - model_s, 0.0), model_s), step

    def _model_s(self, choice: int, network: Network) -> float:
        costs = self.costs[choice]
        return costs.compute_s + network.seconds(costs.requests, costs.wire_bytes, costs.way)

    def expected_s(self, choice: int, network: Network) -> float:
        """What a step with `choice` should take: the median of what it took lately and what the model says, so that
        the model counts for one measurement; of a choice that was not in use lately the model's word, and what it was
        wrong by."""
        model_s = self._model_s(choice, network)
        if choice in self._seen and self._seen[choice].times_s:
            return low([model_s, *self._seen[choice].times_s])
        extra_s, step = self._extra.get(choice, (0.0, self._step))
        return model_s + extra_s * 0.5 ** ((self._step - step) / HALF_LIFE_STEPS)

    def admissible(self) -> list[int]:
        """Choices whose costs are known and whose error is within the bound; `none` (0) always is."""
        return [i for i, costs in enumerate(self.costs) if costs.is_known and (i == 0 or costs.error <= self.error)]

    def decide(self, step: int, network: Network, step_s: float = 0.0) -> int:
        """The choice from `step` on. `step_s`: agreed seconds spent on the exchanges of a step, all buckets together.

        1. Expect of each admissible choice what it took, or what costs and network make of it.
        2. Take the shortest, or the most exact of those as short, unless the gain over the current one is small.
        3. In a network that stays the same it must be so twice in a row.
        """
        self._follow(network)
        is_changed, self._decided_in = network.regime != self._decided_in, network.regime
        self._step = step
        for choice, seen in self._seen.items():
            if choice != self.current:
                seen.forget_late(step)
        allowed = self.admissible()
        if not allowed or not network.is_known:
            self.is_undecided = True
            return self.current
        best = self._best_of(allowed, network, step_s)
        self.is_undecided = best != self.current and not (
            is_changed or best == self._candidate or self.current not in allowed
        )
        self._candidate = best
        self.has_changed = best != self.current and not self.is_undecided
        if self.has_changed:
            if self.current in self._seen:
                self._seen[self.current].given_up += 1
            self.current = best
        return self.current

    def _best_of(self, allowed: list[int], network: Network, step_s: float) -> int:
        expected = {choice: self.expected_s(choice, network) for choice in allowed}
        shortest = min(expected.values())
        noise_s = max(LATENCY_NOISE * network.latency_s, STEP_NOISE * step_s)
        best = min(choice for choice in allowed if expected[choice] <= ALIKE * shortest + noise_s)
        if self.current in expected and expected[self.current] <= STAY * expected[best] + max(
            noise_s, self._spread_s() / 2
        ):
            best = self.current
        return best

    def _spread_s(self) -> float:
        """How far the current choice's times are from their median, in the median: what a machine that does other
        things as well adds to any."""
        times = self._seen[self.current].times_s if self.current in self._seen else ()
        if len(times) < SPREAD_TIMES:
            return 0.0
        middle = median(times)
        return median(abs(seconds - middle) for seconds in times)

    def _follow(self, network: Network) -> None:
        if network.regime != self._regime:
            self._regime = network.regime
            self._seen.clear()
