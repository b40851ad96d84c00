"""8-bit floats of a dynamic tree: more exponent for small numbers, more fraction for large ones."""

import functools
import math
from dataclasses import dataclass

import numpy as np

from switchml.codecs.base import GATHER, Bytes, Codec, Floats, StepContext, split
from switchml.codecs.quantize import largest
from switchml.runtime.jit import kernel


@dataclass(frozen=True)
class U8bit(Codec):
    """1. Divide by the largest magnitude.
    2. Code each element by its sign (1 bit) and the nearest of 128 magnitudes (7 bits): 0, and in decade e = 0 … 6
       below 1 the middles of 2^(6-e) equal parts of [0.1, 1] * 10^-e; the largest is 1.
    3. Send the largest magnitude (float32) and the codes, a byte each.

    Error at most 0.7 % of the largest magnitude, at most 25 % of the element itself down to 2e-6 of the largest.

    T. Dettmers, "8-Bit Approximations for Parallelism in Deep Learning", ICLR 2016 (arXiv:1511.04561), section 2.
    """

    name = "u8bit"
    number = 16
    aggregation = GATHER

    def body_bytes(self, n: int) -> int:
        return 4 + n

    def encode(self, state: object, x: Floats, context: StepContext) -> Bytes:
        scale = np.array([largest(x)])
        body = np.zeros(4 + x.size, np.uint8)
        body[:4] = scale.view(np.uint8)
        if math.isfinite(scale[0]) and scale[0] > 0:
            _encode(x, scale[0], *_search(), body[4:])
        return body

    def decode(self, body: Bytes, n: int) -> Floats:
        scale, codes = split(body, ("<f4", 1))
        with np.errstate(invalid="ignore", over="ignore"):
            return (np.concatenate([magnitudes(), -magnitudes()]) * scale)[codes]


@functools.cache
def magnitudes() -> np.ndarray:
    """Return the 128 magnitudes, float32, ascending from 0 to 1."""
    values = [0.0]
    for e in range(6, -1, -1):
        edges = np.linspace(0.1, 1, 2 ** (6 - e) + 1)
        values.extend((edges[:-1] + edges[1:]) / 2 * 10.0**-e)
    values[-1] = 1.0
    return np.array(values, np.float32)


@functools.cache
def _search() -> tuple[np.ndarray, np.ndarray]:
    """Return the points from which on the next magnitude is nearer (float32[128], infinity at the end), and the first
    candidate code by the upper 16 bits of a float in [0, 1]."""
    middles = np.append((magnitudes()[:-1] + magnitudes()[1:]) / 2, np.float32(np.inf)).astype(np.float32)
    least = (np.arange(0x3F80 + 1, dtype=np.uint32) << 16).view(np.float32)
    return middles, np.searchsorted(middles, least, side="right").astype(np.uint8)


@kernel
def _encode(x: np.ndarray, scale: np.float32, middles: np.ndarray, first: np.ndarray, codes: np.ndarray) -> None:
    ratio = np.empty(1, np.float32)
    bits = ratio.view(np.uint32)
    for i in range(x.size):
        ratio[0] = min(abs(x[i]) / scale, np.float32(1))
        code = first[bits[0] >> np.uint32(16)]
        while ratio[0] >= middles[code]:
            code += 1
        codes[i] = code | (0x80 if x[i] < 0 else 0)
