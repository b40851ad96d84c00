"""Global-QSGD: one norm for all ranks, so that the aggregator can add levels."""

from dataclasses import dataclass

import numpy as np

from switchml.codecs.base import Array, Bytes, Floats, StepContext, join, setting, split
from switchml.codecs.quantize import SharedScale, level_bytes, pack_levels, undithered, unpack_levels


@dataclass(frozen=True)
class GlobalQsgd(SharedScale):
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
    is_unbiased = True

    levels: int = setting(127, "levels on each side of zero", least=1, most=32767)

    @property
    def most(self) -> int:
        return self.levels

    def body_bytes(self, n: int) -> int:
        return 4 + level_bytes(n, self.levels)

    def encode(self, state: object, x: Floats, context: StepContext) -> Bytes:
        prepared, norm = self.prepare(x, context)
        return join(norm, pack_levels(self.quantize(prepared, norm, context), self.levels))

    def decode(self, body: Bytes, n: int) -> Floats:
        norm, packed = split(body, ("<f4", 1))
        return undithered(unpack_levels(self, packed, self.levels, n), norm, self.levels)

    def dequantize(self, integers: Array, scale: Floats, world: int, key: int, n: int) -> Floats:
        x = undithered(integers, scale, self.levels)
        return x if world == 1 else x / np.float32(world)
