"""The cost of a capture, from the alternating iterations of `switchml trace capture --measure`: the slowdown per
iteration in a running capture, excluding the one-off cost of starting and stopping.
"""

import itertools
import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np

TIME, CPU_TIME = 0, 1
"""Columns of an iteration: wall-clock seconds and CPU seconds."""

Window = list[tuple[float, float]]
"""Consecutive iterations, as (wall-clock seconds, CPU seconds)."""

_RESAMPLES = 4000


@dataclass(frozen=True)
class Cost:
    """Relative slowdown of captured iterations: 0.05 is 5 %."""

    cost: float
    """Median over the pairs."""
    low: float | None
    high: float | None
    """Bootstrap 95 % confidence interval of the median; None with a single pair."""
    pairs: list[float]
    """Slowdown measured by each pair."""


def windows(about: dict[str, Any]) -> dict[str, list[Window]]:
    """One rank's windows by kind, in order, without the iterations skipped at the start."""
    windows_of_kind: dict[str, list[Window]] = {"plain": [], "lead-in": [], "captured": [], "graph": []}
    later = about["iterations"][about["skip"] if about["pairs"] else max(about["skip"] - 1, 0) :]
    for kind, run in itertools.groupby(later, lambda iteration: iteration["kind"]):
        windows_of_kind[kind].append(
            [((one["end_unix_ns"] - one["start_unix_ns"]) / 1e9, one["cpu_ns"] / 1e9) for one in run]
        )
    return windows_of_kind


def median(windows: list[Window], column: int) -> float:
    """Median over all iterations in these windows; 0 if there are none."""
    values = [iteration[column] for window in windows for iteration in window]
    return statistics.median(values) if values else 0.0


def measure(abouts: list[dict[str, Any]], column: int) -> Cost | None:
    """Compute the cost over all ranks together, since they wait for one another. A captured window is compared with the
    plain windows before and, if any, after it, so that a machine that becomes busier does not look like a cost. None
    without a pair."""
    ranks_windows = [windows(about) for about in abouts]
    plain, captured = (
        [
            sum(median([window], column) for window in ranks)
            for ranks in zip(*(one[kind] for one in ranks_windows), strict=False)
        ]
        for kind in ("plain", "captured")
    )
    around = [statistics.mean(plain[k : k + 2]) for k in range(len(plain))]
    pairs = [own_s / plain_s - 1 for own_s, plain_s in zip(captured, around, strict=False) if plain_s]
    if not pairs:
        return None
    low, high = _interval(pairs)
    return Cost(statistics.median(pairs), low, high, pairs)


def _interval(values: list[float]) -> tuple[float, float] | tuple[None, None]:
    """Bootstrap confidence interval of the median; (None, None) for a single value."""
    if len(values) < 2:
        return None, None
    drawn = np.random.default_rng(0).choice(values, (_RESAMPLES, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    return float(low), float(high)


def advice(cost: Cost) -> int | None:
    """Number of pairs needed for an interval of about ±2 %; None if it is that narrow already, or would take more than
    200."""
    if cost.low is None or cost.high is None:
        return None
    wide = (cost.high - cost.low) / 0.04
    more = round(len(cost.pairs) * wide**2)
    return more if wide > 1.5 and more <= 200 else None
