"""Threshold sparsification: sends the elements above a fixed magnitude."""

from dataclasses import dataclass

from switchml.codecs.base import Floats, Indices, StepContext, setting
from switchml.codecs.select import above
from switchml.codecs.sparse import Sparsifier


@dataclass(frozen=True)
class Threshold(Sparsifier):
    """1. Select the elements whose magnitude is above `threshold` (NaN counts as such).
    2. Send their indices and values; residual error feedback adds the others to the next step's.

    A. F. Aji, K. Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017; N. Dryden et al.,
    "Communication Quantization for Data-Parallel Training of Deep Neural Networks", MLHPC 2016.
    """

    name = "threshold"
    number = 6

    threshold: float = setting(0.01, "magnitudes above it are sent", least=0)

    def select(self, state: object, x: Floats, context: StepContext) -> Indices:
        return above(x, self.threshold)
