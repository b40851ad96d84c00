"""Says in words why a replay can't go on: which collectives wait for whom, what the missing ranks are at instead, and
which ops wait for ops that will never end.
"""

from __future__ import annotations

from itertools import islice

import numpy as np

from emulator.workload.graph import NO_TRANSFER, Graph, Order

SHOWN = 6
"""Lines of an explanation, and ranks named in one."""
FOLLOWED = 200
"""How far the way back from a missing rank's op is followed."""


def explain(graph: Graph, start_s: np.ndarray, end_s: np.ndarray) -> list[str]:
    """One line for each of the first SHOWN things that something waits for; `start_s` and `end_s` as in `Replayed`,
    NaN for what did not happen."""
    ops, rank_of = graph.ops, graph.op_rank()
    is_here = ~np.isnan(start_s) & np.isnan(end_s) & (ops.transfer != NO_TRANSFER)
    lines = []
    for transfer in np.unique(ops.transfer[is_here]):
        members = np.flatnonzero(ops.transfer == transfer)
        here, missing = members[is_here[members]], members[~is_here[members]]
        name = graph.works.name[graph.transfers.work[transfer]]
        line = f"{name} ({graph.groups.name[graph.transfers.group[transfer]]}) has {_ranks(rank_of[here])}"
        if len(missing):
            first = f"rank {rank_of[missing[0]]} {_is_at(graph, missing[0], is_here, end_s)}"
            line += f" and waits for {_ranks(rank_of[missing])}: {first}"
        lines.append(line)
        if len(lines) == SHOWN:
            return lines
    if not lines:
        unfinished = np.isnan(end_s)
        heads = (op for op in np.flatnonzero(unfinished) if any(unfinished[graph.ops.before(op)]))
        for op in islice(heads, SHOWN):
            other = next(int(dep) for dep in graph.ops.before(op) if unfinished[dep])
            lines.append(f"{graph.op_name(op)} waits for {graph.op_name(other)}")
    return lines


def _is_at(graph: Graph, op: int, is_here: np.ndarray, end_s: np.ndarray) -> str:
    """What keeps `op` from being ready: `is at X` or `has still to do X`."""
    seen: set[int] = set()
    while op not in seen and len(seen) < FOLLOWED:
        seen.add(op)
        before = [int(dep) for dep in graph.ops.before(op) if np.isnan(end_s[dep])]
        stream = graph.ops.stream[op]
        if graph.streams.order[stream] == Order.PROGRAM:
            same = np.flatnonzero(graph.ops.stream[:op] == stream)
            before += [int(same[-1])] if len(same) and np.isnan(end_s[same[-1]]) else []
        if not before:
            break
        op = before[-1]
        if is_here[op]:
            return f"is in {graph.op_name(op)}"
    return f"has still to do {graph.op_name(op)}"


def _ranks(ranks: np.ndarray) -> str:
    names = [str(rank) for rank in np.unique(ranks)]
    rest = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ("rank " if len(names) == 1 else "ranks ") + ", ".join(names[:SHOWN]) + rest
