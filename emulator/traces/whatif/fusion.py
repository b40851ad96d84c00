"""Change: operator fusion. Small ops that follow each other on a stream become one, as in compilers (XLA,
TorchInductor). This removes the launch of all but the first, and the host's gaps between them.
"""

import numpy as np

from emulator.jobs.workload.graph import NO_TRANSFER, Graph, Kind, Order
from emulator.traces.joined import Joined
from emulator.traces.whatif.edits import durations, edges, on_stream, with_durations

SMALL_S = 1e-4
"""Maximum duration of a small op."""


def fuse(joined: Joined, launch_s: float) -> Joined:
    """Reduce small ops of a run by `launch_s`, except the first; remove gaps inside runs."""
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
    """Return whether an op continues the run of the preceding op on its stream, bool (ops,). A run has no member of a
    collective; only its last op has dependents on other streams, and only its first depends on others."""
    ops = graph.ops
    previous, following = on_stream(graph)
    owner, on = edges(ops)
    waits_elsewhere = np.bincount(owner[on != previous[owner]], minlength=len(ops)) > 0
    watched = np.bincount(on[owner != following[on]], minlength=len(ops)) > 0
    plain = (ops.transfer == NO_TRANSFER) & (graph.streams.order[ops.stream] == Order.PROGRAM)
    joins = (previous >= 0) & plain & ~waits_elsewhere
    joins[joins] &= plain[previous[joins]] & ~watched[previous[joins]]
    return joins
