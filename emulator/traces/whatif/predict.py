"""Predicted and traced times: iterations replayed in sequence, unchanged or changed, and their parts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from emulator.jobs.replay.conditions import Conditions, Pause
from emulator.jobs.replay.engine import Replayed, replay
from emulator.jobs.replay.parts import PART_OF_KIND, PARTS, WAITING, Parts, parts
from emulator.jobs.workload.costs import Costs
from emulator.jobs.workload.graph import NO_TRANSFER, Graph, Kind
from emulator.traces.iterations import chain
from emulator.traces.joined import Joined
from emulator.traces.whatif.edits import latest
from switchml.errors import TraceError


@dataclass(frozen=True)
class Played(Parts):
    """Average of several iterations, by part and in total."""

    iteration_s: float

    def as_json(self, ranks: Sequence[int]) -> dict[str, Any]:
        """Return plain values for --json."""
        rows = [
            {"rank": int(rank), "parts_s": {name: float(s) for name, s in zip(PARTS, row, strict=True) if s > 0}}
            for rank, row in zip(ranks, self.by_rank, strict=True)
        ]
        return {"iteration_s": self.iteration_s, "parts_s": self.mean(), "ranks": rows}


def predicted(iterations: Sequence[Joined]) -> Played:
    """Replay iterations in sequence; ranks start the first as late as traced."""
    graph, costs = chain(iterations)
    late_s = _late_s(iterations[0])
    pauses = tuple(Pause(rank, 0.0, seconds) for rank, seconds in enumerate(late_s) if seconds > 0)
    played = replay(graph, costs, Conditions(pauses=pauses))
    result = _per_iteration(played, len(iterations))
    # A pause prolongs a rank's first op, but that time is waiting for the others.
    rank = graph.op_rank()
    for pause in pauses:
        first = int(np.flatnonzero(rank == pause.rank)[0])
        part = PART_OF_KIND[Kind(graph.op_kind()[first])]
        moved_s = min(pause.until_s / len(iterations), result.by_rank[pause.rank, part])
        result.by_rank[pause.rank, part] -= moved_s
        result.by_rank[pause.rank, WAITING] += moved_s
    return result


def traced(iterations: Sequence[Joined]) -> Played:
    """Return the same from the traced times. Raises TraceError for changed iterations."""
    graph, costs = chain(iterations)
    origin_s = [float(one.origin_s[0]) for one in iterations]
    start_s, end_s = (
        np.concatenate([getattr(one, name) + (at - origin_s[0]) for one, at in zip(iterations, origin_s, strict=True)])
        for name in ("start_s", "end_s")
    )
    if np.isnan(start_s).any():
        raise TraceError("these iterations were changed: their durations were not traced")
    return _per_iteration(as_replayed(graph, costs, start_s, end_s), len(iterations))


def _late_s(joined: Joined) -> list[float]:
    """Return the delay of each rank's start of the iteration relative to the first."""
    if joined.iteration < 0 or not len(joined.origin_s):
        return [0.0] * len(joined.traces)
    begun_s = [
        float(trace.steps[joined.iteration, 0] - at) for trace, at in zip(joined.traces, joined.origin_s, strict=True)
    ]
    return [at - min(begun_s) for at in begun_s]


def as_replayed(graph: Graph, costs: Costs, start_s: np.ndarray, end_s: np.ndarray) -> Replayed:
    """Return traced times, float64 (ops,), as the result of a replay."""
    transfer = graph.ops.transfer
    members = np.flatnonzero(transfer != NO_TRANSFER)
    began_s, last = latest(graph, start_s), np.full(len(graph.transfers), -1, np.int32)
    is_last = members[start_s[members] == began_s[transfer[members]]]
    last[transfer[is_last]] = is_last
    return Replayed(
        graph=graph,
        costs=costs,
        conditions=Conditions(),
        start_s=start_s,
        end_s=np.maximum(end_s, start_s),
        transfer_start_s=began_s,
        transfer_last=last,
        makespan_s=float(end_s.max(initial=0.0)),
        events=len(graph.ops),
        wall_s=0.0,
        engine="trace",
    )


def _per_iteration(played: Replayed, count: int) -> Played:
    whole = parts(played)
    return Played(whole.by_rank / count, whole.communication_s / count, whole.weight, played.makespan_s / count)
