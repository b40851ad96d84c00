"""From one iteration to a whole run: periodic checkpoints, seeded random failures, repetition of the work since the
last checkpoint, and a restart after each failure, which may fail, too.
"""

import math
from dataclasses import dataclass

import numpy as np

from switchml.errors import ConfigError, EmulationError
from switchml.runtime.jit import kernel

MAX_EVENTS = 3e8
"""Limit of simulated checkpoints and failures in total: a few seconds."""
HOPELESS = 1e-3
"""A run whose goodput would be below this is refused rather than simulated."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A training run; times in seconds."""

    steps: int
    iteration_s: float
    mtbf_s: float = math.inf
    """Mean time between failures of the job: that of one machine divided by the number of machines."""
    checkpoint_s: float = 0.0
    """Training time lost per checkpoint."""
    checkpoint_steps: int | None = None
    """Steps between checkpoints; default: Young's and Daly's interval."""
    restart_s: float = 0.0
    """Time from a failure until training resumes from the last checkpoint."""

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0 < self.iteration_s < math.inf:
            raise ConfigError(f"a run of {self.steps} steps of {self.iteration_s} s; expected both above 0")
        if not self.mtbf_s > 0 or not 0 <= self.checkpoint_s < math.inf or not 0 <= self.restart_s < math.inf:
            raise ConfigError(
                "a run needs a time between failures above 0, and checkpoints and restarts of at least 0 s"
            )
        if self.checkpoint_steps is not None and self.checkpoint_steps < 1:
            raise ConfigError(f"a checkpoint every {self.checkpoint_steps} steps; expected at least 1")

    def interval_steps(self) -> int:
        """Return the number of steps between checkpoints."""
        if self.checkpoint_steps is not None:
            return min(self.checkpoint_steps, self.steps)
        interval_s = young_daly_s(self.checkpoint_s, self.mtbf_s)
        return max(1, round(min(interval_s / self.iteration_s, self.steps)))


@dataclass(frozen=True)
class Outcome:
    """Results of many simulated runs; arrays (runs,)."""

    wall_s: np.ndarray
    failures: np.ndarray
    interval_steps: int
    ideal_s: float
    """Duration without checkpoints and failures."""

    @property
    def goodput(self) -> float:
        """Average share of time that made progress."""
        return float(self.ideal_s / self.wall_s.mean())


def young_daly_s(checkpoint_s: float, mtbf_s: float) -> float:
    """Return the first-order optimal time between checkpoints: sqrt(2 C M) (Young 1974; Daly 2006)."""
    return math.sqrt(2.0 * checkpoint_s * mtbf_s) if checkpoint_s > 0 else (0.0 if math.isfinite(mtbf_s) else math.inf)


def expected_s(run: Run) -> float:
    """Return the exact mean duration for exponentially distributed failures: M e^(R/M) (e^((τ+C)/M) − 1) for each
    interval of τ (Daly 2006, equation 20)."""
    every = run.interval_steps()
    saved = (run.steps - 1) // every  # no checkpoint after the last step
    last_s = (run.steps - saved * every) * run.iteration_s
    lengths_s = [(saved, every * run.iteration_s + run.checkpoint_s), (1, last_s)]
    if math.isinf(run.mtbf_s):
        return sum(count * length_s for count, length_s in lengths_s)
    growth = math.exp(min(run.restart_s / run.mtbf_s, 700.0))
    return sum(
        count * run.mtbf_s * growth * math.expm1(min(length_s / run.mtbf_s, 700.0)) for count, length_s in lengths_s
    )


def simulate(run: Run, *, runs: int = 1000, seed: int = 0) -> Outcome:
    """Simulate the run `runs` times with independent failures. Raises EmulationError where it would hardly ever end."""
    ideal_s, mean_s = run.steps * run.iteration_s, expected_s(run)
    if mean_s * HOPELESS > ideal_s:
        raise EmulationError(
            f"with a failure every {run.mtbf_s:.3g} s this run makes next to no progress: an interval between "
            f"checkpoints takes {run.interval_steps() * run.iteration_s + run.checkpoint_s:.3g} s and a restart "
            f"{run.restart_s:.3g} s"
        )
    events = runs * (run.steps / run.interval_steps() + mean_s / run.mtbf_s)
    if events > MAX_EVENTS:
        raise EmulationError(
            f"{runs:,} runs of {run.steps:,} steps, with a checkpoint every {run.interval_steps():,}, have "
            f"{events:.2g} checkpoints and failures; at most {MAX_EVENTS:.0g} are played: let checkpoints "
            "be further apart"
        )
    wall_s, failures = _play(
        run.steps, run.interval_steps(), run.iteration_s, run.checkpoint_s, run.restart_s, run.mtbf_s, runs, seed
    )
    return Outcome(wall_s, failures, run.interval_steps(), ideal_s)


@kernel
def _play(steps, every, iteration_s, checkpoint_s, restart_s, mtbf_s, runs, seed):
    np.random.seed(seed)
    wall_s, failures = np.zeros(runs), np.zeros(runs, np.int64)
    for number in range(runs):
        saved = 0
        now_s = 0.0
        is_up = True
        fails_s = np.random.exponential(mtbf_s) if mtbf_s < np.inf else np.inf
        while True:
            if is_up:
                ahead = min(every, steps - saved)
                length_s = ahead * iteration_s + (checkpoint_s if saved + ahead < steps else 0.0)
            else:
                length_s = restart_s
            if fails_s < now_s + length_s:
                failures[number] += 1
                now_s = fails_s
                fails_s += np.random.exponential(mtbf_s)
                is_up = False
                continue
            now_s += length_s
            if is_up:
                saved += ahead
                if saved == steps:
                    break
            is_up = True
        wall_s[number] = now_s
    return wall_s, failures
