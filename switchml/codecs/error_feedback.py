"""Error feedback: adds the part of a vector that was not sent to a later one."""

import math
from dataclasses import dataclass

import numpy as np

from switchml.codecs.base import ErrorFeedback, Floats, StepContext, setting


@dataclass
class Residue:
    """The error feedback of one vector: the residual, float32[n], None before the first step; and that step's learning
    rate."""

    rest: Floats | None = None
    lr: float = 1.0


@dataclass(frozen=True)
class NoErrorFeedback(ErrorFeedback):
    """No error feedback: what is not sent is lost."""

    name = "none"


class ResidualFeedback(ErrorFeedback):
    """Base of kinds with a single residual: the compressed vector minus the part of it that was sent."""

    def new_state(self) -> Residue:
        return Residue()

    def update(self, state: Residue, compensated: Floats, own: Floats, context: StepContext) -> None:
        state.rest, state.lr = compensated - own, context.lr


@dataclass(frozen=True)
class Residual(ResidualFeedback):
    """1. Compress `beta` times the residual plus `gamma` times the vector.
    2. Residual := the compressed vector, minus the part of it that was sent.

    F. Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014; S. P. Karimireddy et al., "Error Feedback
    Fixes SignSGD", ICML 2019.
    """

    name = "residual"

    beta: float = setting(1.0, "weight of the residual", least=0)
    gamma: float = setting(1.0, "weight of the vector", above=0)

    def compensate(self, state: Residue, x: Floats, context: StepContext) -> Floats:
        scaled = x if self.gamma == 1 else np.float32(self.gamma) * x
        return scaled if state.rest is None else np.float32(self.beta) * state.rest + scaled


@dataclass(frozen=True)
class PowerSgdFeedback(ResidualFeedback):
    """1. Compress the vector plus the residual.
    2. Residual := the compressed vector, minus the result of the exchange (the mean of all ranks, as PowerSGD defines
       it).

    A tensor of one dimension, which PowerSGD sends uncompressed, has no residual.

    T. Vogels et al., NeurIPS 2019 (arXiv:1905.13727), algorithm 2.
    """

    name = "powersgd"

    def compensate(self, state: Residue, x: Floats, context: StepContext) -> Floats:
        return x if state.rest is None else x + state.rest

    def update(self, state: Residue, compensated: Floats, own: Floats, context: StepContext) -> None:
        if context.shape is None or len(context.shape) > 1:
            super().update(state, compensated, own, context)


@dataclass(frozen=True)
class EfSignSgdFeedback(ResidualFeedback):
    """1. Compress the vector plus the residual times (learning rate of the last step / this step's).
    2. Residual := the compressed vector, minus the part of it that was sent.

    The error is thereby kept in units of parameters, like the paper's p = lr * g + e, while the exchanged vector
    remains a gradient. The learning rate is `StepContext.lr`; as long as it is constant this is residual error
    feedback.

    S. P. Karimireddy et al., ICML 2019 (arXiv:1901.09847), algorithm 1.
    """

    name = "efsignsgd"

    def compensate(self, state: Residue, x: Floats, context: StepContext) -> Floats:
        if state.rest is None or context.lr <= 0:
            return x
        return x + np.float32(state.lr / context.lr) * state.rest


@dataclass
class Velocity:
    """The state of `dgc`: velocity and its sum, float32[n] each; None before the first step."""

    velocity: Floats | None = None
    total: Floats | None = None


@dataclass(frozen=True)
class DgcFeedback(ErrorFeedback):
    """1. With `clip`: scale the vector down to a norm of clip / sqrt(ranks).
    2. Velocity := momentum * velocity + vector; total := total + velocity. Compress the total.
    3. Set velocity and total to 0 where elements were sent (momentum factor masking).

    Momentum then works as if nothing had been delayed; the optimizer itself must not have any.

    Y. Lin et al., ICLR 2018 (arXiv:1712.01887), algorithm 1 and section 3.
    """

    name = "dgc"

    momentum: float = setting(0.9, "weight of the velocity", least=0, most=1)
    clip: float = setting(0.0, "norm that all ranks' vectors together are scaled down to; 0: off", least=0)

    def new_state(self) -> Velocity:
        return Velocity()

    def compensate(self, state: Velocity, x: Floats, context: StepContext) -> Floats:
        if self.clip > 0:
            norm = math.sqrt(np.dot(x.astype(np.float64), x))
            limit = self.clip / math.sqrt(context.world)
            x = x * np.float32(limit / norm) if norm > limit else x
        if state.velocity is None or state.total is None:
            state.velocity, state.total = x.copy(), x.copy()
        else:
            state.velocity = np.float32(self.momentum) * state.velocity + x
            state.total = state.total + state.velocity
        return state.total

    def update(self, state: Velocity, compensated: Floats, own: Floats, context: StepContext) -> None:
        assert state.velocity is not None, "update follows compensate"
        was_sent = own != 0
        state.velocity[was_sent] = 0
        state.total = np.where(was_sent, np.float32(0), compensated)
