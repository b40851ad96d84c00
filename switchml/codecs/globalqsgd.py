"""Global-QSGD: one norm for all ranks, so that levels can be added on the way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from switchml.codecs import bitpack
from switchml.codecs.base import HEADER_BYTES, SUM, Codec, Max, Outcome, Sum, expect_size, setting
from switchml.codecs.noise import halves
from switchml.codecs.qsgd import unpack_levels
from switchml.codecs.quantize import dither, lanes, largest, undither


@dataclass(frozen=True)
class GlobalQsgd(Codec):
    """1. Every rank takes its vector's largest magnitude; the ranks take the maximum: the global norm.
    2. The level of an element is its magnitude / norm * levels, rounded up or down at random so that the mean is right.
    3. The aggregator adds the signed levels, in int8 lanes as long as ranks * levels <= 127, then in int16.
    4. Mean: sum / (levels * ranks) * norm.

    Unbiased. (The paper's linear dithering; its exponential dithering needs another sum than that of integers.)

    J. Xin et al., "Global-QSGD: Allreduce-Compatible Quantization for Distributed Learning with Theoretical
    Guarantees", ECAI 2025 (arXiv:2305.18627).
    """

    name = "globalqsgd"
    number = 12
    aggregation = SUM
    is_unbiased = True

    levels: int = setting(127, "levels on each side of zero", least=1, most=32767)

    def payload_bytes(self, n: int) -> int:
        return HEADER_BYTES + 4 + bitpack.packed_bytes(n, bitpack.width(2 * self.levels + 1))

    def encode(self, state, x, turn):
        norm = np.array([largest(x)])
        codes = (self._levels(x, norm, turn) + np.int16(self.levels)).view(np.uint16)
        return np.concatenate([norm.view(np.uint8), bitpack.pack(codes, bitpack.width(2 * self.levels + 1))])

    def decode(self, body, n):
        expect_size(self, body, self.payload_bytes(n) - HEADER_BYTES)
        norm = np.frombuffer(body[:4].tobytes(), np.float32)
        return self._values(unpack_levels(self, body[4:], self.levels, n), norm)

    def exchange(self, state, x, turn):
        norm = yield Max(np.array([largest(x)]))
        levels = self._levels(x, norm, turn)
        wire = lanes(self.levels, turn.world)
        total = yield Sum(levels.astype(wire), wire)
        mean = self._values(total, norm) / np.float32(turn.world)
        return Outcome(mean, self._values(levels, norm))

    def _levels(self, x: np.ndarray, norm: np.ndarray, turn) -> np.ndarray:
        levels = np.empty(x.size, np.int16)
        dither(x, norm, max(x.size, 1), self.levels, *halves(turn.private_key()), levels)
        return levels

    def _values(self, levels: np.ndarray, norm: np.ndarray) -> np.ndarray:
        x = np.empty(levels.size, np.float32)
        undither(levels, norm, max(x.size, 1), self.levels, x)
        return x
