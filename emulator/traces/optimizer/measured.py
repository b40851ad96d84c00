"""Measures the speed-up of settings in a real run, for comparison with the prediction: a command, such as torchrun's,
is run without and with the settings alternately, and its ranks record their step times
(host_agent/pytorch/settings_autoload.py).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from emulator.traces.optimizer.search import SearchResult
from host_agent.launching import run_command
from host_agent.pytorch.settings_autoload import SETTINGS, STEP_TIMES
from switchml.errors import ConfigError, JobError
from switchml.runtime.folders import TemporaryFolder

WARM_UP_STEPS = 5
"""Steps excluded at the start: DDP's first step broadcasts, its second builds buckets; codecs compile."""
MIN_STEPS = 3


@dataclass(frozen=True)
class SpeedUp:
    """Seconds per step (medians of the rounds), and predicted and measured speed-up with the setting. `measured` is the
    median over adjacent runs, so that slow drift of the machine does not matter."""

    default_s: float
    settings_s: float
    predicted_s: float
    predicted: float
    measured: float

    @classmethod
    def of(cls, result: SearchResult, default_s: Sequence[float], settings_s: Sequence[float]) -> SpeedUp:
        """Return the result of `default_s` and `settings_s`, each with an entry per round."""
        measured = median(old / new for old, new in zip(default_s, settings_s, strict=True))
        times_s = median(default_s), median(settings_s), result.in_file.iteration_s
        return cls(*times_s, result.predicted_speedup, measured)

    @property
    def error(self) -> float:
        """Relative error of the predicted speed-up."""
        return self.predicted / self.measured - 1

    def __str__(self) -> str:
        return (
            f"predicted speed-up {self.predicted:.2f}, measured {self.measured:.2f}, off by {self.error:+.1%} "
            f"({self.default_s * 1e3:.1f} ms a step as it is, {self.settings_s * 1e3:.1f} ms with the settings, "
            f"{self.predicted_s * 1e3:.1f} ms predicted)"
        )

    def to_json(self) -> dict[str, float]:
        """Return the fields, and `error`; `promised` is the former name of `predicted`."""
        return asdict(self) | {"promised": self.predicted, "error": self.error}


def compare(
    command: Sequence[str], settings: Path, rounds: int = 1, say: Callable[[str], None] = lambda line: None
) -> tuple[list[float], list[float]]:
    """Run `command` `rounds` times without and with the settings; return median seconds per step, mean over the ranks,
    of each round. Raises JobError if it fails, ConfigError if it recorded no steps."""
    default_s: list[float] = []
    settings_s: list[float] = []
    for number in range(rounds):
        for name, file, elapsed_s in (("as it is", None, default_s), ("with the settings", settings, settings_s)):
            elapsed_s.append(step_s(command, file))
            say(f"round {number + 1} of {rounds}, {name}: {elapsed_s[-1] * 1e3:.1f} ms a step")
    return default_s, settings_s


def step_s(command: Sequence[str], settings: Path | None) -> float:
    """Run `command` and return the seconds per step; its output is redirected to stderr."""
    with TemporaryFolder("steps") as folder:
        environment = os.environ | {STEP_TIMES: folder, "TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}
        environment.pop(SETTINGS, None)
        if settings is not None:
            environment[SETTINGS] = str(settings.absolute())
        code = run_command(command, environment, stdout=sys.stderr)
        if code:
            how = f" with {settings}" if settings is not None else ""
            raise JobError(f"{command[0]}{how} ended with exit code {code}")
        return median_step_s(Path(folder))


def median_step_s(folder: Path) -> float:
    """Return the median step time of the ranks that wrote theirs to `folder`, without the first steps."""
    ranks = [json.loads(path.read_text()) for path in sorted(folder.glob("rank-*.json"))]
    steps = min((len(times) for times in ranks), default=0)
    if steps < WARM_UP_STEPS + 1 + MIN_STEPS:
        raise ConfigError(
            f"the ranks made {steps} steps with a torch optimizer; expected at least "
            f"{WARM_UP_STEPS + 1 + MIN_STEPS}, in a Python that has switchml installed"
        )
    each = [[after - before for before, after in zip(times, times[1:], strict=False)] for times in ranks]
    mean_s = [sum(step) / len(ranks) for step in zip(*each, strict=False)]
    return median(mean_s[WARM_UP_STEPS:])
