"""What a setting promised, beside what came when the job was run both ways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from emulator.optimizer.search import Found


@dataclass(frozen=True)
class Promise:
    """Seconds of a step, medians of the rounds, and how many times as fast as it is the job is with the setting.
    `measured` is the median of what neighbouring runs differ by, so that a machine that gets slower does not count."""

    default_s: float
    settings_s: float
    predicted_s: float
    promised: float
    measured: float

    @classmethod
    def of(cls, found: Found, default_s: Sequence[float], settings_s: Sequence[float]) -> Promise:
        """`default_s`, `settings_s`: of each round."""
        measured = median(old / new for old, new in zip(default_s, settings_s, strict=True))
        return cls(median(default_s), median(settings_s), found.in_file.iteration_s, found.promised, measured)

    @property
    def error(self) -> float:
        """Of the promised speed-up."""
        return self.promised / self.measured - 1

    def __str__(self) -> str:
        return (
            f"promised {self.promised:.2f} times as fast, measured {self.measured:.2f}, off by {self.error:+.1%} "
            f"({self.default_s * 1e3:.1f} ms a step as it is, {self.settings_s * 1e3:.1f} ms with the settings, "
            f"{self.predicted_s * 1e3:.1f} ms predicted)"
        )

    def to_json(self) -> dict[str, float]:
        """The fields, and `error`."""
        return asdict(self) | {"error": self.error}
