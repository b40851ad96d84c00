"""The speed-up that was predicted of a setting, beside the one measured when the job was run both ways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from emulator.optimizer.search import SearchResult


@dataclass(frozen=True)
class SpeedUp:
    """Seconds of a step, medians of the rounds, and how many times as fast as it is the job is with the setting.
    `measured` is the median of what neighbouring runs differ by, so that a machine that gets slower does not count."""

    default_s: float
    settings_s: float
    predicted_s: float
    predicted: float
    measured: float

    @classmethod
    def of(cls, result: SearchResult, default_s: Sequence[float], settings_s: Sequence[float]) -> SpeedUp:
        """`default_s`, `settings_s`: of each round."""
        measured = median(old / new for old, new in zip(default_s, settings_s, strict=True))
        return cls(
            median(default_s), median(settings_s), result.in_file.iteration_s, result.predicted_speedup, measured
        )

    @property
    def error(self) -> float:
        """Of the predicted speed-up."""
        return self.predicted / self.measured - 1

    def __str__(self) -> str:
        return (
            f"predicted speed-up {self.predicted:.2f}, measured {self.measured:.2f}, off by {self.error:+.1%} "
            f"({self.default_s * 1e3:.1f} ms a step as it is, {self.settings_s * 1e3:.1f} ms with the settings, "
            f"{self.predicted_s * 1e3:.1f} ms predicted)"
        )

    def to_json(self) -> dict[str, float]:
        """The fields, and `error`; `promised` is the former name of `predicted`."""
        return asdict(self) | {"promised": self.predicted, "error": self.error}
