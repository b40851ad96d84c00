"""Adaptive quantization (AdaQ): the largest of each sign, by index and one mean for all of a sign."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from switchml.codecs import indices as packing
from switchml.codecs.base import SPARSE_SUM, Codec, Exchange, Outcome, Payload, SparseSum, Turn, setting
from switchml.codecs.select import top_k
from switchml.errors import PayloadError

_HEAD_BYTES = 24


@dataclass(frozen=True)
class AdaQ(Codec):
    """1. Of the positive elements select the share `ratio` that is largest, and of the negative ones too.
    2. Take the mean of each of the two selections.
    3. Send the two means (float32) and the indices of both selections; no values.

    The aggregator adds the vectors that hold a mean at each selected index. Trained with a residual memory. NaN counts
    among the positive.

    N. Dryden et al., "Communication Quantization for Data-Parallel Training of Deep Neural Networks", MLHPC 2016,
    section 3.3 ("adaptive quantization").
    """

    name = "adaq"
    number = 10
    aggregation = SPARSE_SUM
    memory = "residual"

    ratio: float = setting(0.01, "share of the elements of each sign that is sent", above=0, most=1)

    def encode(self, state, x, turn):
        return self._body(*self._parts(x), x.size)

    def decode(self, body, n):
        if body.size < _HEAD_BYTES:
            raise PayloadError(f"adaq: a payload body of {body.size} bytes: expected at least {_HEAD_BYTES}")
        counts = [int(k) for k in np.frombuffer(body[:16].tobytes(), "<u8")]
        means = np.frombuffer(body[16:_HEAD_BYTES].tobytes(), np.float32)
        sizes = [packing.packed_bytes(k, n) if k <= n else body.size for k in counts]
        if body.size != _HEAD_BYTES + sum(sizes):
            raise PayloadError(f"adaq: a payload body of {body.size} bytes says that it holds {counts} of {n} elements")
        x = np.zeros(n, np.float32)
        middle = _HEAD_BYTES + sizes[0]
        for k, mean, packed in zip(counts, means, (body[_HEAD_BYTES:middle], body[middle:]), strict=True):
            x[packing.unpack(packed, k, n)] = mean
        return x

    def exchange(self, state: Any, x: np.ndarray, turn: Turn) -> Exchange:
        chosen, means = self._parts(x)
        own = np.zeros(x.size, np.float32)
        for indices, mean in zip(chosen, means, strict=True):
            own[indices] = mean
        both = np.sort(np.concatenate(chosen))
        total = yield SparseSum(
            both, own[both], x.size, Payload(self.number, x.size, self._body(chosen, means, x.size))
        )
        return Outcome(total / np.float32(turn.world), own)

    def _parts(self, x: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """Indices of the selected positive and negative elements, and the means of the two."""
        chosen = []
        for place in (np.flatnonzero((x > 0) | np.isnan(x)), np.flatnonzero(x < 0)):
            chosen.append(place[top_k(x[place], math.ceil(self.ratio * place.size))])
        with np.errstate(invalid="ignore", over="ignore"):
            means = [np.mean(x[indices], dtype=np.float64) if indices.size else 0.0 for indices in chosen]
            return chosen, np.array(means, np.float32)

    def _body(self, chosen: list[np.ndarray], means: np.ndarray, n: int) -> np.ndarray:
        counts = np.array([indices.size for indices in chosen], "<u8")
        packed = [packing.pack(indices, n) for indices in chosen]
        return np.concatenate([counts.view(np.uint8), means.view(np.uint8), *packed])
