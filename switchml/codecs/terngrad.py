"""TernGrad: every element is -1, 0 or +1 times the largest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from switchml.codecs.base import HEADER_BYTES, SUM, Codec, Max, Outcome, Sum, expect_size, setting
from switchml.codecs.noise import halves
from switchml.codecs.quantize import dither, lanes, largest
from switchml.errors import PayloadError
from switchml.runtime.jit import kernel


@dataclass(frozen=True)
class TernGrad(Codec):
    """1. Clip the elements to `clip` standard deviations.
    2. Scale: the largest magnitude; the ranks take the maximum of theirs.
    3. An element becomes its sign times the scale with probability magnitude / scale, and 0 otherwise.
    4. The aggregator adds the -1, 0, +1, in int8 lanes up to 127 ranks; mean: sum / ranks * scale.

    Packed 5 elements a byte (3^5 = 243). Unbiased but for the clipping; clip=0 is none.

    W. Wen et al., "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep Learning", NeurIPS 2017
    (arXiv:1705.07878), section 3; the shared scale is its section 3.2's "scaler sharing".
    """

    name = "terngrad"
    number = 13
    aggregation = SUM

    clip: float = setting(2.5, "standard deviations that elements are clipped to; 0: not", least=0)

    @property
    def is_unbiased(self) -> bool:
        return self.clip == 0

    def payload_bytes(self, n: int) -> int:
        return HEADER_BYTES + 4 + (n + 4) // 5

    def encode(self, state, x, turn):
        x = self._clipped(x)
        scale = np.array([largest(x)])
        packed = np.empty((x.size + 4) // 5, np.uint8)
        _pack(_signs(x, scale, turn), packed)
        return np.concatenate([scale.view(np.uint8), packed])

    def decode(self, body, n):
        expect_size(self, body, self.payload_bytes(n) - HEADER_BYTES)
        signs = np.empty(n, np.int16)
        if not _unpack(body[4:], signs):
            raise PayloadError("terngrad: a byte above 242 in the payload: expected 5 digits of base 3")
        return signs.astype(np.float32) * np.frombuffer(body[:4].tobytes(), np.float32)

    def exchange(self, state, x, turn):
        clipped = self._clipped(x)
        scale = yield Max(np.array([largest(clipped)]))
        signs = _signs(clipped, scale, turn)
        wire = lanes(1, turn.world)
        total = yield Sum(signs.astype(wire), wire)
        mean = total.astype(np.float32) * (scale / np.float32(turn.world))
        return Outcome(mean, signs.astype(np.float32) * scale)

    def _clipped(self, x: np.ndarray) -> np.ndarray:
        if self.clip == 0 or x.size == 0:
            return x
        with np.errstate(invalid="ignore", over="ignore"):
            limit = np.float32(self.clip * np.std(x, dtype=np.float64))
        return np.clip(x, -limit, limit) if np.isfinite(limit) else x


def _signs(x: np.ndarray, scale: np.ndarray, turn) -> np.ndarray:
    signs = np.empty(x.size, np.int16)
    dither(x, scale, max(x.size, 1), 1, *halves(turn.private_key()), signs)
    return signs


@kernel
def _pack(signs, packed):
    """Signs (-1, 0, 1) to digits of base 3 (sign + 1), the first in the lowest place."""
    for j in range(packed.size):
        byte, place = 0, 1
        for i in range(5 * j, min(5 * j + 5, signs.size)):
            byte += (signs[i] + 1) * place
            place *= 3
        packed[j] = byte


@kernel
def _unpack(packed, signs):
    """What `_pack` packed; whether all bytes were such."""
    for j in range(packed.size):
        byte = np.int32(packed[j])
        if byte > 242:
            return False
        for i in range(5 * j, min(5 * j + 5, signs.size)):
            signs[i] = byte % 3 - 1
            byte //= 3
    return True
