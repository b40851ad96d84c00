"""The gradients of an iteration, as input of bucketing."""

from dataclasses import dataclass

import numpy as np

from emulator.jobs.workload.graph import NO_TRANSFER
from emulator.traces.joined import Joined
from emulator.traces.whatif.transfers import all_reduces, transfer_bytes
from switchml.errors import GraphError


@dataclass(frozen=True)
class Gradients:
    """Gradients that can be assigned to buckets. Gradient i is the same parameter's on all ranks."""

    op: np.ndarray
    """int64 (ranks, gradients): the op that made each final."""
    bytes: np.ndarray
    """float64 (gradients,)."""
    bucket: np.ndarray
    """int64 (gradients,): present transfer of each."""
    rank: np.ndarray
    """int64 (ranks,): rank of each row."""

    @property
    def transfers(self) -> np.ndarray:
        """Present buckets in order, int64."""
        return np.unique(self.bucket)

    def listed(self, bucket: np.ndarray) -> list[tuple[int, int, float]]:
        """Return `Joined.gradients` with gradient i in the transfer `bucket[i]`."""
        columns = bucket.tolist(), self.bytes.tolist()
        return [row for ops in self.op.tolist() for row in zip(ops, *columns, strict=True)]


def gradients(joined: Joined) -> Gradients:
    """Return the gradients that the traces name with their bytes; if there are none, each all-reduce among all ranks
    counts as one gradient, so that buckets can be merged but not divided. Gradients without bytes are omitted. Raises
    GraphError if there are none."""
    graph = joined.graph
    listed = [row for row in joined.gradients if row[1] != NO_TRANSFER and row[2] > 0]
    if not listed:
        return _whole_buckets(joined)
    op = np.array([row[0] for row in listed], np.int64)
    rank = graph.op_rank()[op]
    ranks, counts = np.unique(rank, return_counts=True)
    if np.ptp(counts):
        each = ", ".join(f"rank {r} {n}" for r, n in zip(ranks[:8], counts, strict=False))
        raise GraphError(f"ranks have different numbers of gradients ({each}): they can't share buckets")
    order = np.argsort(rank, kind="stable").reshape(len(ranks), -1)
    size = np.array([row[2] for row in listed], np.float64)[order]
    bucket = np.array([row[1] for row in listed], np.int64)[order]
    if np.any(bucket != bucket[0]):
        raise GraphError("ranks put their gradients into different buckets: the traces are not of one job's iteration")
    return Gradients(op[order], size[0], bucket[0], ranks)


def _whole_buckets(joined: Joined) -> Gradients:
    graph, size = joined.graph, transfer_bytes(joined)
    everyone = [
        transfer
        for transfer in all_reduces(joined)
        if size[transfer] > 0 and len(graph.groups.members(graph.transfers.group[transfer])) == len(graph.ranks)
    ]
    if not everyone:
        raise GraphError("the trace names no gradients with bytes, and no such all-reduce that all ranks take part in")
    rank = graph.op_rank()
    op = np.full((len(graph.ranks), len(everyone)), -1, np.int64)
    column = {int(transfer): i for i, transfer in enumerate(everyone)}
    for member in np.flatnonzero(np.isin(graph.ops.transfer, everyone)).tolist():
        before = graph.ops.before(member)
        if len(before) == 0:
            raise GraphError(
                f"{graph.op_name(int(member))} has no producer, so the time at which a bucket is ready is unknown"
            )
        op[rank[member], column[int(graph.ops.transfer[member])]] = before.max()
    transfers = np.array(everyone, np.int64)
    return Gradients(op, size[transfers], transfers, np.arange(len(graph.ranks)))


def after_backward(joined: Joined) -> np.ndarray:
    """Return the ops after the last gradient of their rank in graph order, bool (ops,)."""
    present = gradients(joined)
    last = np.zeros(len(joined.graph.ranks), np.int64)
    last[present.rank] = present.op.max(axis=1)
    return np.arange(len(joined.graph.ops)) > last[joined.graph.op_rank()]
