"""Makes graphs: op by op for people and tests, and in blocks for generators. A generator builds the ops of one rank
as arrays once and adds that block for every rank that does the same, with other streams and transfers; so 20 million
ops are a thousand appends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from emulator.workload import graph
from emulator.workload.graph import NO_MICRO_BATCH, NO_TRANSFER, Collective, Graph, Kind, Ops, Order
from switchml.errors import ConfigError


class GraphBuilder:
    """Collects the tables; `build()` returns the graph. Every `add_…` returns the number of what it added, or of the
    first of several; numbers count up from 0."""

    def __init__(self, job: str = "job") -> None:
        self._works: list[tuple[str, int, int, float, float, float, int, bool]] = []
        self._work_numbers: dict[tuple, int] = {}
        self._ranks: list[tuple[int, float, int, int]] = []
        self._streams: list[tuple[int, str, int]] = []
        self._groups: list[tuple[str, Sequence[int], int]] = []
        self._transfers: list[tuple[np.ndarray, np.ndarray]] = []
        self._transfer_count = 0
        self._blocks: list[tuple[np.ndarray, ...]] = []
        self._op_count = 0
        self._pending: list[tuple[int, int, int, int, tuple[int, ...]]] = []
        self.job = job

    # Tables

    def add_rank(self, *, stage: int = 0, weight: float = 1.0, device: int | None = None) -> int:
        """A rank; `weight` is how many of the real job it stands for, `device` its place in the cluster (default: its
        own number)."""
        self._ranks.append((stage, weight, 0, len(self._ranks) if device is None else device))
        return len(self._ranks) - 1

    def add_stream(self, rank: int, name: str = "compute", order: Order = Order.PROGRAM) -> int:
        """A stream of `rank`."""
        if not 0 <= rank < len(self._ranks):
            raise ConfigError(f"stream {name!r} names rank {rank}, but there are {len(self._ranks)} ranks so far")
        self._streams.append((rank, name, int(order)))
        return len(self._streams) - 1

    def add_work(
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
        """A work; asked for the same again, the number it had before. Fields as in `Works`."""
        row = (name, int(kind), int(collective), float(flops), float(bytes), float(seconds), priority, is_source)
        key = (*row[:5], None if math.isnan(seconds) else seconds, *row[6:])
        if key not in self._work_numbers:
            for what, amount in (("FLOPs", flops), ("bytes", bytes), ("seconds", seconds)):
                if amount < 0 or math.isinf(amount):
                    raise ConfigError(f"work {name!r} has {amount} {what}; expected a finite number of at least 0")
            self._work_numbers[key] = len(self._works)
            self._works.append(row)
        return self._work_numbers[key]

    def add_group(self, ranks: Iterable[int], *, name: str = "", size: int | None = None) -> int:
        """Ranks that meet. `size`: how many there are in the real job, where ranks are folded."""
        ranks = list(ranks)
        self._groups.append((name or f"group {len(self._groups)}", ranks, len(ranks) if size is None else size))
        return len(self._groups) - 1

    def add_transfers(self, work: int | np.ndarray, group: int | np.ndarray, count: int | None = None) -> int:
        """Transfers of `group` about `work`, both one number or one a transfer; returns the first one's number, the
        others follow it."""
        if count is None:
            count = max(np.size(work), np.size(group))
        as_many = [np.broadcast_to(np.asarray(value, np.int32), (count,)) for value in (work, group)]
        self._transfers.append((as_many[0], as_many[1]))
        self._transfer_count += count
        return self._transfer_count - count

    # Ops

    def add_op(
        self,
        stream: int,
        work: int,
        *,
        after: Iterable[int] = (),
        transfer: int = NO_TRANSFER,
        micro_batch: int = NO_MICRO_BATCH,
    ) -> int:
        """One op, after the ops with the numbers `after`."""
        self._pending.append((stream, work, transfer, micro_batch, tuple(after)))
        self._op_count += 1
        return self._op_count - 1

    def add_ops(
        self,
        stream: np.ndarray,
        work: np.ndarray,
        transfer: np.ndarray,
        micro_batch: np.ndarray,
        dep_start: np.ndarray,
        deps: np.ndarray,
    ) -> int:
        """A block of ops, arrays as in `Ops`, but `deps` count from the block's first op (negative: before the block).
        Returns the first op's number. The arrays must not change afterwards."""
        self._flush()
        first = self._op_count
        self._blocks.append((stream, work, transfer, micro_batch, np.diff(dep_start), (deps, first)))
        self._op_count += len(work)
        return first

    def _flush(self) -> None:
        """Turn ops that came one by one into a block."""
        if not self._pending:
            return
        stream, work, transfer, micro_batch, after = zip(*self._pending, strict=True)
        counts = np.fromiter(map(len, after), np.int64, len(after))
        deps = np.fromiter((op for ops in after for op in ops), np.int32, int(counts.sum()))
        columns = (np.asarray(column, np.int32) for column in (stream, work, transfer, micro_batch))
        self._blocks.append((*columns, counts, (deps, 0)))
        self._pending = []

    # The whole

    def build(self) -> Graph:
        """The graph so far; unchecked, see `checks.check`."""
        self._flush()
        double = np.float64
        work_types = (None, np.int8, np.int8, double, double, double, np.int32, np.bool_)
        names, members, sizes = _columns(self._groups, (None, None, np.int32))
        starts = _starts(np.array([len(ranks) for ranks in members], np.int64))
        ranks = np.array([rank for ranks in members for rank in ranks], np.int32)
        work, group = _columns(self._transfers, (None, None))
        return Graph(
            works=graph.Works(*_columns(self._works, work_types)),
            ranks=graph.Ranks(*_columns(self._ranks, (np.int32, double, np.int32, np.int32))),
            streams=graph.Streams(*_columns(self._streams, (np.int32, None, np.int8))),
            groups=graph.Groups(names, starts, ranks, sizes),
            transfers=graph.Transfers(_joined(work), _joined(group)),
            ops=self._ops(),
            job_names=[self.job],
        )

    def _ops(self) -> Ops:
        stream, work, transfer, micro_batch = (_joined([block[i] for block in self._blocks]) for i in range(4))
        deps = np.empty(sum(len(block[5][0]) for block in self._blocks), np.int32)
        at = 0
        for *_, (relative, first) in self._blocks:
            np.add(relative, first, out=deps[at : at + len(relative)], casting="unsafe")
            at += len(relative)
        dep_start = _starts(_joined([block[4] for block in self._blocks], np.int64))
        return Ops(stream=stream, work=work, transfer=transfer, micro_batch=micro_batch, dep_start=dep_start, deps=deps)


def _columns(records: list[tuple], types: tuple[type | None, ...]) -> list[Any]:
    """The columns of a table: an array where it has a type, else a list."""
    columns = zip(*records, strict=True) if records else [()] * len(types)
    return [
        list(column) if kind is None else np.array(column, kind) for column, kind in zip(columns, types, strict=True)
    ]


def _joined(parts: list[np.ndarray], dtype: type = np.int32) -> np.ndarray:
    return np.concatenate(parts, dtype=dtype, casting="unsafe") if parts else np.empty(0, dtype)


def _starts(counts: np.ndarray) -> np.ndarray:
    """int64 (len + 1,): where each of consecutive runs of these lengths starts, and where the last one ends."""
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts
