"""Compressed all-to-all for embedding exchange: error-bounded, with bounds per table that decay over iterations.

In a recommendation model (DLRM) the embedding tables are distributed over the ranks: each rank looks up all ranks'
batches in its own tables, and an all-to-all brings every rank the rows of its own batch. Here each distinct row is sent
once, quantized so that no value changes by more than the table's bound (switchml/codecs/rows.py).

    exchange = EmbeddingExchange(tables_of_rank=[[0, 2], [1, 3]], bounds=BoundSchedule([0.03, 0.01, 0.05, 0.03]))
    rows = exchange(looked_up)              # differentiable: gradients use a plain all-to-all

H. Feng, B. Zhang, F. Ye et al., "Accelerating Communication in Deep Learning Recommendation Model Training with
Dual-Level Adaptive Lossy Compression", SC 2024 (arXiv:2407.04272): bounds per table, their decay, the single buffer and
the matching of whole rows are from this paper; its other codec (Huffman) is not implemented.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from switchml.codecs import rows as codec
from switchml.errors import ConfigError, PayloadError


@dataclass(frozen=True)
class BoundSchedule:
    """Maximum error of a value, by table and iteration (from 0).

    `tables`: the final bound of each table, in the units of its values; 0 is lossless. A bound starts at `start` times
    that and decays to it in `steps` equal steps over `iterations` iterations (defaults: 65,536 iterations, start 2).
    Raises ConfigError.
    """

    tables: Sequence[float]
    start: float = 2.0
    iterations: int = 65_536
    steps: int = 4

    def __post_init__(self) -> None:
        if not self.tables or not all(np.isfinite(bound) and bound >= 0 for bound in self.tables):
            raise ConfigError(f"bounds {list(self.tables)}: expected one of at least 0 for each table")
        if not self.start >= 1 or self.iterations < 0 or self.steps < 1:
            raise ConfigError(
                f"start {self.start}, iterations {self.iterations}, steps {self.steps}: expected a start of at least "
                "1, no negative iterations and at least one step"
            )

    def factor(self, iteration: int) -> float:
        """Factor of the final bounds: `start` at first, 1 from `iterations` on, decreasing in `steps`."""
        if iteration >= self.iterations:
            return 1.0
        stair = iteration * self.steps // self.iterations
        return self.start - (self.start - 1) * stair / self.steps

    def bound(self, table: int, iteration: int) -> float:
        return self.tables[table] * self.factor(iteration)


@dataclass
class Traffic:
    """Bytes that one rank has sent since the start, bytes that it would have sent uncompressed, and seconds of
    compression and decompression. `largest_error`: of any value, as determined by the sender; measured by exchanges
    with `check`."""

    bytes_sent: int = 0
    bytes_plain: int = 0
    compress_s: float = 0.0
    largest_error: float = 0.0


class EmbeddingExchange:
    """All-to-all of looked-up rows over torch.distributed; create it with the same arguments on all ranks.

    `tables_of_rank[r]`: numbers of the tables that rank r holds. `bounds` None: no compression. `check`: also
    decompress the sent data, for `traffic.largest_error` (costs time). Raises ConfigError unless every table has one
    rank and a bound.
    """

    def __init__(
        self,
        tables_of_rank: Sequence[Sequence[int]],
        bounds: BoundSchedule | None = None,
        *,
        group: dist.ProcessGroup | None = None,
        check: bool = False,
    ):
        self._group, self._check = group, check
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        tables = [list(tables) for tables in tables_of_rank]
        self._order = [table for each in tables for table in each]
        """Tables in the order of an exchange: rank by rank."""
        self.tables = len(self._order)
        if sorted(self._order) != list(range(self.tables)):
            raise ConfigError(f"tables_of_rank {tables}: expected every table from 0 on exactly once")
        if len(tables) != self.world:
            raise ConfigError(f"tables_of_rank has {len(tables)} ranks: the group has {self.world}")
        if bounds is not None and len(bounds.tables) != self.tables:
            raise ConfigError(f"{len(bounds.tables)} bounds for {self.tables} tables")
        self._own = tables[self.rank]
        self._incoming, self._outgoing = list(map(len, tables)), [len(self._own)] * self.world
        """Number of tables whose rows are received from each rank, and sent to each rank."""
        self.bounds, self.iteration, self.traffic = bounds, 0, Traffic()

    def __call__(self, looked_up: torch.Tensor) -> torch.Tensor:
        """Exchange rows; counts as one iteration.

        `looked_up`: float32[ranks, own tables, batch, width], the rows of the ranks' batches in this rank's tables;
        `batch` and `width` are the same on all ranks. Returns float32[batch, tables, width], the rows of this rank's
        batch in all tables, in the order of table numbers.
        """
        expected = (self.world, len(self._own))
        if looked_up.dtype != torch.float32 or looked_up.ndim != 4 or looked_up.shape[:2] != expected:
            raise ConfigError(
                f"looked up: {looked_up.dtype} of shape {tuple(looked_up.shape)}; expected float32 "
                f"[{expected[0]} ranks, {expected[1]} tables, batch, width]"
            )
        rows: torch.Tensor = _AllToAll.apply(looked_up, self)  # type: ignore[no-untyped-call]  # torch has no types for it
        self.iteration += 1
        return rows

    # Both directions

    def forward(self, looked_up: torch.Tensor) -> torch.Tensor:
        """Exchange rows: float32[batch, tables, width].

        1. Compress each table's rows for each rank with the bound of the table and the iteration; concatenate all
           streams for a rank, and those of all ranks in one buffer.
        2. Exchange the sizes of all streams.
        3. Exchange the buffer.
        4. Decompress.
        """
        _, _, batch, width = looked_up.shape
        values = looked_up.detach().cpu().numpy()
        self.traffic.bytes_plain += 4 * values[0].size * (self.world - 1)
        if self.bounds is None:
            self.traffic.bytes_sent += 4 * values[0].size * (self.world - 1)
            return self._plain(looked_up, batch, width)
        start = time.perf_counter()
        streams = [
            [self._compress(table, values[to, i]) for i, table in enumerate(self._own)] for to in range(self.world)
        ]
        self.traffic.compress_s += time.perf_counter() - start
        mine = torch.tensor([len(stream) for row in streams for stream in row], dtype=torch.int64)
        sizes = torch.empty(self.tables, dtype=torch.int64)
        dist.all_to_all_single(sizes, mine, self._incoming, self._outgoing, group=self._group)
        buffer = torch.frombuffer(bytearray(b"".join(s for row in streams for s in row)), dtype=torch.uint8)
        to_each = [sum(map(len, row)) for row in streams]
        from_each = [int(part.sum()) for part in sizes.split(self._incoming)]
        received = torch.empty(sum(from_each), dtype=torch.uint8)
        dist.all_to_all_single(received, buffer, from_each, to_each, group=self._group)
        self.traffic.bytes_sent += sum(to_each) - to_each[self.rank] + 8 * (self.world - 1) * len(self._own)
        start = time.perf_counter()
        rows = np.empty((batch, self.tables, width), np.float32)
        at, raw = 0, received.numpy()
        for table, size in zip(self._order, sizes.tolist(), strict=True):
            rows[:, table] = _decompress(table, raw[at : at + size], batch, width)
            at += size
        self.traffic.compress_s += time.perf_counter() - start
        return torch.from_numpy(rows).to(looked_up.device)

    def backward(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return the gradients of `forward`'s rows to the ranks that hold the tables, uncompressed: float32[ranks, own
        tables, batch, width]."""
        batch, _, width = gradient.shape
        outgoing = gradient.transpose(0, 1)[self._order].contiguous()
        incoming = gradient.new_empty((self.world * len(self._own), batch, width))
        dist.all_to_all_single(incoming, outgoing, self._outgoing, self._incoming, group=self._group)
        return incoming.view(self.world, len(self._own), batch, width)

    def _plain(self, looked_up: torch.Tensor, batch: int, width: int) -> torch.Tensor:
        incoming = looked_up.new_empty((self.tables, batch, width))
        outgoing = looked_up.flatten(0, 1).contiguous()
        dist.all_to_all_single(incoming, outgoing, self._incoming, self._outgoing, group=self._group)
        rows = torch.empty_like(incoming)
        rows[self._order] = incoming
        return rows.transpose(0, 1).contiguous()

    def _compress(self, table: int, values: np.ndarray) -> bytes:
        assert self.bounds is not None
        values = np.ascontiguousarray(values)
        stream = codec.compress(values, self.bounds.bound(table, self.iteration))
        if self._check and values.size:
            error = float(np.abs(codec.decompress(np.frombuffer(stream, np.uint8), *values.shape) - values).max())
            self.traffic.largest_error = max(self.traffic.largest_error, error)
        return stream


def _decompress(table: int, raw: np.ndarray, batch: int, width: int) -> np.ndarray:
    """Decompress to float32[batch, width]. Raises PayloadError that names the table."""
    try:
        return codec.decompress(raw, batch, width)
    except PayloadError as error:
        raise PayloadError(f"table {table}: {error}; every rank must exchange batches of one size") from None


class _AllToAll(torch.autograd.Function):
    """`EmbeddingExchange.forward` and `.backward` for autograd: the compression error is treated as a constant."""

    @staticmethod
    def forward(ctx: Any, looked_up: torch.Tensor, exchange: EmbeddingExchange) -> torch.Tensor:
        ctx.exchange = exchange
        return exchange.forward(looked_up)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.exchange.backward(gradient.contiguous()), None
