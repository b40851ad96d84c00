"""SZx: error-bounded compression of floats that uses only additions, shifts and byte copies.

A payload's body is SZx's stream (version 1.1, its fast mode without random access), byte for byte:

    1  1  1  0  block size | count of constant blocks, uint64 | a bit a block, 1: not constant, first block in the
    highest bit | medians of the constant blocks, float32 | each other block: required length in bits (1 byte), median
    (float32), 2-bit leading codes (first in the highest bits), the bytes that are left of each value, lowest first

Integers and medians are big-endian. If rounding would exceed a block's bound, or it has infinities or NaN, it is
written with a required length of 32 and a median of 0, which is lossless and valid for any reader of the stream.
"""

from dataclasses import dataclass

import numpy as np

from switchml.codecs import szx_kernels as kernels
from switchml.codecs.base import GATHER, Bytes, Codec, Floats, StepContext, setting
from switchml.codecs.select import floats_of
from switchml.errors import PayloadError


@dataclass(frozen=True)
class Szx(Codec):
    """1. Cut the vector into blocks; find each block's least and largest element, median (their mean) and radius.
    2. A block whose radius is within the bound is constant: its median is all that is sent.
    3. Of the others send, of each element less the median, sign, exponent and as many upper bits of the mantissa as the
       bound needs: required length = 10 + exponent of the radius - exponent of the bound, 32 at most.
    4. Shift them so that the required bits end with a byte; exclusive-or with the previous value's: 2 bits say how many
       upper bytes (0 to 3) are equal and left away.

    No element changes by more than the bound, whatever the vector holds: bound itself (mode=abs), or bound times the
    range of the finite elements (mode=rel). Bound 0 is lossless, but for -0 in constant blocks.

    X. Yu, S. Di, K. Zhao et al., "Ultrafast Error-Bounded Lossy Compression for Scientific Datasets", HPDC 2022
    (arXiv:2201.13020); the stream as in github.com/szcompressor/SZx.
    """

    name = "szx"
    number = 5
    aggregation = GATHER

    bound: float = setting(1e-3, "largest error of an element", least=0)
    mode: str = setting("rel", "abs, or rel: the bound is a share of the range", choices=("abs", "rel"))
    block: int = setting(128, "elements a block", least=8, most=kernels.MAX_BLOCK)

    def encode(self, state: object, x: Floats, context: StepContext) -> Bytes:
        blocks = -(-x.size // self.block)
        low, high = np.empty(blocks, np.int32), np.empty(blocks, np.int32)
        kernels.extremes(x.view(np.int32), self.block, low, high)
        lengths, medians = np.empty(blocks, np.uint8), np.empty(blocks, np.float32)
        most = kernels.FIXED_BYTES + (blocks + 7) // 8 + blocks * (9 + self.block // 4) + 4 * x.size + 4
        out = np.empty(most, np.uint8)
        bound = float(self.bound) if self.mode == "abs" else self.bound * finite_range(x, low, high)
        size = kernels.encode(x, low, high, self.block, bound, lengths, medians, out)
        return out[:size]

    def decode(self, body: Bytes, n: int) -> Floats:
        if body.size < kernels.FIXED_BYTES or tuple(body[:4]) != (1, 1, 1, 0) or not 8 <= body[4] <= kernels.MAX_BLOCK:
            raise PayloadError(f"szx: {body.size} bytes are not a stream of version 1.1")
        block = int(body[4])
        blocks = -(-n // block)
        constants = -1
        if body.size >= kernels.FIXED_BYTES + (blocks + 7) // 8:
            constants = kernels.constant_blocks(body, blocks)
        medians_end = kernels.FIXED_BYTES + (blocks + 7) // 8 + 4 * constants
        if constants < 0 or body.size < medians_end:
            raise PayloadError(f"szx: a damaged stream: {n} elements have {blocks} blocks of {block}")
        x = np.empty(n, np.float32)
        if not kernels.decode(np.ascontiguousarray(body), block, constants, x):
            raise PayloadError(f"szx: a damaged stream of {body.size} bytes: its blocks and its size do not match")
        return x


def finite_range(x: np.ndarray, low: np.ndarray, high: np.ndarray) -> float:
    """Return the largest minus the least finite element of x; `low` and `high` are the blocks' extremes."""
    if x.size == 0:
        return 0.0
    ends = floats_of(np.array([low.min(), high.max()], np.int32))
    if not np.isfinite(ends).all():
        finite = x[np.isfinite(x)]
        ends = np.array([finite.min(), finite.max()] if finite.size else [0, 0], np.float32)
    return float(ends[1]) - float(ends[0])
