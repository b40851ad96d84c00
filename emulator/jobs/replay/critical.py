"""The critical path: backwards from the op that ends last, each time to the last predecessor of its start. Only
shortening ops on it shortens the iteration.
"""

from dataclasses import dataclass

import numpy as np

from emulator.jobs.replay.engine import Replayed
from emulator.jobs.replay.parts import PART_OF_KIND, PARTS, ops_by_stream
from emulator.jobs.replay.tables import grouped
from emulator.jobs.workload.graph import NO_TRANSFER, Kind, Order


@dataclass(frozen=True)
class CriticalPath:
    """Segments in order of time; arrays (segments,). A gap between two segments is waiting for the job's start."""

    op: np.ndarray
    """int32; for a collective, the member that arrived last."""
    from_s: np.ndarray
    until_s: np.ndarray
    by_part: dict[str, float]
    """Part → seconds, as in `parts.PARTS`."""
    by_op_type: dict[str, float]
    """Op type name → seconds, in falling order."""


def critical_path(played: Replayed) -> CriticalPath:
    """Return the critical path of a replay."""
    graph = played.graph
    if not len(graph.ops):
        return CriticalPath(np.empty(0, np.int32), np.empty(0), np.empty(0), {}, {})
    before = _before_on_stream(played)
    members: tuple[np.ndarray, np.ndarray] | None = None
    op = int(np.argmax(played.end_s))
    ops, from_s, until_s = [], [], []
    while op >= 0:
        transfer = int(graph.ops.transfer[op])
        begins_s = played.start_s[op]
        waits_for = [op]
        if transfer != NO_TRANSFER:
            begins_s = played.transfer_start_s[transfer]
            op = int(played.transfer_last[transfer])
            waits_for = [op]
            if played.start_s[op] < begins_s or _latest(played, before, waits_for)[1] < begins_s:
                # The transfer did not start with its last member's arrival: a stream in ready order was busy.
                if members is None:
                    members = grouped(graph.ops.transfer, len(graph.transfers))
                start, member = members
                waits_for = member[start[transfer] : start[transfer + 1]].tolist()
        ops.append(op)
        from_s.append(float(begins_s))
        until_s.append(float(played.end_s[op]))
        op, _ = _latest(played, before, waits_for)
    path, began_s, ended_s = np.array(ops[::-1], np.int32), np.array(from_s[::-1]), np.array(until_s[::-1])
    seconds = ended_s - began_s
    op_types = graph.ops.op_type[path]
    part = np.array([PART_OF_KIND[kind] for kind in Kind])[graph.op_types.kind[op_types]]
    by_part = np.bincount(part, seconds, minlength=len(PARTS))
    by_op_type = np.bincount(op_types, seconds, minlength=len(graph.op_types))
    names: dict[str, float] = {}
    for op_type in np.flatnonzero(by_op_type > 0):
        names[graph.op_types.name[op_type]] = names.get(graph.op_types.name[op_type], 0.0) + float(by_op_type[op_type])
    return CriticalPath(
        op=path,
        from_s=began_s,
        until_s=ended_s,
        by_part={name: float(by_part[i]) for i, name in enumerate(PARTS) if by_part[i] > 0},
        by_op_type=dict(sorted(names.items(), key=lambda item: -item[1])),
    )


def _before_on_stream(played: Replayed) -> np.ndarray:
    """Return the preceding op on each op's stream, int32 (ops,), −1: none. On a stream in ready order only ops with a
    duration count: others delayed none, and their order within a point in time is unknown."""
    graph = played.graph
    stream_start, ops = ops_by_stream(graph, played.start_s, played.end_s)
    counts = (graph.streams.order[graph.ops.stream] == Order.PROGRAM) | (played.end_s > played.start_s)
    before = np.full(len(ops), -1, np.int32)
    for stream in range(len(graph.streams)):
        run = ops[stream_start[stream] : stream_start[stream + 1]]
        latest = np.maximum.accumulate(np.where(counts[run], np.arange(len(run)), -1))[:-1]
        before[run[1:]] = np.where(latest >= 0, run[latest], -1)
    return before


def _latest(played: Replayed, before: np.ndarray, ops: list[int]) -> tuple[int, float]:
    """Return the last-ending predecessor of `ops` and its end time; (−1, −inf) without predecessors."""
    latest, at_s = -1, -np.inf
    for op in ops:
        for other in (int(before[op]), *played.graph.ops.before(op).tolist()):
            if other >= 0 and played.end_s[other] > at_s:
                latest, at_s = other, float(played.end_s[other])
    return latest, at_s
