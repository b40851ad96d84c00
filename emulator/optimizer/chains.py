"""Ops that follow each other on a stream with nobody looking in between: no meeting, no other op that waits for one of
them or that all but the first wait for. Such a run behaves as one op.
"""

from __future__ import annotations

import numpy as np

from emulator.workload.graph import NO_MEETING, Graph, Order


def follower(graph: Graph) -> np.ndarray:
    """bool (ops,): whether an op continues the run of its stream's op before it."""
    ops = graph.ops
    before, after = on_stream(graph)
    widths = np.diff(ops.dep_start)
    of_dep = np.repeat(np.arange(len(ops)), widths)
    foreign_deps = np.bincount(of_dep[ops.deps != before[of_dep]], minlength=len(ops))
    watched = np.bincount(ops.deps[of_dep != after[ops.deps]], minlength=len(ops)) > 0
    plain = (ops.meeting == NO_MEETING) & (graph.streams.order[ops.stream] == Order.PROGRAM)
    found = (before >= 0) & plain & (foreign_deps == 0)
    found[found] &= plain[before[found]] & ~watched[before[found]]
    return found


def on_stream(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """int64 (ops,): the op before, and the op after, on each op's stream in the order of the graph; -1: none."""
    count = len(graph.ops)
    order = np.argsort(graph.ops.stream, kind="stable")
    same = np.diff(graph.ops.stream[order]) == 0
    before, after = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    before[order[1:][same]] = order[:-1][same]
    after[order[:-1][same]] = order[1:][same]
    return before, after
