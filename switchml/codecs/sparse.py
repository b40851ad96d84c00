"""Common parts of sparsifiers: k elements by index and value, packed, and added over the ranks.

A payload's body: k as little-endian uint64, the indices (`indices.py`), the values as float32.
"""

from typing import Any

import numpy as np

from switchml.codecs import base
from switchml.codecs import indices as packing
from switchml.codecs.base import Bytes, Floats, Indices, StepContext
from switchml.errors import PayloadError

_COUNT_BYTES = 8


def sparse_bytes(k: int, n: int) -> int:
    """Return the size of the payload body of k out of n elements."""
    return _COUNT_BYTES + packing.packed_bytes(k, n) + 4 * k


class Sparsifier(base.Codec):
    """Base of the codecs that send some elements unchanged. Subclasses implement `select`."""

    aggregation = base.SPARSE_SUM
    error_feedback = "residual"
    is_sized = False
    """Whether the number of elements sent depends on the vector's length alone."""

    def select(self, state: Any, x: Floats, context: StepContext) -> Indices:
        """Return the indices (int64[k], ascending) of the elements of x to send."""
        raise NotImplementedError

    def sparsify(self, state: Any, x: Floats, context: StepContext) -> tuple[Indices, Floats, Bytes]:
        """Return indices (int64[k], ascending) and values (float32[k]) to send, and the payload body, which packs
        both."""
        indices = self.select(state, x, context)
        values = x[indices]
        count = np.array([indices.size], "<u8")
        return indices, values, base.join(count, packing.pack(indices, x.size), values)

    def encode(self, state: Any, x: Floats, context: StepContext) -> Bytes:
        return self.sparsify(state, x, context)[2]

    def decode(self, body: Bytes, n: int) -> Floats:
        return base.scatter(*elements(body, n), n)

    def exchange(self, state: Any, x: Floats, context: StepContext) -> base.Exchange:
        indices, values, body = self.sparsify(state, x, context)
        total = yield base.SparseSum(indices, values, x.size, self.payload(body, x.size), self.is_sized)
        return base.Outcome(total / np.float32(context.world), base.scatter(indices, values, x.size))


def elements(body: Bytes, n: int) -> tuple[Indices, Floats]:
    """Return indices (int64[k]) and values (float32[k]) of a sparse payload body. Raises PayloadError."""
    if body.size < _COUNT_BYTES:
        raise PayloadError(f"a sparse payload body of {body.size} bytes: expected at least {_COUNT_BYTES}")
    [[k], body] = base.split(body, ("<u8", 1))
    k = int(k)
    if k > n or body.size != sparse_bytes(k, n) - _COUNT_BYTES:
        size = body.size + _COUNT_BYTES
        raise PayloadError(f"a sparse payload body of {size} bytes claims {k} of {n} elements")
    values_at = packing.packed_bytes(k, n)
    return packing.unpack(body[:values_at], k, n), body[values_at:].copy().view(np.float32)
