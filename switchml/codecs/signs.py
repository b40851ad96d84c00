"""Common parts of sign codecs: one bit per element, and votes."""

from typing import Any

import numpy as np

from switchml.codecs.base import VOTE, Bytes, Codec, Exchange, Floats, Outcome, StepContext, Sum
from switchml.codecs.quantize import lanes


def pack(is_negative: np.ndarray) -> np.ndarray:
    """Pack bool[n] into uint8[ceil(n / 8)], the first in the lowest bit."""
    return np.packbits(is_negative, bitorder="little")


def unpack(packed: np.ndarray, n: int) -> np.ndarray:
    """Unpack to uint8[n], 1 where an element is negative."""
    return np.unpackbits(packed, count=n, bitorder="little")


def signs(is_negative: np.ndarray) -> np.ndarray:
    """Convert bool[n] or uint8[n] to int8[n]: -1 where set, else +1."""
    return np.int8(1) - np.int8(2) * is_negative.astype(np.int8)


class Voter(Codec):
    """Base of the codecs that send only signs; the result is the majority's sign. NaN counts as positive.

    Each rank adds +1 or -1 in int8 lanes (int16 above 127 ranks). If ranks are equally divided the result is 0.
    """

    aggregation = VOTE

    def is_negative(self, state: Any, x: np.ndarray) -> np.ndarray:
        """Return the elements for which this rank votes -1, bool[n]."""
        return x < 0

    def body_bytes(self, n: int) -> int:
        return (n + 7) // 8

    def encode(self, state: object, x: Floats, context: StepContext) -> Bytes:
        return pack(self.is_negative(state, x))

    def decode(self, body: Bytes, n: int) -> Floats:
        return signs(unpack(body, n)).astype(np.float32)

    def exchange(self, state: Any, x: np.ndarray, context: StepContext) -> Exchange:
        votes = signs(self.is_negative(state, x))
        wire = lanes(1, context.world)
        total = yield Sum(votes.astype(wire), wire)
        return Outcome(np.sign(total).astype(np.float32), votes.astype(np.float32))
