"""Changes of the batch. Another size: compute scales in proportion; all-reduces and the host's gaps are unchanged.
Gradient accumulation: several micro-batches per all-reduce of gradients, which multiplies the batch.
"""

import numpy as np

from emulator.jobs.replay.engine import replay
from emulator.jobs.workload.graph import Kind
from emulator.traces.joined import Joined
from emulator.traces.whatif.edits import (
    append,
    computes,
    durations,
    edges,
    with_durations,
    with_streams,
    with_transfer_seconds,
)
from emulator.traces.whatif.gradients import after_backward, gradients

NAME = "earlier micro-batches"


def accumulate(joined: Joined, micro_batches: int) -> Joined:
    """Let everything wait for a rank's earlier micro-batches, each as long as the traced one until its last
    gradient."""
    graph, present = joined.graph, gradients(joined)
    alone = with_transfer_seconds(joined, np.arange(len(graph.transfers)), 0.0)
    earlier_s = np.zeros(len(graph.ranks))
    earlier_s[present.rank] = (micro_batches - 1) * replay(graph, alone.costs).end_s[present.op].max(axis=1)
    number = np.arange(len(graph.ranks))
    roots = np.flatnonzero(np.diff(graph.ops.dep_start) == 0)
    owner, on = edges(graph.ops)
    owner, on = np.append(owner, roots), np.append(on, len(graph.ops) + graph.op_rank()[roots])
    stream, first = len(graph.streams) + number, np.full(len(number), -1.0)
    return append(with_streams(joined, NAME), NAME, Kind.COMPUTE, earlier_s, stream, first, owner, on)


def batch(joined: Joined, factor: float) -> Joined:
    """Scale compute ops by `factor`, except those after the last gradient (the optimizer)."""
    ops = np.flatnonzero(computes(joined) & ~after_backward(joined))
    return with_durations(joined, ops, durations(joined)[ops] * factor)
