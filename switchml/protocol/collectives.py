"""Collectives other than sum all-reduces: the ranks that send data of a chunk, and the ranks that get its result
(docs/protocol.md, section 11).

A `Collective` describes how a worker's task differs from an all-reduce that sums. Its packets are addressed: they name
the ranks that get the data (`reach`, `root`) and the operation (`op`). Each rank answers each round, with or without
data, so slots, retransmission and all other aspects of a round are those of an all-reduce.

Kernels over a worker's task records, as in worker.py.
"""

from dataclasses import dataclass
from typing import Any

from switchml.protocol.packet import OP_SUM, OP_SUM_FLOAT16, REACH_ALL, REACH_OTHERS, REACH_ROOT
from switchml.runtime.jit import int64, kernel

MAX_RUN = 16
"""Maximum number of consecutive chunks of one share: packets of the same length are sent as a train."""


@dataclass(frozen=True)
class Collective:
    """Difference of a task from an all-reduce that sums. `reach`, `root` and `op` as in packet.py. `shares`: number of
    ranks that own a part of the tensor (0: all of it belongs to `root`); the task's elements are then those of one
    share, at intervals of `source_step` bytes in this rank's contribution, and of `target_step` bytes in the result.
    `mark`: value of `used` in packets of raw bytes, so that ranks with different element sizes detect it. `seals`: for
    a seal, the reach of the collective before it, else -1."""

    reach: int
    root: int = 0
    op: int = OP_SUM
    shares: int = 0
    source_step: int = 0
    target_step: int = 0
    mark: int = 0
    seals: int = -1

    @property
    def moves_bytes(self) -> bool:
        """Whether it uses the queue of bytes, if there is one."""
        return REACH_OTHERS in (self.reach, self.seals)

    @property
    def kind(self) -> str:
        """Name of the collective: all_reduce, reduce, reduce_scatter, all_gather, broadcast or barrier."""
        if self.reach == REACH_OTHERS:
            return "all_gather" if self.shares else "broadcast"
        if self.reach == REACH_ROOT:
            return "reduce_scatter" if self.shares else "reduce"
        is_barrier = self.seals >= 0 or (self.op == OP_SUM and not self.mark)
        return "barrier" if is_barrier else "all_reduce"


def all_reduce(op: int, mark: int = 0) -> Collective:
    """Every rank's data, combined by `op`, to all."""
    return Collective(REACH_ALL, op=op, mark=mark)


def sum_of_all() -> Collective:
    """Sum of every rank's lanes, to all, in a job whose other sums may exclude a rank (section 13)."""
    return Collective(REACH_ALL, mark=1)


def barrier() -> Collective:
    """One round without data: its result shows that all ranks have arrived."""
    return Collective(REACH_ALL)


def seal(signature: int, reach: int) -> Collective:
    """A barrier after a collective of `reach`, in its queue, whose packets carry 16 bits of the collective's
    signature."""
    return Collective(REACH_ALL, root=signature >> 8, mark=signature & 0xFF, seals=reach)


def broadcast(root: int, mark: int) -> Collective:
    """The root's bytes to all others."""
    return Collective(REACH_OTHERS, root, mark=mark)


def reduce(root: int, op: int, mark: int = 0) -> Collective:
    """Every rank's data, combined by `op`, to the root."""
    return Collective(REACH_ROOT, root, op, mark=mark)


def all_gather(ranks: int, share_bytes: int, mark: int) -> Collective:
    """Each rank's bytes to all others, concatenated."""
    return Collective(REACH_OTHERS, shares=ranks, target_step=share_bytes, mark=mark)


def reduce_scatter(ranks: int, share_bytes: int, op: int, mark: int = 0) -> Collective:
    """Every rank's data, combined by `op`: share r to rank r."""
    return Collective(REACH_ROOT, op=op, shares=ranks, source_step=share_bytes, mark=mark)


def run_of(slots: int, shares: int) -> int:
    """Number of consecutive chunks of one share: a few of every share fit a quarter of the slots."""
    return max(1, min(MAX_RUN, slots // (4 * shares)))


@kernel
def owner_of(task: Any, position: int) -> int:
    """The root of a task's chunk number `position`."""
    if not task.shares:
        return int64(task.root)
    turn = task.shares * task.run
    whole = task.share_chunks // task.run * turn
    if position < whole:
        return int64(position % turn // task.run)
    return int64((position - whole) // (task.share_chunks % task.run))


@kernel
def place_of(task: Any, position: int) -> int:
    """Index of the chunk in its owner's share. The shares alternate in runs of `run` chunks; the last run is
    shorter."""
    if not task.shares:
        return int64(position)
    turn = task.shares * task.run
    turns = task.share_chunks // task.run
    if position < turns * turn:
        return int64(position // turn * task.run + position % task.run)
    return int64(turns * task.run + (position - turns * turn) % (task.share_chunks % task.run))


@kernel
def sends(task: Any, owner: int, rank: int) -> bool:
    """Whether a rank sends data for a chunk of `owner`: every rank that does not need the result. The root of a
    reduction adds its own data to the result, except for half precision, which is rounded only once."""
    return bool(rounds_sums(task) or task.reach == REACH_ALL or (task.reach == REACH_OTHERS) == (owner == rank))


@kernel(inline=True)
def rounds_sums(task: Any) -> Any:
    """Whether a task's result is half precision that the aggregator sums and rounds."""
    return task.op >= OP_SUM_FLOAT16


@kernel
def gets(task: Any, owner: int, rank: int) -> bool:
    """Whether a rank gets the data of the result."""
    return bool(task.reach == REACH_ALL or (task.reach == REACH_ROOT) == (owner == rank))
