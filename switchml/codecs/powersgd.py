"""PowerSGD: a gradient matrix as the product of two low-rank factors, both of which the aggregator can add."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from switchml.codecs.base import (
    HEADER_BYTES,
    SUM,
    Bytes,
    Codec,
    Exchange,
    Floats,
    Outcome,
    StepContext,
    Sum,
    join,
    setting,
    split,
)
from switchml.codecs.noise import words
from switchml.errors import PayloadError


@dataclass
class Factor:
    """State: Q of the last step (float32[columns, rank]), which starts the next power iteration."""

    q: np.ndarray | None = None


@dataclass(frozen=True)
class PowerSgd(Codec):
    """1. View the vector as a matrix M, rows x columns: the tensor's first dimension by all others. A vector without a
       shape becomes a nearly square matrix, padded with zeros.
    2. P := M Q, with the Q of the last step (at first random, the same on all ranks). The aggregator adds P.
    3. Make the columns of the mean P orthonormal (QR).
    4. Q := transposed M times P. The aggregator adds Q.
    5. The result is P times the transposed mean Q; error feedback keeps what it lacks.

    Tensors of one dimension, and those for which (rows + columns) * rank is no less than their size, are sent as they
    are. A payload holds P and Q of this rank alone.

    T. Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization", NeurIPS 2019
    (arXiv:1905.13727), algorithms 1 and 2.
    """

    name = "powersgd"
    by_matrix = True
    number = 23
    aggregation = SUM
    floats = "float32"
    error_feedback = "powersgd"

    rank: int = setting(2, "columns of P and Q", least=1)

    def new_state(self) -> Factor:
        return Factor()

    def payload_bytes(self, n: int, shape: tuple[int, ...] | None = None) -> int:
        """Return the payload size for a vector without a shape, or a tensor of this shape."""
        return HEADER_BYTES + self._body_bytes(n, *matrix_shape(n, shape))

    def _body_bytes(self, n: int, rows: int, columns: int) -> int:
        return 16 + 4 * (n if self._is_dense(n, rows, columns) else (rows + columns) * self.rank)

    def encode(self, state: Factor, x: Floats, context: StepContext) -> Bytes:
        rows, columns = matrix_shape(x.size, context.shape)
        head = np.array([rows, columns], "<u8")
        if self._is_dense(x.size, rows, columns):
            return join(head, x)
        matrix = _matrix(x, rows, columns)
        p = _orthonormal(matrix @ self._q(state, columns, context))
        state.q = matrix.T @ p
        return join(head, p.reshape(-1), state.q.reshape(-1))

    def decode(self, body: Bytes, n: int) -> Floats:
        if body.size < 16:
            raise PayloadError(f"powersgd: a payload body of {body.size} bytes: expected at least 16")
        rows, columns = (int(size) for size in split(body, ("<u8", 2))[0])
        if not n <= rows * columns < n + max(rows, columns, 1):
            raise PayloadError(f"powersgd: {n} elements as a matrix of {rows} x {columns}: the payload is damaged")
        self.expect_size(body, self._body_bytes(n, rows, columns))
        values = body[16:].copy().view(np.float32)
        if self._is_dense(n, rows, columns):
            return values
        p = values[: rows * self.rank].reshape(rows, self.rank)
        return _product(p, values[rows * self.rank :].reshape(columns, self.rank), n)

    def exchange(self, state: Any, x: np.ndarray, context: StepContext) -> Exchange:
        rows, columns = matrix_shape(x.size, context.shape)
        world = np.float32(context.world)
        if self._is_dense(x.size, rows, columns):
            total = yield Sum(x, self.floats)
            return Outcome(total / world, x)
        matrix = _matrix(x, rows, columns)
        with np.errstate(invalid="ignore", over="ignore"):
            p = matrix @ self._q(state, columns, context)
        total = yield Sum(p.reshape(-1), self.floats)
        p = _orthonormal(total.reshape(rows, self.rank) / world)
        total = yield Sum((matrix.T @ p).reshape(-1), self.floats)
        state.q = total.reshape(columns, self.rank) / world
        mean = _product(p, state.q, x.size)
        return Outcome(mean, mean)

    def _is_dense(self, n: int, rows: int, columns: int) -> bool:
        return min(rows, columns) <= 1 or (rows + columns) * self.rank >= n

    def _q(self, state: Factor, columns: int, context: StepContext) -> np.ndarray:
        if state.q is not None and state.q.shape == (columns, self.rank) and np.isfinite(state.q).all():
            return state.q
        drawn = words(columns * self.rank, StepContext(context.name, 0, context.seed).shared_key())
        return (drawn.astype(np.float32) * np.float32(2.0**-31) - np.float32(1)).reshape(columns, self.rank)


def matrix_shape(n: int, shape: tuple[int, ...] | None = None) -> tuple[int, int]:
    """Return rows and columns of the matrix that n elements are viewed as; one row if the tensor has a single
    dimension."""
    if shape is not None and math.prod(shape) == n:
        return (shape[0], n // shape[0]) if len(shape) > 1 and n else (1, n)
    rows = max(1, math.isqrt(n))
    return rows, -(-n // rows)


def _matrix(x: np.ndarray, rows: int, columns: int) -> np.ndarray:
    if x.size == rows * columns:
        return x.reshape(rows, columns)
    padded = np.zeros(rows * columns, np.float32)
    padded[: x.size] = x
    return padded.reshape(rows, columns)


def _orthonormal(p: np.ndarray) -> np.ndarray:
    """Return the Q of p's QR decomposition; NaN if p has values that are not finite."""
    if not np.isfinite(p).all():
        return np.full_like(p, np.nan)
    # A scale for each column: squares of tiny or huge values would exceed float32's range.
    scale = np.abs(p).max(axis=0)
    return np.ascontiguousarray(np.linalg.qr(p / np.where(scale > 0, scale, 1))[0], np.float32)


def _product(p: np.ndarray, q: np.ndarray, n: int) -> np.ndarray:
    with np.errstate(invalid="ignore", over="ignore"):
        product: np.ndarray = (p @ q.T).reshape(-1)[:n]
        return product
