"""No compression: the vector as it is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from switchml.codecs.base import SUM, Codec, Outcome, Sum, expect_size


@dataclass(frozen=True)
class NoCodec(Codec):
    """1. Send the float32 values. 2. The aggregator adds them."""

    name = "none"
    number = 0
    aggregation = SUM
    floats = "float32"
    is_unbiased = True

    def payload_bytes(self, n: int) -> int:
        return 12 + 4 * n

    def encode(self, state, x, turn):
        return x.view(np.uint8).copy()

    def decode(self, body, n):
        expect_size(self, body, 4 * n)
        return np.frombuffer(body.tobytes(), "<f4").astype(np.float32)

    def exchange(self, state, x, turn):
        total = yield Sum(x, self.floats)
        return Outcome(total / np.float32(turn.world), x)
