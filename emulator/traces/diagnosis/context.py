"""Input of the checks, a joined trace and its replays with and without changes; and their output, findings."""

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
"""Smallest gains, as a share of the iteration, of findings of high and of medium severity."""
MIN_SHARE = 0.01
"""Smallest reported gain, as a share of the iteration."""
SHOWN = 5
"""Number of sightings per finding."""
OWN = (What.COMPUTE, What.LAUNCH, What.CODEC, What.COPY)
"""Activities of a rank that do not depend on other ranks."""


Codecs = dict[str, CodecCost]
"""Codec costs by name."""


@dataclass(frozen=True)
class Iterations:
    """Events of a trace by iteration. Arrays (events,) correspond to `trace.events`."""

    trace: RankTrace
    count: int
    number: np.ndarray
    """int64 (events,): iteration in which the event starts, NONE outside of all."""
    self_s: np.ndarray
    """float64 (events,): duration excluding nested events."""

    def own_s(self) -> np.ndarray:
        """Return the seconds of the rank's own work in each iteration, float64 (iterations,)."""
        inside = np.isin(self.trace.events.what, OWN) & (self.number >= 0)
        return np.bincount(self.number[inside], self.self_s[inside], minlength=self.count)

    def duration_s(self) -> np.ndarray:
        """Return the duration of each iteration, float64 (iterations,)."""
        return self.trace.steps[:, 1] - self.trace.steps[:, 0]


def iterations(trace: RankTrace) -> Iterations:
    """Assign events to iterations."""
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
    """An op that shows the fault, with its times on the common clock of the joined trace."""

    rank: int
    op: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Finding:
    """A recommended change."""

    kind: str
    """Identifier: "straggler", "small messages", …"""
    title: str
    evidence: Sequence[str]
    """Sentences with the supporting numbers."""
    settings: Sequence[str]
    """Settings to change, the best first."""
    replayed: str
    """The change in the replay that determines the gain."""
    gain_s: float
    """Reduction of the replayed iteration time."""
    share: float
    """`gain_s` as a share of the replayed iteration."""
    sightings: Sequence[Sighting] = ()
    is_bound: bool = False
    """Whether the change removes more than any setting can, so that the gain is an upper bound."""

    @property
    def severity(self) -> str:
        """ "high", "medium" or "low", by `share`."""
        return "high" if self.share >= HIGH else "medium" if self.share >= MEDIUM else "low"

    def to_json(self) -> dict[str, Any]:
        """Return plain data, including severity."""
        return {"severity": self.severity} | asdict(self)


