"""Hard threshold: one threshold for the whole training, which minimizes the total error."""

import math
from dataclasses import dataclass, field

import numpy as np

from switchml.codecs.base import Floats, Indices, StepContext, setting
from switchml.codecs.select import above, top_k
from switchml.codecs.sparse import Sparsifier


@dataclass
class Calibration:
    """State: the thresholds that top-k implied in the first steps, and their mean after calibration."""

    samples: list[float] = field(default_factory=list)
    threshold: float | None = None


@dataclass(frozen=True)
class HardThreshold(Sparsifier):
    """1. For the first `warmup` steps send the k = ceil(ratio * n) largest elements, and record the least magnitude.
    2. The mean of these is the threshold from then on: send the elements above it, however many.

    For a given volume over the whole training the sum of the steps' errors is minimal if the threshold is constant:
    more is sent when gradients are large, less when they are small. Needs residual error feedback, whose sums are
    compared with the threshold. `threshold` above 0 skips the calibration.

    A. N. Sahu et al., "Rethinking Gradient Sparsification as Total Error Minimization", NeurIPS 2021
    (arXiv:2108.00951), section 4; here, a volume is converted to a threshold by calibration with top-k.
    """

    name = "hardthreshold"
    number = 9

    ratio: float = setting(0.01, "share of the elements that is sent while calibrating", above=0, most=1)
    warmup: int = setting(20, "steps of calibration", least=1)
    threshold: float = setting(0.0, "magnitudes above it are sent; 0: find it", least=0)

    def new_state(self) -> Calibration:
        return Calibration()

    def select(self, state: Calibration, x: Floats, context: StepContext) -> Indices:
        threshold = self.threshold or state.threshold
        if threshold is not None:
            return above(x, threshold)
        chosen = top_k(x, math.ceil(self.ratio * x.size))
        least = float(np.abs(x[chosen]).min()) if chosen.size else 0.0
        if math.isfinite(least):
            state.samples.append(least)
        if len(state.samples) == self.warmup:
            state.threshold = float(np.mean(state.samples))
        return chosen
