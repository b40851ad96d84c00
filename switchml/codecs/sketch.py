"""SketchML's quantile buckets: replaces every element by the mean of its quantile."""

import math
from dataclasses import dataclass

import numpy as np

from switchml.codecs import bitpack
from switchml.codecs.base import GATHER, Bytes, Codec, Floats, StepContext, join, setting, split
from switchml.codecs.quantize import largest
from switchml.errors import PayloadError
from switchml.runtime.jit import int64, kernel

_SAMPLE = 1 << 15
"""Number of elements from which quantiles are estimated: 256 buckets then differ by less than a tenth of their size."""


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

    def body_bytes(self, n: int) -> int:
        return 4 * self.buckets + bitpack.packed_bytes(n, bitpack.width(self.buckets))

    def encode(self, state: object, x: Floats, context: StepContext) -> Bytes:
        means = np.full(self.buckets, np.nan, np.float32)
        codes = np.zeros(x.size, np.uint16)
        if math.isfinite(largest(x)):
            sample = np.sort(x[:: x.size // _SAMPLE or 1])
            places = np.arange(1, self.buckets) * sample.size // self.buckets
            edges = sample[places] if sample.size else np.zeros(self.buckets - 1, np.float32)
            _encode(x, edges, codes, means)
        return join(means, bitpack.pack(codes, bitpack.width(self.buckets)))

    def decode(self, body: Bytes, n: int) -> Floats:
        means, packed = split(body, ("<f4", self.buckets))
        codes = bitpack.unpack(packed, bitpack.width(self.buckets), np.empty(n, np.uint16))
        if n and codes.max() >= self.buckets:
            raise PayloadError(f"sketch: bucket {codes.max()} of {self.buckets}: the payload is damaged")
        return means.take(codes)


@kernel
def _encode(x: np.ndarray, edges: np.ndarray, codes: np.ndarray, means: np.ndarray) -> None:
    """Compute the bucket of each x among the ascending edges, and the buckets' means (0 for an empty one).

    The upper 16 bits of a float determine where among the edges to begin; few edges share them.
    """
    starts = np.zeros(1 << 16, np.uint16)
    least = np.empty(1, np.float32)
    least_bits = least.view(np.int32)
    edge = 0
    for place in range(1 << 16):  # in the order of floats, from the most negative
        ordered = np.int32((place - 0x8000) << 16)
        least_bits[0] = ordered ^ ((ordered >> np.int32(31)) & np.int32(0x7FFFFFFF))
        while edge < edges.size and least[0] >= edges[edge]:
            edge += 1
        starts[place] = edge
    sums = np.zeros(means.size, np.float64)
    counts = np.zeros(means.size, np.int64)
    bits = x.view(np.int32)
    for i in range(x.size):
        ordered = bits[i] ^ ((bits[i] >> np.int32(31)) & np.int32(0x7FFFFFFF))
        code = int64(starts[(ordered >> np.int32(16)) + 0x8000])
        while code < edges.size and x[i] >= edges[code]:
            code += 1
        codes[i] = code
        sums[code] += x[i]
        counts[code] += 1
    for b in range(means.size):
        means[b] = sums[b] / max(counts[b], 1)
