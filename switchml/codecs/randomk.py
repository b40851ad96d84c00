"""Random-k: the same random elements on all ranks, so that only values are sent, and added."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from switchml.codecs.base import (
    SUM,
    Bytes,
    Codec,
    Exchange,
    Floats,
    Outcome,
    StepContext,
    Sum,
    join,
    scatter,
    setting,
    split,
)
from switchml.codecs.noise import halves, mix
from switchml.runtime.jit import int64, kernel


@dataclass(frozen=True)
class RandomK(Codec):
    """1. Draw k = ceil(ratio * n) different indices from (seed, step, name): the same on all ranks.
    2. Send the values there; the aggregator adds them as a dense vector of k floats.

    With `unbiased` the values are multiplied by n / k, which preserves the mean without error feedback; otherwise,
    error feedback adds elements that were not drawn to the next step's. A payload holds the 8 bytes from which the
    indices are derived.

    The indices are the first k of a permutation of all n: a Feistel network of 4 rounds over the least power of 4 that
    is not below n, iterated until it falls below n.

    S. U. Stich et al., "Sparsified SGD with Memory", NeurIPS 2018 (arXiv:1809.07599); shared seeds as in GRACE (ICDCS
    2021).
    """

    name = "randomk"
    number = 3
    aggregation = SUM
    floats = "float32"

    ratio: float = setting(0.01, "share of the elements that is sent", above=0, most=1)
    unbiased: bool = setting(False, "multiply by n / k, for use without error feedback")

    @property
    def is_unbiased(self) -> bool:  # type: ignore[override]  # a class variable of the others
        return self.unbiased

    @property
    def error_feedback(self) -> str:  # type: ignore[override]  # likewise
        return "none" if self.unbiased else "residual"

    def k(self, n: int) -> int:
        return min(n, math.ceil(self.ratio * n))

    def body_bytes(self, n: int) -> int:
        return 8 + 4 * self.k(n)

    def encode(self, state: object, x: Floats, context: StepContext) -> Bytes:
        key = context.shared_key()
        return join(np.array([key], "<u8"), self._values(x, self._drawn(key, x.size)))

    def decode(self, body: Bytes, n: int) -> Floats:
        [[key], values, _] = split(body, ("<u8", 1), ("<f4", self.k(n)))
        return scatter(self._drawn(int(key), n), values, n)

    def exchange(self, state: Any, x: np.ndarray, context: StepContext) -> Exchange:
        drawn = self._drawn(context.shared_key(), x.size)
        values = self._values(x, drawn)
        total = yield Sum(values, self.floats)
        return Outcome(scatter(drawn, total / np.float32(context.world), x.size), scatter(drawn, values, x.size))

    def _drawn(self, key: int, n: int) -> np.ndarray:
        indices = np.empty(self.k(n), np.int64)
        half = ((max(n, 2) - 1).bit_length() + 1) // 2
        _draw(*halves(key), half, n, indices)
        return indices

    def _values(self, x: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        values: np.ndarray = x[drawn]
        return values * np.float32(x.size / drawn.size) if self.unbiased and drawn.size else values


@kernel
def _draw(low: np.uint32, high: np.uint32, half: int, n: int, indices: np.ndarray) -> None:
    mask = (int64(1) << half) - 1
    for j in range(indices.size):
        place = int64(j)
        while True:
            left, right = place >> half, place & mask
            for turn in range(4):
                left, right = right, left ^ (int64(mix(right, np.uint32(low + np.uint32(turn)), high)) & mask)
            place = left << half | right
            if place < n:
                break
        indices[j] = place