@dataclass(frozen=True)
class DiagnosisContext:
    """One iteration of a job. Arrays (ops,) and (transfers,) correspond to its graph."""

    joined: Joined
    played: Replayed
    least_share: float = MIN_SHARE
    codecs: Callable[[], Codecs] = dict
    """Measures the candidate gradient codecs; called only if enough communication is exposed."""

    @classmethod
    def of(cls, joined: Joined, **rest: Any) -> DiagnosisContext:
        """Replay a joined trace and return its context."""
        return cls(joined, replay(joined.graph, joined.costs), **rest)

    @property
    def graph(self) -> Graph:
        """Graph of the joined trace."""
        return self.joined.graph

    @property
    def iteration_s(self) -> float:
        """Replayed iteration time, of which gains are shares."""
        return self.played.makespan_s

    @cached_property
    def rank(self) -> np.ndarray:
        """int32 (ops,): rank of each op."""
        return self.graph.op_rank()

    @cached_property
    def kind(self) -> np.ndarray:
        """int8 (ops,): `Kind` of each op."""
        return self.graph.op_kind()

    @cached_property
    def own_s(self) -> np.ndarray:
        """float64 (ops,): duration of each op by itself; 0 for a member of a transfer."""
        return durations(self.joined)

    @cached_property
    def lane_kind(self) -> np.ndarray:
        """int8 (ops,): `LaneKind` of each op's stream, that of its events; gaps are the host's."""
        kinds, stream = self.joined.lane_kinds(), self.graph.ops.stream
        of_stream = np.full(len(self.graph.streams), LaneKind.HOST, np.int8)
        of_stream[stream[kinds >= 0]] = kinds[kinds >= 0]
        return of_stream[stream]

    @cached_property
    def what(self) -> np.ndarray:
        """int64 (ops,): `What` of each op's event, −1 for gaps."""
        return self.joined.of_events(lambda trace: trace.events.what)

    @cached_property
    def transfer_s(self) -> np.ndarray:
        """float64 (transfers,): replayed duration, from the last member's arrival to the end."""
        return np.maximum(latest(self.graph, self.played.end_s) - self.played.transfer_start_s, 0.0)

    @cached_property
    def causes(self) -> Causes:
        """Attribution of time."""
        return causes(self.played)

    @cached_property
    def path(self) -> CriticalPath:
        """Critical path of the iteration."""
        return critical_path(self.played)

    @cached_property
    def path_by_stream(self) -> dict[str, float]:
        """Stream name, such as `rank 3, stream 7` → seconds of the critical path on it, in falling order."""
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
        """All traced iterations of each rank."""
        return [iterations(trace) for trace in self.joined.traces]

    # Changed replays

    def replayed_s(
        self, *, own_s: np.ndarray | None = None, transfer_s: np.ndarray | None = None, graph: Graph | None = None
    ) -> float:
        """Return the iteration time with changed ops, transfers or dependencies."""
        joined = dataclasses.replace(self.joined, graph=graph or self.graph)
        if transfer_s is not None:
            changed = np.flatnonzero(transfer_s != self.transfer_s)
            joined = with_transfer_seconds(joined, changed, transfer_s[changed])
        if own_s is not None:
            changed = np.flatnonzero((own_s != self.own_s) & (self.graph.ops.transfer == NO_TRANSFER))
            joined = with_durations(joined, changed, own_s[changed])
        return self.makespan_s(joined)

    def makespan_s(self, joined: Joined) -> float:
        """Return the iteration time of a changed trace; inf for a deadlock."""
        try:
            return replay(joined.graph, joined.costs).makespan_s
        except Deadlock:
            return np.inf

    def is_worth_it(self, gain_s: float) -> bool:
        """Return whether a gain is large enough to be reported."""
        return gain_s > 0 and gain_s >= self.least_share * self.iteration_s

    def report(self, kind: str, title: str, *, gain_s: float, **rest: Any) -> list[Finding]:
        """Return the finding, if its gain is large enough."""
        if not self.is_worth_it(gain_s):
            return []
        return [Finding(kind=kind, title=title, gain_s=gain_s, share=gain_s / self.iteration_s, **rest)]

    # Names

    def rank_name(self, rank: int) -> str:
        """Return `rank 3` or, if hosts are known, `rank 3 on node-b`."""
        trace = self.joined.traces[rank] if rank < len(self.joined.traces) else None
        hosts = {each.host for each in self.joined.traces}
        name = self.short_name(rank)
        return f"{name} on {trace.host}" if trace and trace.host and len(hosts) > 1 else name

    def short_name(self, rank: int) -> str:
        """Return `rank 3`, for tables."""
        return f"rank {self.joined.traces[rank].rank if rank < len(self.joined.traces) else rank}"

    def op_name(self, op: int) -> str:
        """Return the name of an op's type."""
        return self.graph.op_types.name[self.graph.ops.op_type[op]]

    def by_name(self, values: np.ndarray) -> dict[str, float]:
        """Return name → sum of `values`, float64 (ops,), over its ops, in falling order; without zeros."""
        sums: Counter[str] = Counter()
        for op in np.flatnonzero(values > 0).tolist():
            sums[self.op_name(op)] += values[op]
        return {name: float(value) for name, value in sums.most_common()}

    def sightings(self, ops: np.ndarray) -> list[Sighting]:
        """Return the longest of `ops`, in order of time, with their times in the trace."""
        start_s, end_s = self.joined.start_s, self.joined.end_s
        ops = ops[np.argsort(start_s[ops] - end_s[ops], kind="stable")][:SHOWN]
        ops = ops[np.argsort(start_s[ops], kind="stable")]
        return [Sighting(int(self.rank[op]), self.op_name(op), float(start_s[op]), float(end_s[op])) for op in ops]

    def mentions(self, pattern: str) -> bool:
        """Return whether any trace has an event whose name matches, ignoring case."""
        rule = re.compile(pattern, re.IGNORECASE)
        return any(rule.search(name) for trace in self.joined.traces for name in trace.names)

    def communicates(self) -> np.ndarray:
        """Return which transfers are communication, not reads from storage, bool (transfers,)."""
        return np.isin(self.graph.op_types.kind[self.graph.transfers.op_type], (Kind.COLLECTIVE, Kind.SEND, Kind.RECV))
