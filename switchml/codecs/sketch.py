"""SketchML's quantile buckets: every element becomes the mean of its quantile."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..errors import PayloadError
from ..jit import kernel
from . import bitpack
from .base import GATHER, HEADER_BYTES, Codec, expect_size, setting
from .quantize import largest

_SAMPLE = 1 << 15
"""Elements that quantiles are estimated from: 256 buckets then differ by less than a tenth of their size."""


@dataclass(frozen=True)
class Sketch(Codec):
    """1. Find the quantiles that split the vector into `buckets` parts of equal size (from a sample if it is long).
    2. Replace each element with its bucket's number, and the bucket with the mean of its elements.
    3. Send the means (float32) and the numbers, ceil(log2(buckets)) bits each.

    The mean of all elements is kept. A vector with an infinity or NaN decodes to NaN. (Of SketchML this is the
    quantile-bucket quantification, which is what dense gradients can use; its MinMaxSketch and delta-binary keys are
    for sparse ones.)

    J. Jiang et al., "SketchML: Accelerating Distributed Machine Learning with Data Sketches", SIGMOD 2018, section 3.2.
    """

    name = "sketch"
    number = 17
    aggregation = GATHER

    buckets: int = setting(64, "quantiles", least=2, most=65536)

    def payload_bytes(self, n: int) -> int:
        return HEADER_BYTES + 4 * self.buckets + bitpack.packed_bytes(n, bitpack.width(self.buckets))

    def encode(self, state, x, turn):
        means = np.full(self.buckets, np.nan, np.float32)
        codes = np.zeros(x.size, np.uint16)
        if math.isfinite(largest(x)):
            sample = np.sort(x[:: x.size // _SAMPLE or 1])
            places = np.arange(1, self.buckets) * sample.size // self.buckets
            edges = sample[places] if sample.size else np.zeros(self.buckets - 1, np.float32)
            _encode(x, edges, codes, means)
        return np.concatenate([means.view(np.uint8), bitpack.pack(codes, bitpack.width(self.buckets))])

    def decode(self, body, n):
        expect_size(self, body, self.payload_bytes(n) - HEADER_BYTES)
        means = np.frombuffer(body[: 4 * self.buckets].tobytes(), np.float32)
        packed = body[4 * self.buckets :]
        codes = bitpack.unpack(packed, bitpack.width(self.buckets), np.empty(n, np.uint16))
        if n and codes.max() >= self.buckets:
            raise PayloadError(f"sketch: bucket {codes.max()} of {self.buckets}: the payload is damaged")
        return means[codes]


@kernel
def _encode(x, edges, codes, means):
    """Bucket of each x by binary search among the ascending edges, and the buckets' means (0 of an empty one)."""
    sums = np.zeros(means.size, np.float64)
    counts = np.zeros(means.size, np.int64)
    for i in range(x.size):
        first, left = 0, edges.size
        while left > 0:
            half = left >> 1
            is_right = x[i] >= edges[first + half]
            first = first + half + 1 if is_right else first
            left = left - half - 1 if is_right else half
        codes[i] = first
        sums[first] += x[i]
        counts[first] += 1
    for b in range(means.size):
        means[b] = sums[b] / max(counts[b], 1)
