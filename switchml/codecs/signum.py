"""Signum: signSGD of the momentum."""

from dataclasses import dataclass

import numpy as np

from switchml.codecs.base import Array, Floats, setting
from switchml.codecs.signs import Voter


@dataclass
class Momentum:
    """State: the vector's moving average, float32[n]; None before the first step."""

    average: np.ndarray | None = None


@dataclass(frozen=True)
class Signum(Voter):
    """1. Momentum := momentum * m + (1 - m) * vector, with m the setting `momentum`; at the first step, the vector.
    2. Send the sign of each element of the momentum.
    3. The result is the sign that most ranks sent, as with `signsgd`.

    J. Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex Problems", ICML 2018 (arXiv:1802.04434),
    algorithm 2.
    """

    name = "signum"
    number = 21

    momentum: float = setting(0.9, "weight of the past", least=0, most=1)

    def new_state(self) -> Momentum:
        return Momentum()

    def is_negative(self, state: Momentum, x: Floats) -> Array:
        if state.average is None:
            state.average = x.copy()
        else:
            state.average = np.float32(self.momentum) * state.average + np.float32(1 - self.momentum) * x
        return state.average < 0
