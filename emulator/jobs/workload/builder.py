"""Builds graphs: op by op for manual use and tests, and in blocks for generators. A generator builds the ops of one
rank as arrays once and adds that block for every equivalent rank, with other streams and transfers, so that 20 million
ops take a thousand appends.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from emulator.jobs.workload import graph
from emulator.jobs.workload.graph import NO_MICRO_BATCH, NO_TRANSFER, Collective, Graph, Kind, Ops, Order
from switchml.errors import ConfigError


class GraphBuilder:
    """Collects the tables; `build()` returns the graph. Every `add_…` method returns the number of the added record, or
    of the first of several; numbers are consecutive from 0."""

    def __init__(self, job: str = "job") -> None:
        self._op_types: list[tuple[str, int, int, float, float, float, int, bool]] = []
        self._op_type_numbers: dict[tuple, int] = {}
        self._ranks: list[tuple[int, float, int, int]] = []
        self._streams: list[tuple[int, str, int]] = []
        self._groups: list[tuple[str, Sequence[int], int]] = []
        self._transfers = [_Column(np.int32) for _ in range(2)]
        self._ops = [_Column(np.int32) for _ in range(4)]
        self._deps, self._dep_start = _Column(np.int32), _Column(np.int64)
        self._dep_start.grow(1)[:] = 0
        self._op_count = 0
        self._pending: list[tuple[int, int, int, int, tuple[int, ...]]] = []
        self.job = job

    # Tables

    def add_rank(self, *, stage: int = 0, weight: float = 1.0, device: int | None = None) -> int:
        """Add a rank; `weight` is the number of ranks of the real job that it represents, `device` its accelerator in
        the cluster (default: its own number)."""
        self._ranks.append((stage, weight, 0, len(self._ranks) if device is None else device))
        return len(self._ranks) - 1

    def add_stream(self, rank: int, name: str = "compute", order: Order = Order.PROGRAM) -> int:
        """Add a stream of `rank`."""
        if not 0 <= rank < len(self._ranks):
            raise ConfigError(f"stream {name!r} names rank {rank}, but there are {len(self._ranks)} ranks so far")
        self._streams.append((rank, name, int(order)))
        return len(self._streams) - 1

    def add_op_type(
        self,
        name: str,
        kind: Kind = Kind.COMPUTE,
        *,
        collective: Collective = Collective.NONE,
        flops: float = 0.0,
        bytes: float = 0.0,
        seconds: float = math.nan,
        priority: int = 0,
        is_source: bool = False,
    ) -> int:
        """Add an op type, or return the number of an equal existing one. Fields as in `OpTypes`."""
        row = (name, int(kind), int(collective), float(flops), float(bytes), float(seconds), priority, is_source)
        key = (*row[:5], None if math.isnan(seconds) else seconds, *row[6:])
        if key not in self._op_type_numbers:
            for what, amount in (("FLOPs", flops), ("bytes", bytes), ("seconds", seconds)):
                if amount < 0 or math.isinf(amount):
                    raise ConfigError(f"op type {name!r} has {amount} {what}; expected a finite number of at least 0")
            self._op_type_numbers[key] = len(self._op_types)
            self._op_types.append(row)
        return self._op_type_numbers[key]

    def add_group(self, ranks: Iterable[int], *, name: str = "", size: int | None = None) -> int:
        """Add a group of ranks that communicate. `size`: number of ranks in the real job, where ranks are folded."""
        ranks = list(ranks)
        self._groups.append((name or f"group {len(self._groups)}", ranks, len(ranks) if size is None else size))
        return len(self._groups) - 1

    def add_transfers(self, op_type: int | np.ndarray, group: int | np.ndarray, count: int | None = None) -> int:
        """Add transfers of `group` and `op_type`, each a single number or one per transfer; return the number of the
        first."""
        if count is None:
            count = max(np.size(op_type), np.size(group))
        for column, value in zip(self._transfers, (op_type, group), strict=True):
            column.grow(count)[:] = value
        return len(self._transfers[0]) - count

    # Ops

    def reserve(self, ops: int, deps: int) -> None:
        """Allocate space for the total number of ops and dependencies, so that arrays need not grow."""
        self._deps.reserve(deps)
        for column in (*self._ops, self._dep_start):
            column.reserve(ops + 1)

    def add_op(
        self,
        stream: int,
        op_type: int,
        *,
        after: Iterable[int] = (),
        transfer: int = NO_TRANSFER,
        micro_batch: int = NO_MICRO_BATCH,
    ) -> int:
        """Add one op that depends on the ops `after`."""
        self._pending.append((stream, op_type, transfer, micro_batch, tuple(after)))
        self._op_count += 1
        return self._op_count - 1

    def add_ops(
        self,
        stream: np.ndarray,
        op_type: np.ndarray,
        transfer: np.ndarray,
        micro_batch: np.ndarray,
        dep_start: np.ndarray,
        deps: np.ndarray,
    ) -> int:
        """Add a block of ops, arrays as in `Ops`, except that `deps` are relative to the block's first op (negative:
        before the block). Return the first op's number."""
        self._flush()
        first = self._op_count
        self._add((stream, op_type, transfer, micro_batch), dep_start[1:], deps, first)
        self._op_count += len(op_type)
        return first

    def _add(self, columns: Iterable[Any], dep_ends: np.ndarray, deps: np.ndarray, first: int) -> None:
        """Append ops whose `deps` are relative to op `first`; those of each op end at `dep_ends`."""
        before = len(self._deps)
        np.add(deps, first, out=self._deps.grow(len(deps)), casting="unsafe")
        np.add(dep_ends, before, out=self._dep_start.grow(len(dep_ends)))
        for column, values in zip(self._ops, columns, strict=True):
            column.grow(len(values))[:] = values

    def _flush(self) -> None:
        """Move ops that were added one by one into the columns."""
        if not self._pending:
            return
        *columns, after = zip(*self._pending, strict=True)
        ends = np.cumsum(np.fromiter(map(len, after), np.int64, len(after)))
        deps = np.fromiter((op for ops in after for op in ops), np.int32, int(ends[-1]))
        self._add(columns, ends, deps, 0)
        self._pending = []

    # Result

    def build(self) -> Graph:
        """Return the graph so far; unchecked, see `checks.check`."""
        self._flush()
        double = np.float64
        column_types = (None, np.int8, np.int8, double, double, double, np.int32, np.bool_)
        names, members, sizes = _columns(self._groups, (None, None, np.int32))
        starts = np.cumsum([0, *map(len, members)], dtype=np.int64)
        ranks = np.array([rank for ranks in members for rank in ranks], np.int32)
        stream, op_type, transfer, micro_batch = (column.values for column in self._ops)
        return Graph(
            op_types=graph.OpTypes(*_columns(self._op_types, column_types)),
            ranks=graph.Ranks(*_columns(self._ranks, (np.int32, double, np.int32, np.int32))),
            streams=graph.Streams(*_columns(self._streams, (np.int32, None, np.int8))),
            groups=graph.Groups(names, starts, ranks, sizes),
            transfers=graph.Transfers(*(column.values for column in self._transfers)),
            ops=Ops(op_type, stream, transfer, micro_batch, self._dep_start.values, self._deps.values),
            job_names=[self.job],
        )


class _Column:
    """A growable array."""

    def __init__(self, dtype: type) -> None:
        self._buffer: np.ndarray = np.empty(0, dtype)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def values(self) -> np.ndarray:
        """All entries so far."""
        return self._buffer[: self._count]

    def reserve(self, count: int) -> None:
        """Allocate space for `count` entries in total."""
        if count > len(self._buffer):
            buffer = np.empty(count, self._buffer.dtype)
            buffer[: self._count] = self.values
            self._buffer = buffer

    def grow(self, count: int) -> np.ndarray:
        """Append `count` uninitialized entries and return them."""
        if self._count + count > len(self._buffer):
            self.reserve(max(self._count + count, 2 * len(self._buffer)))
        self._count += count
        return self._buffer[self._count - count : self._count]


def _columns(records: list[tuple], types: tuple[type | None, ...]) -> list[Any]:
    """Return the columns of a table: an array where it has a type, else a list."""
    columns = zip(*records, strict=True) if records else [()] * len(types)
    return [
        list(column) if kind is None else np.array(column, kind) for column, kind in zip(columns, types, strict=True)
    ]
