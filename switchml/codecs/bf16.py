"""bfloat16: float32's range with 8 bits of precision, as torch's `bf16_compress_hook` sends it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from switchml.codecs.base import HEADER_BYTES, SUM, Codec, Outcome, Sum, expect_size
from switchml.protocol.bfloat16 import narrow, widen


@dataclass(frozen=True)
class Bf16(Codec):
    """1. Round every element to the nearest bfloat16, ties to even.
    2. The aggregator adds the rounded values.
    3. Divide by the number of ranks.

    Relative error at most 2^-8 (2^-9 in theory, but for denormals); nothing overflows that is not at float32's end.
    """

    name = "bf16"
    number = 2
    aggregation = SUM
    floats = "bfloat16"

    def payload_bytes(self, n: int) -> int:
        return HEADER_BYTES + 2 * n

    def encode(self, state, x, turn):
        halves = np.empty(x.size, np.uint16)
        narrow(x.view(np.uint32), halves)
        return halves.view(np.uint8)

    def decode(self, body, n):
        expect_size(self, body, 2 * n)
        return _wide(np.frombuffer(body, "<u2"))

    def exchange(self, state, x, turn):
        own = _wide(self.encode(state, x, turn).view(np.uint16))
        total = yield Sum(own, self.floats)
        return Outcome(total / np.float32(turn.world), own)


def _wide(halves: np.ndarray) -> np.ndarray:
    floats = np.empty(halves.size, np.uint32)
    widen(halves.astype(np.uint16), floats)
    return floats.view(np.float32)
