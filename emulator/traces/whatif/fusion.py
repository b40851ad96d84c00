"""Operator fusion: small ops that follow each other on a stream become one, as compilers make them (XLA,
TorchInductor). What goes is the start of all but the first, and the host's gaps between them.
"""

import numpy as np

from emulator.jobs.workload.graph import NO_TRANSFER, Graph, Kind, Order
from emulator.traces.joined import Joined
from emulator.traces.whatif.edits import durations, edges, on_stream, with_durations

SMALL_S = 1e-4
"""An op that takes longer is worth its start."""


def fuse(joined: Joined, launch_s: float) -> Joined:
    """Small ops of a run lose `launch_s`, all but the first; gaps inside runs go."""
    graph, seconds = joined.graph, durations(joined)
    kind = graph.op_kind()
    previous, _ = on_stream(graph)
    small = (kind == Kind.COMPUTE) & (seconds < SMALL_S)
    gap = (kind == Kind.DELAY) & (seconds < SMALL_S)
    inside = continues_run(graph) & (small | gap)
    inside[inside] &= (small | gap)[previous[inside]]
    ops = np.flatnonzero(inside)
    return with_durations(joined, ops, np.where(gap[ops], 0.0, np.maximum(seconds[ops] - launch_s, 0.0)))


def continues_run(graph: Graph) -> np.ndarray:
    """bool (ops,): whether an op continues the run of its stream's op before it. A run has no member of a collective;
    only its last op is waited for elsewhere, and only its first waits for others."""
    ops = graph.ops
    previous, following = on_stream(graph)
    owner, on = edges(ops)
    waits_elsewhere = np.bincount(owner[on != previous[owner]], minlength=len(ops)) > 0
    watched = np.bincount(on[owner != following[on]], minlength=len(ops)) > 0
    plain = (ops.transfer == NO_TRANSFER) & (graph.streams.order[ops.stream] == Order.PROGRAM)
    joins = (previous >= 0) & plain & ~waits_elsewhere
    joins[joins] &= plain[previous[joins]] & ~watched[previous[joins]]
    return joins
