"""1-bit SGD: replaces each element by the mean of all elements of its sign."""

from dataclasses import dataclass

import numpy as np

from switchml.codecs.base import GATHER, Bytes, Codec, Floats, StepContext, join, split
from switchml.codecs.signs import pack, unpack
from switchml.runtime.jit import kernel


@dataclass(frozen=True)
class OneBit(Codec):
    """1. Take the mean of the negative elements, and that of the others (0 of none).
    2. Send the two means (float32) and one bit per element.

    The mean of all elements is preserved. Trained with residual error feedback.

    F. Seide et al., "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed Training of
    Speech DNNs", Interspeech 2014, section 3.
    """

    name = "onebit"
    number = 19
    aggregation = GATHER
    error_feedback = "residual"
    by_matrix = True

    def body_bytes(self, n: int) -> int:
        return 8 + (n + 7) // 8

    def encode(self, state: object, x: Floats, context: StepContext) -> Bytes:
        is_negative = x < 0
        negatives = int(np.count_nonzero(is_negative))
        above, below = _sums(x)
        with np.errstate(invalid="ignore", over="ignore"):
            means = np.array([above / max(x.size - negatives, 1), below / max(negatives, 1)], np.float32)
        return join(means, pack(is_negative))

    def decode(self, body: Bytes, n: int) -> Floats:
        means, packed = split(body, ("<f4", 2))
        return means.take(unpack(packed, n))


@kernel
def _sums(x: np.ndarray) -> tuple[float, float]:
    """Return the sum of the non-negative elements, and that of the others."""
    above, below = np.zeros(8), np.zeros(8)  # eight independent sums: a single one would be serial
    for i in range(x.size):
        value = np.float64(x[i])
        is_negative = value < 0
        above[i & 7] += 0.0 if is_negative else value
        below[i & 7] += value if is_negative else 0.0
    return above.sum(), below.sum()
