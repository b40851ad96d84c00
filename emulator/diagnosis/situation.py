"""What every check starts from: a joined trace, its replay, what follows from both, and ways to play it again with
something changed. Gains come from nowhere else.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from emulator.diagnosis.causes import Causes, causes
from emulator.diagnosis.finding import Finding, Sighting
from emulator.diagnosis.iterations import Iterations, iterations
from emulator.replay.conditions import Conditions
from emulator.replay.critical import CriticalPath, critical_path
from emulator.replay.engine import Replayed, replay
from emulator.trace.joined import Joined
from emulator.workload.costs import Costs
from emulator.workload.graph import NO_MEETING, Graph, Kind

LEAST_SHARE = 0.01
"""Of the iteration: what gains less is not worth a reader's time."""
SHOWN = 5
"""Sightings of a finding."""


@dataclass(frozen=True)
class Situation:
    """One iteration of a job. Arrays (ops,) and (meetings,) are those of its graph."""

    joined: Joined
    played: Replayed
    least_share: float = LEAST_SHARE

    @classmethod
    def of(cls, joined: Joined, least_share: float = LEAST_SHARE) -> Situation:
        """Replay it as traced."""
        return cls(joined, replay(joined.graph, joined.costs), least_share)

    @property
    def graph(self) -> Graph:
        """Of the joined trace."""
        return self.joined.graph

    @property
    def iteration_s(self) -> float:
        """Of the replay, which gains are shares of."""
        return self.played.makespan_s

    @cached_property
    def rank(self) -> np.ndarray:
        """int32 (ops,)."""
        return self.graph.op_rank()

    @cached_property
    def kind(self) -> np.ndarray:
        """int8 (ops,)."""
        return self.graph.op_kind()

    @cached_property
    def own_s(self) -> np.ndarray:
        """float64 (ops,): what each op takes by itself; 0 for a member of a meeting."""
        return np.where(self.graph.ops.meeting == NO_MEETING, self.played.costs.work_s[self.graph.ops.work], 0.0)

    @cached_property
    def meeting_s(self) -> np.ndarray:
        """float64 (meetings,): from its last member's coming to its end, as replayed."""
        longest = np.zeros(len(self.graph.meetings))
        meets = np.flatnonzero(self.graph.ops.meeting != NO_MEETING)
        meeting = self.graph.ops.meeting[meets]
        np.maximum.at(longest, meeting, self.played.end_s[meets] - self.played.meeting_start_s[meeting])
        return longest

    @cached_property
    def causes(self) -> Causes:
        """Where the time went."""
        return causes(self.played)

    @cached_property
    def path(self) -> CriticalPath:
        """What the iteration's length hangs on."""
        return critical_path(self.played)

    @cached_property
    def on_path(self) -> np.ndarray:
        """bool (ops,)."""
        found = np.zeros(len(self.graph.ops), bool)
        found[self.path.op] = True
        return found

    @cached_property
    def iterations(self) -> list[Iterations]:
        """Of each rank, all that were traced."""
        return [iterations(trace) for trace in self.joined.traces]

    # Played again

    def again(
        self,
        *,
        own_s: np.ndarray | None = None,
        meeting_s: np.ndarray | None = None,
        graph: Graph | None = None,
        conditions: Conditions | None = None,
    ) -> float:
        """Seconds that the iteration takes with ops, meetings or the graph itself changed. `graph` may differ in its
        dependencies only."""
        graph = graph or self.graph
        costs = self.played.costs
        if meeting_s is not None:
            costs = _with_meetings(costs, self.meeting_s, meeting_s)
        if own_s is not None:
            graph, costs = _with_ops(graph, costs, own_s)
        return replay(graph, costs, conditions).makespan_s

    def is_worth_it(self, gain_s: float) -> bool:
        """Whether a gain of that much is to be reported."""
        return gain_s > 0 and gain_s >= self.least_share * self.iteration_s

    def finding(self, kind: str, title: str, *, gain_s: float, **rest: object) -> Finding:
        """A finding whose gain is a share of this iteration."""
        return Finding(kind=kind, title=title, gain_s=gain_s, share=gain_s / self.iteration_s, **rest)

    # Words

    def rank_name(self, rank: int) -> str:
        """`rank 3` or, where the trace says, `rank 3 on node-b`."""
        trace = self.joined.traces[rank] if rank < len(self.joined.traces) else None
        number = trace.rank if trace else rank
        hosts = {each.host for each in self.joined.traces}
        return f"rank {number} on {trace.host}" if trace and trace.host and len(hosts) > 1 else f"rank {number}"

    def op_name(self, op: int) -> str:
        """Of its work."""
        return self.graph.works.name[self.graph.ops.work[op]]

    def sightings(self, ops: np.ndarray, most: int = SHOWN) -> list[Sighting]:
        """The longest of `ops`, in the order of time, when the trace saw them."""
        start_s, end_s = self.joined.start_s, self.joined.end_s
        ops = ops[np.argsort(start_s[ops] - end_s[ops], kind="stable")][:most]
        ops = ops[np.argsort(start_s[ops], kind="stable")]
        return [Sighting(int(self.rank[op]), self.op_name(op), float(start_s[op]), float(end_s[op])) for op in ops]

    def communicates(self) -> np.ndarray:
        """bool (meetings,): collectives and sends, not reads from storage."""
        if not len(self.graph.meetings):
            return np.zeros(0, bool)
        return np.isin(self.graph.works.kind[self.graph.meetings.work], (Kind.COLLECTIVE, Kind.SEND, Kind.RECV))


def _with_meetings(costs: Costs, before_s: np.ndarray, after_s: np.ndarray) -> Costs:
    """`costs` with meetings that took `before_s` taking `after_s`."""
    factor = np.divide(after_s, before_s, out=np.ones(len(before_s)), where=before_s > 0)
    return dataclasses.replace(
        costs,
        meeting_fixed_s=np.where(before_s > 0, costs.meeting_fixed_s * factor, after_s),
        meeting_bytes=costs.meeting_bytes * factor,
    )


def _with_ops(graph: Graph, costs: Costs, own_s: np.ndarray) -> tuple[Graph, Costs]:
    """Each op gets a work of its own, so that each can have a duration of its own; meetings keep theirs, behind."""
    works = np.concatenate([graph.ops.work, np.arange(len(graph.works), dtype=np.int32)])
    table = {
        field.name: [graph.works.name[work] for work in works] if field.name == "name" else column[works]
        for field in dataclasses.fields(graph.works)
        for column in (getattr(graph.works, field.name),)
    }
    ops = dataclasses.replace(graph.ops, work=np.arange(len(graph.ops), dtype=np.int32))
    meetings = dataclasses.replace(graph.meetings, work=(graph.meetings.work + len(ops)).astype(np.int32))
    changed = dataclasses.replace(graph, works=type(graph.works)(**table), ops=ops, meetings=meetings)
    return changed, dataclasses.replace(costs, work_s=np.concatenate([own_s, costs.work_s]))
