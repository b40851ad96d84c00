"""What all sparsifiers share: k elements by index and value, packed, and added over the ranks.

A payload's body: k as little-endian uint64, the indices (`indices.py`), the values as float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from switchml.codecs import indices as packing
from switchml.codecs.base import HEADER_BYTES, SPARSE_SUM, Codec, Exchange, Outcome, Payload, SparseSum, Turn
from switchml.errors import PayloadError

_COUNT_BYTES = 8


def sparse_bytes(k: int, n: int) -> int:
    """Size of the payload of k out of n elements."""
    return HEADER_BYTES + _COUNT_BYTES + packing.packed_bytes(k, n) + 4 * k


class Sparsifier(Codec):
    """Base of the codecs that send some elements as they are. Subclasses say which: `select`."""

    aggregation = SPARSE_SUM
    memory = "residual"
    is_sized = False
    """Whether how many elements are sent depends on the vector's length alone."""

    def select(self, state: Any, x: np.ndarray, turn: Turn) -> np.ndarray:
        """Indices (int64[k], ascending) of the elements of x to send."""
        raise NotImplementedError

    def encode(self, state, x, turn):
        chosen = self.select(state, x, turn)
        return _body(chosen, x[chosen], x.size)

    def decode(self, body, n):
        x = np.zeros(n, np.float32)
        indices, values = elements(body, n)
        x[indices] = values
        return x

    def exchange(self, state: Any, x: np.ndarray, turn: Turn) -> Exchange:
        chosen = self.select(state, x, turn)
        values = x[chosen]
        payload = Payload(self.number, x.size, _body(chosen, values, x.size))
        total = yield SparseSum(chosen, values, x.size, payload, self.is_sized)
        own = np.zeros(x.size, np.float32)
        own[chosen] = values
        return Outcome(total / np.float32(turn.world), own)


def _body(indices: np.ndarray, values: np.ndarray, n: int) -> np.ndarray:
    count = np.array([indices.size], "<u8").view(np.uint8)
    return np.concatenate([count, packing.pack(indices, n), values.view(np.uint8)])


def elements(body: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices (int64[k]) and values (float32[k]) in a sparse payload's body. Raises PayloadError."""
    if body.size < _COUNT_BYTES:
        raise PayloadError(f"a sparse payload body of {body.size} bytes: expected at least {_COUNT_BYTES}")
    k = int.from_bytes(body[:_COUNT_BYTES].tobytes(), "little")
    split = _COUNT_BYTES + packing.packed_bytes(k, n) if k <= n else body.size + 1
    if body.size != split + 4 * k:
        raise PayloadError(f"a sparse payload body of {body.size} bytes says that it holds {k} of {n} elements")
    indices = packing.unpack(body[_COUNT_BYTES:split], k, n)
    return indices, np.frombuffer(body[split:].tobytes(), "<f4").astype(np.float32, copy=False)
