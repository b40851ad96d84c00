"""What every check starts from: a joined trace, its replay, what follows from both, and ways to play it again with
something changed. Gains come from nowhere else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from emulator.diagnosis.causes import Causes, causes
from emulator.diagnosis.finding import Finding, Sighting
from emulator.diagnosis.iterations import Iterations, iterations
from emulator.replay.conditions import Conditions
from emulator.replay.critical import CriticalPath, critical_path
from emulator.replay.engine import Replayed, replay
from emulator.traces.events import LaneKind
from emulator.traces.joined import Joined
from emulator.whatif.codec_costs import CodecCost
from emulator.whatif.edits import durations, with_durations, with_transfer_seconds
from emulator.workload.graph import NO_TRANSFER, Graph, Kind
from switchml.errors import Deadlock

LEAST_SHARE = 0.01
"""Of the iteration: what gains less is not worth a reader's time."""
SHOWN = 5
"""Sightings of a finding."""


Codecs = dict[str, CodecCost]
"""By name."""


@dataclass(frozen=True)
class Situation:
    """One iteration of a job. Arrays (ops,) and (transfers,) are those of its graph."""

    joined: Joined
    played: Replayed
    least_share: float = LEAST_SHARE
    codecs: Callable[[], Codecs] = dict
    """Measures what could compress gradients; called only where communication is worth it."""

    @classmethod
    def of(cls, joined: Joined, **rest: Any) -> Situation:
        """Replay it as traced."""
        return cls(joined, replay(joined.graph, joined.costs), **rest)

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
        """float64 (ops,): what each op takes by itself; 0 for a member of a transfer."""
        return durations(self.joined)

    @cached_property
    def lane_kind(self) -> np.ndarray:
        """int8 (ops,): the `LaneKind` of each op's stream, that of the events it has; gaps are the host's."""
        kinds, stream = self.joined.lane_kinds(), self.graph.ops.stream
        of_stream = np.full(len(self.graph.streams), LaneKind.HOST, np.int8)
        of_stream[stream[kinds >= 0]] = kinds[kinds >= 0]
        return of_stream[stream]

    def of_events(self, column: str) -> np.ndarray:
        """int64 (ops,): this column of `Events` for each op, −1 for gaps."""
        return self.joined.of_events(lambda trace: getattr(trace.events, column))

    @cached_property
    def transfer_s(self) -> np.ndarray:
        """float64 (transfers,): from its last member's coming to its end, as replayed."""
        longest = np.zeros(len(self.graph.transfers))
        meets = np.flatnonzero(self.graph.ops.transfer != NO_TRANSFER)
        transfer = self.graph.ops.transfer[meets]
        np.maximum.at(longest, transfer, self.played.end_s[meets] - self.played.transfer_start_s[transfer])
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
    def path_by_stream(self) -> dict[str, float]:
        """`rank 3, stream 7` → seconds of the critical path on it, largest first."""
        stream = self.graph.ops.stream[self.path.op]
        seconds = np.bincount(stream, self.path.until_s - self.path.from_s, minlength=len(self.graph.streams))
        names = self.graph.streams.name
        by_name = {
            f"{self.short_name(int(self.graph.streams.rank[each]))}, {names[each]}": float(seconds[each])
            for each in np.flatnonzero(seconds > 0)
        }
        return dict(sorted(by_name.items(), key=lambda item: -item[1]))

    @cached_property
    def on_path(self) -> np.ndarray:
        """bool (ops,)."""
        is_on_path = np.zeros(len(self.graph.ops), bool)
        is_on_path[self.path.op] = True
        return is_on_path

    @cached_property
    def iterations(self) -> list[Iterations]:
        """Of each rank, all that were traced."""
        return [iterations(trace) for trace in self.joined.traces]

    # Played again

    def replayed_s(
        self,
        *,
        own_s: np.ndarray | None = None,
        transfer_s: np.ndarray | None = None,
        graph: Graph | None = None,
        conditions: Conditions | None = None,
    ) -> float:
        """Seconds that the iteration takes with ops, transfers or the graph itself changed. `graph` may differ in its
        dependencies only."""
        joined = dataclasses.replace(self.joined, graph=graph or self.graph)
        if transfer_s is not None:
            changed = np.flatnonzero(transfer_s != self.transfer_s)
            joined = with_transfer_seconds(joined, changed, transfer_s[changed])
        if own_s is not None:
            changed = np.flatnonzero((own_s != self.own_s) & (self.graph.ops.transfer == NO_TRANSFER))
            joined = with_durations(joined, changed, own_s[changed])
        return self.lasts_s(joined, conditions)

    def lasts_s(self, joined: Joined, conditions: Conditions | None = None) -> float:
        """Seconds that a changed iteration takes; inf where something in it would wait for ever, such as a backward
        pass for a bucket that is full only later."""
        try:
            return replay(joined.graph, joined.costs, conditions).makespan_s
        except Deadlock:
            return np.inf

    def is_worth_it(self, gain_s: float) -> bool:
        """Whether a gain of that much is to be reported."""
        return gain_s > 0 and gain_s >= self.least_share * self.iteration_s

    def finding(self, kind: str, title: str, *, gain_s: float, **rest: object) -> Finding:
        """A finding whose gain is a share of this iteration."""
        return Finding(kind=kind, title=title, gain_s=gain_s, share=gain_s / self.iteration_s, **rest)

    def report(self, kind: str, title: str, *, gain_s: float, **rest: object) -> list[Finding]:
        """The finding, if its gain is worth it."""
        return [self.finding(kind, title, gain_s=gain_s, **rest)] if self.is_worth_it(gain_s) else []

    # Words

    def rank_name(self, rank: int) -> str:
        """`rank 3` or, where the trace says, `rank 3 on node-b`."""
        trace = self.joined.traces[rank] if rank < len(self.joined.traces) else None
        hosts = {each.host for each in self.joined.traces}
        name = self.short_name(rank)
        return f"{name} on {trace.host}" if trace and trace.host and len(hosts) > 1 else name

    def short_name(self, rank: int) -> str:
        """`rank 3`, for tables."""
        return f"rank {self.joined.traces[rank].rank if rank < len(self.joined.traces) else rank}"

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
        """bool (transfers,): collectives and sends, not reads from storage."""
        if not len(self.graph.transfers):
            return np.zeros(0, bool)
        return np.isin(self.graph.works.kind[self.graph.transfers.work], (Kind.COLLECTIVE, Kind.SEND, Kind.RECV))
