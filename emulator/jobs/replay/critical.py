"""The critical path: from the op that ends last backwards, each time to what held its start up longest. Shortening
what is on it is the only way to shorten the iteration.
"""

from dataclasses import dataclass

import numpy as np

from emulator.jobs.replay.engine import Replayed
from emulator.jobs.replay.parts import PART_OF_KIND, PARTS, ops_by_stream
from emulator.jobs.replay.tables import grouped
from emulator.jobs.workload.graph import NO_TRANSFER, Kind, Order


@dataclass(frozen=True)
class CriticalPath:
    """Segments in the order of time; arrays (segments,). What lies between two segments is waiting for the job's
    start."""

    op: np.ndarray
    """int32: of a collective, the member that came last."""
    from_s: np.ndarray
    until_s: np.ndarray
    by_part: dict[str, float]
    """Part → seconds, as in `parts.PARTS`."""
    by_op_type: dict[str, float]
    """Name of an op type → seconds, largest first."""


def critical_path(played: Replayed) -> CriticalPath:
    """Walk it."""
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
                # The last member to come was not what it waited for: some stream that takes what is ready was busy.
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
    """int32 (ops,): what its stream did before each op, −1: nothing. On a stream that takes what is ready only what
    took time counts: what took none held nobody up, and its place among others of the same moment is not known."""
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
    """Of what `ops` waited for the one that ended last, and when; (−1, −inf) where they waited for nothing."""
    latest, at_s = -1, -np.inf
    for op in ops:
        for other in (int(before[op]), *played.graph.ops.before(op).tolist()):
            if other >= 0 and played.end_s[other] > at_s:
                latest, at_s = other, float(played.end_s[other])
    return latest, at_s
