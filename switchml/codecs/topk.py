"""Top-k: the largest elements, exactly."""

import math
from dataclasses import dataclass

from switchml.codecs.base import HEADER_BYTES, Floats, Indices, StepContext, setting
from switchml.codecs.select import top_k
from switchml.codecs.sparse import Sparsifier, sparse_bytes


@dataclass(frozen=True)
class TopK(Sparsifier):
    """1. Select the k = ceil(ratio * n) elements of the largest magnitude (`select.top_k`; NaN counts as largest).
    2. Send their indices and values; the others are 0, and residual error feedback adds them to the next step's.

    A. F. Aji, K. Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017; S. U. Stich et al.,
    "Sparsified SGD with Memory", NeurIPS 2018.
    """

    name = "topk"
    number = 4
    is_sized = True

    ratio: float = setting(0.01, "share of the elements that is sent", above=0, most=1)

    def k(self, n: int) -> int:
        return min(n, math.ceil(self.ratio * n))

    def payload_bytes(self, n: int) -> int:
        return HEADER_BYTES + sparse_bytes(self.k(n), n)

    def select(self, state: object, x: Floats, context: StepContext) -> Indices:
        return top_k(x, self.k(x.size))
