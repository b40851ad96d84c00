"""From an iteration to the whole training: its length, failures, and goodput. Failures are simulated many times
(`replay/failures.py`) where the length is known; otherwise goodput follows from the closed form of Young and Daly.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from emulator.jobs.replay import failures
from emulator.ranges import SECONDS, Range, Ranged, number
from switchml.errors import ConfigError

PLAYED = 1000
"""Number of simulated trainings with independent failures."""


@dataclass(frozen=True)
class Run(Ranged):
    """Length, failures and checkpoints of the whole training."""

    steps: float = number(Range(0, 1e12), 0.0)
    tokens: float = number(Range(0, 1e18), 0.0)
    """Length in tokens instead of steps; in samples for models without a sequence length."""
    mtbf_hours: float = number(Range(0, 1e12), 0.0)
    """Mean time between failures of one accelerator with its share of the node; 0: nothing fails."""
    checkpoint_s: float = number(SECONDS, 0.0)
    """Training time lost per checkpoint; 0: derived from storage bandwidth."""
    checkpoint_steps: int = number(Range(0, 10**12), 0)
    """Iterations between checkpoints; 0: Young's and Daly's interval."""
    restart_s: float = number(SECONDS, 300.0)
    """Time from a failure until training resumes, without the lost work."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps and self.tokens:
            raise ConfigError("give the length of a training in steps or in tokens, not in both")


@dataclass(frozen=True)
class Progress:
    """Goodput of a training: its time without checkpoints, lost work and restarts."""

    goodput: float
    """Average share."""
    played: failures.Outcome | None = None

    def quantiles(self) -> dict[str, float]:
        """Return the 5th, 50th and 95th percentiles of goodput; empty if not simulated."""
        if self.played is None:
            return {}
        shares = np.quantile(self.played.ideal_s / self.played.wall_s, (0.05, 0.5, 0.95))
        return {name: float(share) for name, share in zip(("p5", "p50", "p95"), shares, strict=True)}

    def to_json(self) -> dict[str, Any]:
        """Return `goodput`, and for simulated trainings its distribution, failures and the checkpoint interval."""
        if self.played is None:
            return {"goodput": self.goodput}
        return {
            "goodput": self.goodput,
            "goodput_quantiles": self.quantiles(),
            "failures": float(self.played.failures.mean()),
            "checkpoint_steps": self.played.interval_steps,
            "hours_p95": float(np.quantile(self.played.wall_s, 0.95) / 3600),
        }

    def assumption(self, checkpoint_s: float) -> str:
        """Return the entry in a report's list of assumptions."""
        if self.played is None:
            return f"checkpoints at Young's and Daly's interval; one takes {checkpoint_s:.1f} s"
        return (
            f"failures: independent, exponential; {len(self.played.wall_s):,} trainings played, a checkpoint of "
            f"{checkpoint_s:.1f} s every {self.played.interval_steps:,} steps"
        )


def progress(run: Run, steps: float, iteration_s: float, checkpoint_s: float, gpus: int, seed: int = 0) -> Progress:
    """Return the progress of a training of `steps` iterations (0: unspecified) on `gpus` accelerators. Raises
    ConfigError or EmulationError where next to no time would be left."""
    if not run.mtbf_hours:
        return Progress(1.0)
    mtbf_s = run.mtbf_hours * 3600 / gpus
    if not steps:
        return Progress(goodput(checkpoint_s, run.restart_s, mtbf_s))
    whole = failures.Run(
        steps=math.ceil(steps),
        iteration_s=iteration_s,
        mtbf_s=mtbf_s,
        checkpoint_s=checkpoint_s,
        checkpoint_steps=run.checkpoint_steps or None,
        restart_s=run.restart_s,
    )
    played = failures.simulate(whole, runs=PLAYED, seed=seed)
    return Progress(played.goodput, played)


def goodput(checkpoint_s: float, restart_s: float, mtbf_s: float) -> float:
    """Return the goodput at the optimal checkpoint interval, sqrt(2 C M): C / interval is lost to writing them,
    (interval / 2 + restart) / M to failures (Young, CACM 1974; Daly, FGCS 2006). Raises ConfigError where nothing would
    be left."""
    interval = math.sqrt(2 * max(checkpoint_s, 1e-9) * mtbf_s)
    lost = checkpoint_s / interval + (interval / 2 + restart_s) / mtbf_s
    if lost >= 1:
        raise ConfigError(
            f"with a failure every {mtbf_s:.0f} s, checkpoints of {checkpoint_s:.0f} s and restarts of "
            f"{restart_s:.0f} s no time is left to train"
        )
    return 1.0 - lost
