"""Adaptive quantization (AdaQ): the largest elements of each sign, by index, with one mean value per sign."""

import math
from dataclasses import dataclass

import numpy as np

from switchml.codecs import indices as packing
from switchml.codecs.base import Bytes, Floats, Indices, StepContext, join, scatter, setting, split
from switchml.codecs.select import top_k
from switchml.codecs.sparse import Sparsifier
from switchml.errors import PayloadError

_HEAD_BYTES = 24


@dataclass(frozen=True)
class AdaQ(Sparsifier):
    """1. Of the positive elements select the share `ratio` that is largest, and of the negative ones too.
    2. Take the mean of each of the two selections.
    3. Send the two means (float32) and the indices of both selections; no values.

    The aggregator adds the vectors that hold a mean at each selected index. Trained with residual error feedback.
    NaN counts among the positive.

    N. Dryden et al., "Communication Quantization for Data-Parallel Training of Deep Neural Networks", MLHPC 2016,
    section 3.3 ("adaptive quantization").
    """

    name = "adaq"
    number = 10

    ratio: float = setting(0.01, "share of the elements of each sign that is sent", above=0, most=1)

    def sparsify(self, state: object, x: Floats, context: StepContext) -> tuple[Indices, Floats, Bytes]:
        halves, means = [], []
        for places in (np.flatnonzero((x > 0) | np.isnan(x)), np.flatnonzero(x < 0)):
            half = places[top_k(x[places], math.ceil(self.ratio * places.size))]
            with np.errstate(invalid="ignore", over="ignore"):
                means.append(np.float32(np.mean(x[half], dtype=np.float64) if half.size else 0.0))
            halves.append(half)
        counts = np.array([half.size for half in halves], "<u8")
        body = join(counts, np.array(means), *(packing.pack(half, x.size) for half in halves))
        indices = np.concatenate(halves)
        order = np.argsort(indices, kind="stable")  # merges the two ascending halves in one pass
        return indices[order], np.repeat(means, counts.astype(np.int64))[order], body

    def decode(self, body: Bytes, n: int) -> Floats:
        if body.size < _HEAD_BYTES:
            raise PayloadError(f"adaq: a payload body of {body.size} bytes: expected at least {_HEAD_BYTES}")
        stored_counts, means, packed = split(body, ("<u8", 2), ("<f4", 2))
        counts = [int(k) for k in stored_counts]
        sizes = [packing.packed_bytes(k, n) if k <= n else body.size for k in counts]
        if packed.size != sum(sizes):
            raise PayloadError(f"adaq: a payload body of {body.size} bytes claims {counts} of {n} elements")
        halves = zip(np.split(packed, sizes[:1]), counts, strict=True)
        positive, negative = (packing.unpack(half, k, n) for half, k in halves)
        x = scatter(positive, means[0], n)
        x[negative] = means[1]
        return x
