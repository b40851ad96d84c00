"""No compression: the vector as it is."""

from dataclasses import dataclass

import numpy as np

from switchml.codecs.base import Array, Bytes, Floats, FloatSum, StepContext


@dataclass(frozen=True)
class NoCodec(FloatSum):
    """1. Send the float32 values. 2. The aggregator adds them."""

    name = "none"
    number = 0
    floats = "float32"
    is_unbiased = True

    def round(self, x: Floats) -> Array:
        return x

    def encode(self, state: object, x: Floats, context: StepContext) -> Bytes:
        return x.view(np.uint8).copy()

    def widen(self, rounded: Array) -> Floats:
        return rounded

    def decode(self, body: Bytes, n: int) -> Floats:
        return body.view(np.float32).copy()
