"""Natural compression: rounds every element to a power of two."""

import math
from dataclasses import dataclass

import numpy as np

from switchml.codecs.base import GATHER, Bytes, Codec, Floats, StepContext
from switchml.codecs.noise import halves, uniform
from switchml.codecs.quantize import largest
from switchml.runtime.jit import int64, kernel

_NOT_FINITE = 255


@dataclass(frozen=True)
class Natural(Codec):
    """1. Round an element between 2^e and 2^(e+1) to one of the two, at random so that the mean is preserved.
    2. Send, once, the exponent above the largest element's.
    3. Of each element send 8 bits: the sign, and 0 for zero or the difference of that exponent and its own, plus 1.

    Unbiased down to zero: elements more than 2^125 below the largest (or below 2^-126) become 0 or the least power that
    has a code. Only magnitudes beyond 2^127 are always rounded down, to 2^127. A vector with an infinity or NaN decodes
    to NaN. Powers of two are not closed under addition, so the payloads are gathered.

    S. Horváth et al., "Natural Compression for Distributed Deep Learning", MSML 2022 (arXiv:1905.10988), section 2.
    """

    name = "natural"
    number = 15
    aggregation = GATHER
    is_unbiased = True

    def body_bytes(self, n: int) -> int:
        return 1 + n

    def encode(self, state: object, x: Floats, context: StepContext) -> Bytes:
        body = np.empty(1 + x.size, np.uint8)
        most = float(largest(x))
        if not math.isfinite(most):
            body[:] = _NOT_FINITE
            return body
        top = min(max(math.frexp(most)[1], -126), 127)
        body[0] = top + 126
        least = max(top - 126, -126)
        _round(x, top, least, *halves(context.private_key()), body[1:])
        return body

    def decode(self, body: Bytes, n: int) -> Floats:
        if body[0] == _NOT_FINITE:
            return np.full(n, np.nan, np.float32)
        codes = np.arange(256)
        exponents = float(body[0]) - 126 - (codes & 127) + 1
        powers = np.where(codes & 127, np.exp2(np.clip(exponents, -149, 127)), 0)
        return np.where(codes >> 7, -powers, powers).astype(np.float32)[body[1:]]


@kernel
def _round(x: np.ndarray, top: int, lowest: int, low: np.uint32, high: np.uint32, codes: np.ndarray) -> None:
    """Compute the codes of x, float32[n]; `top`: the exponent of code 1, `lowest`: the least exponent with a code."""
    least, inverse = np.float32(2.0**lowest), np.float32(2.0**-lowest)
    bits = x.view(np.uint32)
    for i in range(x.size):
        magnitude = bits[i] & np.uint32(0x7FFFFFFF)
        sign = np.uint8((bits[i] >> np.uint32(24)) & np.uint32(0x80))
        chance = uniform(i, low, high)
        if abs(x[i]) < least:
            code = top - lowest + 1 if chance < abs(x[i]) * inverse else 0
        else:
            fraction = np.float32(magnitude & np.uint32(0x7FFFFF)) * np.float32(2.0**-23)
            exponent = int64(magnitude >> np.uint32(23)) - 127 + int64(chance < fraction)
            code = max(top - exponent, 0) + 1
        codes[i] = sign | np.uint8(code)
