"""What checks start from, a joined trace and its replays as it is and with something changed; and what they report."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from emulator.jobs.replay.critical import CriticalPath, critical_path
from emulator.jobs.replay.engine import Replayed, replay
from emulator.jobs.workload.graph import NO_TRANSFER, Graph, Kind
from emulator.traces.diagnosis.causes import Causes, causes
from emulator.traces.events import NONE, LaneKind, RankTrace, What
from emulator.traces.joined import Joined
from emulator.traces.whatif.codec_costs import CodecCost
from emulator.traces.whatif.edits import durations, latest, with_durations, with_transfer_seconds
from switchml.errors import Deadlock

HIGH, MEDIUM = 0.10, 0.03
"""From which share of the iteration on a gain makes a finding one of high or of medium severity."""
LEAST_SHARE = 0.01
"""Of the iteration: what gains less is not worth a reader's time."""
SHOWN = 5
"""Sightings of a finding."""
OWN = (What.COMPUTE, What.LAUNCH, What.CODEC, What.COPY)
"""What a rank does without anyone else."""


Codecs = dict[str, CodecCost]
"""By name."""


@dataclass(frozen=True)
class Iterations:
    """Arrays (events,) are those of `trace.events`."""

    trace: RankTrace
    count: int
    number: np.ndarray
    """int64 (events,): the iteration in which it starts, NONE outside of all."""
    self_s: np.ndarray
    """float64 (events,): its duration without that of the events inside it."""

    def own_s(self) -> np.ndarray:
        """float64 (iterations,): seconds of work of its own."""
        inside = np.isin(self.trace.events.what, OWN) & (self.number >= 0)
        return np.bincount(self.number[inside], self.self_s[inside], minlength=self.count)

    def duration_s(self) -> np.ndarray:
        """float64 (iterations,)."""
        return self.trace.steps[:, 1] - self.trace.steps[:, 0]


def iterations(trace: RankTrace) -> Iterations:
    """Sort events into iterations."""
    events, steps = trace.events, trace.steps
    number = np.searchsorted(steps[:, 0], events.start_s + 1e-12, side="right") - 1
    inside = number >= 0
    inside[inside] = events.start_s[inside] < steps[number[inside], 1]
    self_s = events.duration_s.copy()
    nested = np.flatnonzero(events.parent != NONE)
    np.subtract.at(self_s, events.parent[nested], events.duration_s[nested])
    return Iterations(trace, len(steps), np.where(inside, number, NONE), np.maximum(self_s, 0.0))


@dataclass(frozen=True)
class Sighting:
    """An op that shows the fault: when it ran, on the common clock of the joined trace."""

    rank: int
    op: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Finding:
    """One thing to change."""

    kind: str
    """For programs: "straggler", "small messages", …"""
    title: str
    evidence: Sequence[str]
    """Sentences with the numbers that show it."""
    settings: Sequence[str]
    """What to change, the best first."""
    replayed: str
    """What was changed in the replay that the gain comes from."""
    gain_s: float
    """Seconds by which the replayed iteration got shorter."""
    share: float
    """`gain_s` of the replayed iteration."""
    sightings: Sequence[Sighting] = ()
    is_bound: bool = False
    """The change takes away more than any setting can: mending gains at most this."""

    @property
    def severity(self) -> str:
        """ "high", "medium" or "low", by `share`."""
        return "high" if self.share >= HIGH else "medium" if self.share >= MEDIUM else "low"

    def to_json(self) -> dict[str, Any]:
        """Plain data, severity included."""
        return {"severity": self.severity} | asdict(self)


@dataclass(frozen=True)
class DiagnosisContext:
    """One iteration of a job. Arrays (ops,) and (transfers,) are those of its graph."""

    joined: Joined
    played: Replayed
    least_share: float = LEAST_SHARE
    codecs: Callable[[], Codecs] = dict
    """Measures what could compress gradients; called only where communication is worth it."""

    @classmethod
    def of(cls, joined: Joined, **rest: Any) -> DiagnosisContext:
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

    @cached_property
    def what(self) -> np.ndarray:
        """int64 (ops,): the `What` of each op's event, −1 for gaps."""
        return self.joined.of_events(lambda trace: trace.events.what)

    @cached_property
    def transfer_s(self) -> np.ndarray:
        """float64 (transfers,): from its last member's coming to its end, as replayed."""
        return np.maximum(latest(self.graph, self.played.end_s) - self.played.transfer_start_s, 0.0)

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
    def iterations(self) -> list[Iterations]:
        """Of each rank, all that were traced."""
        return [iterations(trace) for trace in self.joined.traces]

    # Played again

    def replayed_s(
        self, *, own_s: np.ndarray | None = None, transfer_s: np.ndarray | None = None, graph: Graph | None = None
    ) -> float:
        """Seconds that the iteration takes with ops, transfers or the graph's dependencies changed."""
        joined = dataclasses.replace(self.joined, graph=graph or self.graph)
        if transfer_s is not None:
            changed = np.flatnonzero(transfer_s != self.transfer_s)
            joined = with_transfer_seconds(joined, changed, transfer_s[changed])
        if own_s is not None:
            changed = np.flatnonzero((own_s != self.own_s) & (self.graph.ops.transfer == NO_TRANSFER))
            joined = with_durations(joined, changed, own_s[changed])
        return self.makespan_s(joined)

    def makespan_s(self, joined: Joined) -> float:
        """Seconds that a changed iteration takes; inf where something in it would wait for ever."""
        try:
            return replay(joined.graph, joined.costs).makespan_s
        except Deadlock:
            return np.inf

    def is_worth_it(self, gain_s: float) -> bool:
        """Whether a gain of that much is to be reported."""
        return gain_s > 0 and gain_s >= self.least_share * self.iteration_s

    def report(self, kind: str, title: str, *, gain_s: float, **rest: Any) -> list[Finding]:
        """The finding, if its gain, a share of this iteration, is worth it."""
        if not self.is_worth_it(gain_s):
            return []
        return [Finding(kind=kind, title=title, gain_s=gain_s, share=gain_s / self.iteration_s, **rest)]

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
        """Of its op type."""
        return self.graph.op_types.name[self.graph.ops.op_type[op]]

    def by_name(self, values: np.ndarray) -> dict[str, float]:
        """Name → sum of the `values`, float64 (ops,), of its ops, largest first; without those that have nothing."""
        sums: Counter[str] = Counter()
        for op in np.flatnonzero(values > 0).tolist():
            sums[self.op_name(op)] += values[op]
        return {name: float(value) for name, value in sums.most_common()}

    def sightings(self, ops: np.ndarray) -> list[Sighting]:
        """The longest of `ops`, in the order of time, when the trace saw them."""
        start_s, end_s = self.joined.start_s, self.joined.end_s
        ops = ops[np.argsort(start_s[ops] - end_s[ops], kind="stable")][:SHOWN]
        ops = ops[np.argsort(start_s[ops], kind="stable")]
        return [Sighting(int(self.rank[op]), self.op_name(op), float(start_s[op]), float(end_s[op])) for op in ops]

    def mentions(self, pattern: str) -> bool:
        """Whether any trace has an event of which the name matches, in lower or upper case."""
        rule = re.compile(pattern, re.IGNORECASE)
        return any(rule.search(name) for trace in self.joined.traces for name in trace.names)

    def communicates(self) -> np.ndarray:
        """bool (transfers,): collectives and sends, not reads from storage."""
        return np.isin(self.graph.op_types.kind[self.graph.transfers.op_type], (Kind.COLLECTIVE, Kind.SEND, Kind.RECV))
