"""bfloat16: float32's range with 8 bits of precision, as torch's `bf16_compress_hook` sends it."""

from dataclasses import dataclass

import numpy as np

from switchml.codecs.base import Array, Floats, FloatSum
from switchml.protocol.halves import BFLOAT16, narrow, widen


@dataclass(frozen=True)
class Bf16(FloatSum):
    """1. Round every element to the nearest bfloat16, ties to even.
    2. The aggregator adds the rounded values.
    3. Divide by the number of ranks.

    Relative error at most 2^-8 (2^-9 in theory, but for denormals); nothing overflows that is not at float32's end.
    """

    name = "bf16"
    number = 2
    floats = "bfloat16"

    def round(self, x: Floats) -> Array:
        halves = np.empty(x.size, np.uint16)
        narrow(BFLOAT16, x.ctypes.data, halves.ctypes.data, x.size)
        return halves

    def widen(self, rounded: Array) -> Floats:
        x = np.empty(rounded.size, np.float32)
        widen(BFLOAT16, rounded.ctypes.data, x.ctypes.data, x.size)
        return x
