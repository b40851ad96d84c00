"""A job as flat arrays. An *op* is a unit of work of one stream of one rank: a kernel, its part of a collective, a
send, a read. Ops of one rank wait for each other through dependencies and through their stream; ranks wait for each
other only in *transfers*, one for each occurrence of a collective, a send with its receive, or a read from shared
storage.

Properties that many ops share (name, kind, FLOPs, bytes) are stored once, in the table `op_types`, so that costing a
job of millions of ops takes a few hundred entries. `builder.py` builds graphs, `checks.py` validates them, `costs.py`
holds their costs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TypeVar

import numpy as np


class Kind(IntEnum):
    """Kind of an op; determines the part of the iteration to which its time is attributed."""

    COMPUTE = 0
    COLLECTIVE = 1
    SEND = 2
    RECV = 3
    LOAD = 4
    """Reading samples from storage or from a peer's cache."""
    CODEC = 5
    """Compression or decompression of gradients or activations."""
    COPY = 6
    """Offload copy between host and device memory."""
    CHECKPOINT = 7
    DELAY = 8
    """Host delay: launch gaps, the interpreter, garbage collection."""


class Collective(IntEnum):
    """Operation of a transfer. The comments give the meaning of its op type's `bytes`, per rank."""

    NONE = 0
    ALL_REDUCE = 1  # the whole buffer
    REDUCE_SCATTER = 2  # the whole input buffer
    ALL_GATHER = 3  # the whole output buffer
    ALL_TO_ALL = 4  # the whole send buffer
    BROADCAST = 5  # the whole buffer
    REDUCE = 6  # the whole buffer
    BARRIER = 7  # 0
    P2P = 8  # the sent buffer
    READ = 9  # the data read from storage


class Order(IntEnum):
    """Order in which a stream runs its ops."""

    PROGRAM = 0
    """Order in the graph, like a CUDA stream: an op waits for its predecessor even if it could run earlier."""
    READY = 1
    """Ready ops by highest priority, then ready time, then position in the graph. An op of a transfer takes the stream
    only once all members are ready, so that two ranks can't block each other by choosing differently."""


NO_TRANSFER = -1
NO_MICRO_BATCH = -1


class Records:
    """A table: each attribute is a column; the first column has one entry per record."""

    def __len__(self) -> int:
        return len(next(iter(vars(self).values())))


@dataclass(frozen=True)
class OpTypes(Records):
    """Properties shared by ops. All arrays (op types,)."""

    name: list[str]
    kind: np.ndarray
    """int8, `Kind`."""
    collective: np.ndarray
    """int8, `Collective`."""
    flops: np.ndarray
    """float64: floating-point operations of one op."""
    bytes: np.ndarray
    """float64: memory traffic of a COMPUTE, CODEC or COPY op; message size of a transfer (see `Collective`)."""
    seconds: np.ndarray
    """float64: duration where it is known beforehand (traces, tables); NaN: left to the cost model."""
    priority: np.ndarray
    """int32: larger values run first on a stream of order READY."""
    is_source: np.ndarray
    """bool: a communication that may start with no producer, such as the first all-gather of sharded weights."""

    def by_name(self) -> tuple[list[str], np.ndarray]:
        """Return the distinct names, and the index of each op type's name among them, int64 (op types,). Kernel names
        can be thousands of characters long, and a NumPy array of strings would allocate the maximum for each."""
        numbers: dict[str, int] = {}
        each = np.fromiter((numbers.setdefault(name, len(numbers)) for name in self.name), np.int64, len(self.name))
        return list(numbers), each


@dataclass(frozen=True)
class Ranks(Records):
    """The ranks of a graph. All arrays (ranks,)."""

    stage: np.ndarray
    """int32: pipeline stage, 0 where there is none."""
    weight: np.ndarray
    """float64: number of ranks of the real job that this one represents (folding); 1 where nothing is folded."""
    job: np.ndarray
    """int32: the rank's job, where several share a fabric."""
    device: np.ndarray
    """int32: accelerator in the cluster; of a folded rank, that of the first one it represents."""


@dataclass(frozen=True)
class Streams(Records):
    """Queues that run ops one at a time: a CUDA stream, a communicator, a loader process. All arrays (streams,)."""

    rank: np.ndarray
    """int32."""
    name: list[str]
    order: np.ndarray
    """int8, `Order`."""


