"""What a rank adds to its next vector because this step did not send it (error feedback)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .base import Memory, setting


class Kept:
    """The state of a memory of one vector: float32[n], made at the first step."""

    def __init__(self) -> None:
        self.rest: np.ndarray | None = None


@dataclass(frozen=True)
class NoMemory(Memory):
    """What is not sent is lost."""

    name = "none"


@dataclass(frozen=True)
class Residual(Memory):
    """1. Compress `beta` times the residual plus `gamma` times the vector.
    2. Residual := what was compressed, less what was sent of it.

    F. Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014; S. P. Karimireddy et al., "Error Feedback
    Fixes SignSGD", ICML 2019.
    """

    name = "residual"

    beta: float = setting(1.0, "weight of the residual", least=0)
    gamma: float = setting(1.0, "weight of the vector", above=0)

    def new_state(self):
        return Kept()

    def compensate(self, state, x, turn):
        scaled = x if self.gamma == 1 else np.float32(self.gamma) * x
        return scaled if state.rest is None else np.float32(self.beta) * state.rest + scaled

    def update(self, state, compensated, own, turn):
        state.rest = compensated - own
