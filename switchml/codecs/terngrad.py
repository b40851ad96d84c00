"""TernGrad: rounds every element to -1, 0 or +1 times the largest."""

from dataclasses import dataclass

import numpy as np

from switchml.codecs.base import Array, Bytes, Floats, StepContext, join, setting, split
from switchml.codecs.quantize import SharedScale, largest
from switchml.errors import PayloadError
from switchml.runtime.jit import kernel


@dataclass(frozen=True)
class TernGrad(SharedScale):
    """1. Clip the elements to `clip` standard deviations.
    2. Scale: the largest magnitude; the ranks take the maximum of theirs.
    3. An element becomes its sign times the scale with probability magnitude / scale, and 0 otherwise.
    4. The aggregator adds the -1, 0, +1, in int8 lanes up to 127 ranks; mean: sum / ranks * scale.

    Packed 5 elements per byte (3^5 = 243). Unbiased except for the clipping; clip=0 disables it.

    W. Wen et al., "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep Learning", NeurIPS 2017
    (arXiv:1705.07878), section 3; the shared scale is its section 3.2's "scaler sharing".
    """

    name = "terngrad"
    number = 13

    clip: float = setting(2.5, "standard deviations that elements are clipped to; 0: not", least=0)

    @property
    def is_unbiased(self) -> bool:  # type: ignore[override]  # a class variable of the others
        return self.clip == 0

    @property
    def most(self) -> int:
        return 1

    def body_bytes(self, n: int) -> int:
        return 4 + (n + 4) // 5

    def encode(self, state: object, x: Floats, context: StepContext) -> Bytes:
        clipped, scale = self.prepare(x, context)
        packed = np.empty((x.size + 4) // 5, np.uint8)
        _pack(self.quantize(clipped, scale, context), packed)
        return join(scale, packed)

    def decode(self, body: Bytes, n: int) -> Floats:
        scale, packed = split(body, ("<f4", 1))
        signs = np.empty(n, np.int16)
        if not _unpack(packed, signs):
            raise PayloadError("terngrad: a byte above 242 in the payload: expected 5 digits of base 3")
        return self.dequantize(signs, scale, 1, 0, n)

    def prepare(self, x: Floats, context: StepContext) -> tuple[Floats, Floats]:
        if self.clip and x.size:
            with np.errstate(invalid="ignore", over="ignore"):
                limit = np.float32(self.clip * np.std(x, dtype=np.float64))
            x = np.clip(x, -limit, limit) if np.isfinite(limit) else x
        return x, np.array([largest(x)])

    def dequantize(self, integers: Array, scale: Floats, world: int, key: int, n: int) -> Floats:
        with np.errstate(invalid="ignore"):
            return integers.astype(np.float32) * (scale / np.float32(world))


@kernel
def _pack(signs: np.ndarray, packed: np.ndarray) -> None:
    """Pack signs (-1, 0, 1) as base-3 digits (sign + 1), the first in the lowest place."""
    for j in range(packed.size):
        byte, place = 0, 1
        for i in range(5 * j, min(5 * j + 5, signs.size)):
            byte += (signs[i] + 1) * place
            place *= 3
        packed[j] = byte


@kernel
def _unpack(packed: np.ndarray, signs: np.ndarray) -> bool:
    """Invert `_pack`; return whether all bytes were valid."""
    for j in range(packed.size):
        byte = np.int32(packed[j])
        if byte > 242:
            return False
        for i in range(5 * j, min(5 * j + 5, signs.size)):
            signs[i] = byte % 3 - 1
            byte //= 3
    return True