@dataclass(frozen=True)
class Groups(Records):
    """Sets of ranks that communicate: communicators, the two ends of a pipeline boundary. Group g has the ranks
    `ranks[start[g]:start[g + 1]]` of this graph, and `size[g]` in the real job, which is more where ranks are folded.
    """

    name: list[str]
    start: np.ndarray
    """int64 (groups + 1,)."""
    ranks: np.ndarray
    """int32."""
    size: np.ndarray
    """int32 (groups,): number of ranks that determines a collective's cost."""

    def members(self, group: int) -> np.ndarray:
        """Return the group's ranks in this graph, int32."""
        return self.ranks[self.start[group] : self.start[group + 1]]


@dataclass(frozen=True)
class Transfers(Records):
    """Each occurrence of a collective. All arrays (transfers,) int32."""

    op_type: np.ndarray
    """Op type of the transfer; its members' ops may have different op types (a send and its receive)."""
    group: np.ndarray


@dataclass(frozen=True)
class Ops(Records):
    """The graph's nodes and edges. Op i may start when all of `deps[dep_start[i]:dep_start[i + 1]]` have ended, its
    stream takes it, and all members of its transfer are ready."""

    op_type: np.ndarray
    """int32 (ops,)."""
    stream: np.ndarray
    """int32 (ops,)."""
    transfer: np.ndarray
    """int32 (ops,), NO_TRANSFER for an op without a transfer."""
    micro_batch: np.ndarray
    """int32 (ops,), NO_MICRO_BATCH where none applies."""
    dep_start: np.ndarray
    """int64 (ops + 1,)."""
    deps: np.ndarray
    """int32: op numbers."""

    def before(self, op: int) -> np.ndarray:
        """The ops that `op` depends on, int32."""
        return self.deps[self.dep_start[op] : self.dep_start[op + 1]]


Table = TypeVar("Table", "OpTypes", "Ranks", "Streams", "Groups", "Transfers", "Ops")
TABLES = ("op_types", "ranks", "streams", "groups", "transfers", "ops")


def rows(table: Table, records: np.ndarray) -> Table:
    """Return the table with only these records, in this order."""
    picked = {name: column[records] for name, column in vars(table).items() if isinstance(column, np.ndarray)}
    picked |= {name: [column[i] for i in records] for name, column in vars(table).items() if isinstance(column, list)}
    return type(table)(**picked)


def stacked(tables: Sequence[Table], **columns: Any) -> Table:
    """Return the concatenation of several tables, with `columns` replacing some of theirs."""
    for name in vars(tables[0]).keys() - columns.keys():
        parts = [getattr(table, name) for table in tables]
        is_list = isinstance(parts[0], list)
        columns[name] = [value for part in parts for value in part] if is_list else np.concatenate(parts)
    return type(tables[0])(**columns)


def appended(table: Table, **columns: Any) -> Table:
    """Return the table with additional records: for each column an array of values, or a single one for all."""
    # np.size() of a list would convert it to an array, with every name as wide as the longest.
    count = max(len(values) if isinstance(values, list) else np.size(values) for values in columns.values())
    each: dict[str, Any] = {
        name: list(values) if isinstance(values, list) else np.broadcast_to(values, count).astype(column.dtype)
        for name, values in columns.items()
        if (column := getattr(table, name)) is not None
    }
    return stacked([table, type(table)(**each)])


@dataclass(frozen=True)
class Graph:
    """Graph of one or more iterations of one or more jobs."""

    op_types: OpTypes
    ranks: Ranks
    streams: Streams
    groups: Groups
    transfers: Transfers
    ops: Ops
    job_names: list[str] = field(default_factory=lambda: ["job"])

    def __repr__(self) -> str:
        return f"<Graph of {len(self.ops):,} ops on {len(self.ranks)} ranks>"

    def op_rank(self) -> np.ndarray:
        """Return the rank of each op, int32 (ops,)."""
        return self.streams.rank[self.ops.stream]

    def op_kind(self) -> np.ndarray:
        """Return the `Kind` of each op, int8 (ops,)."""
        return self.op_types.kind[self.ops.op_type]

    def op_name(self, op: int) -> str:
        """Describe an op for messages: `layer 3 forward, micro-batch 2 (rank 5, compute)`."""
        stream = int(self.ops.stream[op])
        micro_batch = int(self.ops.micro_batch[op])
        which = f", micro-batch {micro_batch}" if micro_batch != NO_MICRO_BATCH else ""
        where = f"rank {self.streams.rank[stream]}, {self.streams.name[stream]}"
        return f"{self.op_types.name[self.ops.op_type[op]]}{which} ({where})"

    def stages(self) -> int:
        """Return the number of pipeline stages."""
        return int(self.ranks.stage.max()) + 1 if len(self.ranks) else 0
