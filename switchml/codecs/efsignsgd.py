"""EF-signSGD: signs times the mean magnitude, with error feedback."""

from dataclasses import dataclass

import numpy as np

from switchml.codecs.base import GATHER, Bytes, Codec, Floats, StepContext, join, split
from switchml.codecs.signs import pack, unpack


@dataclass(frozen=True)
class EfSignSgd(Codec):
    """1. Take the mean magnitude of the elements (their 1-norm / n).
    2. Send it (float32) and the sign of each element (0 counts as +).
    3. Decode to sign * mean magnitude; the error feedback `efsignsgd` keeps the rest.

    S. P. Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019
    (arXiv:1901.09847), algorithm 1.
    """

    name = "efsignsgd"
    number = 22
    aggregation = GATHER
    error_feedback = "efsignsgd"
    by_matrix = True

    def body_bytes(self, n: int) -> int:
        return 4 + (n + 7) // 8

    def encode(self, state: object, x: Floats, context: StepContext) -> Bytes:
        with np.errstate(invalid="ignore", over="ignore"):
            scale = np.array([np.sum(np.abs(x), dtype=np.float64) / max(x.size, 1)], np.float32)
        return join(scale, pack(x < 0))

    def decode(self, body: Bytes, n: int) -> Floats:
        [[scale], packed] = split(body, ("<f4", 1))
        return np.array([scale, -scale], np.float32).take(unpack(packed, n))
