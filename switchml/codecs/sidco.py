"""SIDCo: estimates the threshold of top-k from a distribution fitted to the magnitudes."""

import math
from dataclasses import dataclass, field

import numpy as np

from switchml.codecs.base import Floats, Indices, StepContext, setting
from switchml.codecs.select import above
from switchml.codecs.sparse import Sparsifier
from switchml.runtime.jit import kernel

_MAX_STAGES = 8
_PERIOD = 5
"""Number of steps after which the number of stages is adjusted."""


@dataclass
class Stages:
    """State: the number of stages, and the share of the elements that each of the last steps sent."""

    count: int = 1
    sent: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Sidco(Sparsifier):
    """1. Fit the distribution to the magnitudes by their mean (and variance). Its quantile at 1 - d is a threshold that
       a share d of the elements exceeds: with one stage d = ratio, with more d = 0.25 in all but the last.
    2. Fit it again to the excesses over the threshold, and continue until all stages are done.
    3. Every 5 steps compare the share that was sent with `ratio`: one stage more if it was over 1.2 times that, one
       less if it was below 0.8 times.
    4. Send the elements above the threshold.

    Takes one pass over the elements for each stage, and never sorts.

    exponential: threshold = -mean * log(d). pareto (generalized): with shape s = (1 - mean^2 / variance) / 2 and scale
    a = mean * (mean^2 / variance + 1) / 2, threshold = a * (d^-s - 1) / s.

    A. M. Abdelmoniem et al., "An Efficient Statistical-based Gradient Compression Technique for Distributed Training
    Systems", MLSys 2021 (arXiv:2101.10761), section 2.
    """

    name = "sidco"
    number = 8

    ratio: float = setting(0.01, "share of the elements that is sent, about", above=0, most=1)
    fit: str = setting("exponential", "the distribution of magnitudes", choices=("exponential", "pareto"))

    def new_state(self) -> Stages:
        return Stages()

    def select(self, state: Stages, x: Floats, context: StepContext) -> Indices:
        threshold = self._threshold(x, state.count)
        chosen = above(x, threshold)
        if x.size:
            state.sent.append(chosen.size / x.size)
        if len(state.sent) == _PERIOD:
            share = float(np.mean(state.sent)) / self.ratio
            state.count = min(max(state.count + (share > 1.2) - (share < 0.8), 1), _MAX_STAGES)
            state.sent.clear()
        return chosen

    def _threshold(self, x: np.ndarray, stages: int) -> float:
        threshold, left = 0.0, self.ratio
        for stage in range(stages):
            is_last = stage == stages - 1
            share = left if is_last or left > 0.25 else 0.25
            count, mean, variance = _exceedances(x, np.float32(threshold), stage > 0)
            if count < 2 or not math.isfinite(variance):
                break
            threshold += self._quantile(share, mean, variance)
            left /= share
            if left >= 1:
                break
        return threshold

    def _quantile(self, share: float, mean: float, variance: float) -> float:
        if self.fit == "exponential" or variance == 0:
            return -mean * math.log(share)
        squared = mean * mean / variance
        shape, scale = 0.5 * (1 - squared), 0.5 * mean * (squared + 1)
        if abs(shape) < 1e-6:
            return -scale * math.log(share)
        return float(scale * (share**-shape - 1) / shape)


@kernel
def _exceedances(x: np.ndarray, threshold: np.float32, is_strict: bool) -> tuple[int, float, float]:
    """Return count, mean and variance of magnitude - threshold over the elements above it (over all, unless
    `is_strict`)."""
    count, total, squares = 0, 0.0, 0.0
    for i in range(x.size):
        beyond = np.float64(abs(x[i])) - np.float64(threshold)
        if beyond > 0 or not is_strict or beyond != beyond:
            count += 1
            total += beyond
            squares += beyond * beyond
    mean = total / max(count, 1)
    return count, mean, max(squares / max(count, 1) - mean * mean, 0.0)
