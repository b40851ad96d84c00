"""Which events of different ranks are one communication: those of the same group and sequence number, and of a send and
its receive those between the same two ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from emulator.jobs.workload.graph import NO_TRANSFER
from emulator.traces.events import NONE, RankTrace, What
from emulator.traces.readers.tables import Numbers
from emulator.traces.segments import COMMUNICATION, Segments
from switchml.errors import TraceError


class Key(NamedTuple):
    """Of a communication: the same on all its members."""

    ranks: tuple[int, ...]
    group: str
    sequence: int
    source: int = NONE
    """Of a send or receive."""
    destination: int = NONE
    only: int = NONE
    """The rank that has it by itself, where groups of that name are not the same on all ranks."""

    @property
    def members(self) -> tuple[int, ...]:
        """Ranks whose traces may have it."""
        return self.ranks if self.only == NONE else (self.only,)

    @property
    def group_name(self) -> str:
        """For people."""
        name = self.group or "all ranks"
        return name if self.only == NONE else f"{name} (rank {self.only})"


def key_of(trace: RankTrace, event: int, ambiguous: frozenset[tuple] = frozenset()) -> Key:
    """Of an event that is a communication. `ambiguous`: as `ambiguous_groups` finds them."""
    events = trace.events
    group = trace.groups[events.group[event]]
    sequence = int(events.sequence[event])
    only = trace.rank if (tuple(group.ranks), group.name) in ambiguous else NONE
    if events.what[event] == What.COLLECTIVE:
        return Key(tuple(group.ranks), group.name, sequence, only=only)
    peer = int(events.peer[event])
    pair = (trace.rank, peer) if events.what[event] == What.SEND else (peer, trace.rank)
    return Key(tuple(sorted(pair)), group.name, sequence, *pair, only)


def ambiguous_groups(traces: Sequence[RankTrace]) -> frozenset[tuple]:
    """(ranks, name) of groups without a name of their own in which ranks disagree about collectives: several groups
    that traces of old versions do not distinguish."""
    sizes: dict[tuple, dict[int, tuple[int, float]]] = {}
    ambiguous = set()
    for trace in traces:
        events = trace.events
        for event in np.flatnonzero(events.what == What.COLLECTIVE).tolist():
            group = trace.groups[events.group[event]]
            if group.name:
                continue
            key = (tuple(group.ranks), group.name)
            is_what = (int(events.collective[event]), float(events.bytes[event]))
            before = sizes.setdefault(key, {}).setdefault(int(events.sequence[event]), is_what)
            if before != is_what:
                ambiguous.add(key)
    return frozenset(ambiguous)


class Communications:
    """The communications of one iteration. Raises TraceError where a rank has no part in one, or members disagree."""

    def __init__(
        self, traces: Sequence[RankTrace], cuts: Sequence[Segments], step: int, ambiguous: frozenset[tuple]
    ) -> None:
        """`ambiguous`: as `ambiguous_groups` finds them."""
        self.traces, self.cuts, self.step = traces, cuts, step
        self.transfer = [np.full(len(segments), NO_TRANSFER, np.int64) for segments in cuts]
        """Of each segment, by rank: into `keys`."""
        self.assumptions: list[str] = []
        number = Numbers()
        members: dict[Key, list[tuple[int, int]]] = defaultdict(list)
        for place, (trace, segments) in enumerate(zip(traces, cuts, strict=True)):
            for one in np.flatnonzero(np.isin(trace.events.what[segments.event], COMMUNICATION)).tolist():
                key = key_of(trace, int(segments.event[one]), ambiguous)
                self.transfer[place][one] = number[key]
                members[key].append((place, one))
        self.keys: list[Key] = list(members)
        present = {trace.rank for trace in traces}
        for key, met in members.items():
            self._check(key, met, present)
        self._assume(members, len(present), bool(ambiguous))
        self._look_for_the_invisible()

    def _assume(self, members: dict[Key, list[tuple[int, int]]], traced: int, has_ambiguous: bool) -> None:
        missing = max((len(key.ranks) for key in self.keys), default=traced) - traced
        lonely = sum(len(met) == 1 and len(key.ranks) > 1 for key, met in members.items())
        sentences = {
            f"{missing} ranks were not traced: they are taken to do what the {traced} traced ones did": missing > 0,
            "the traces do not name groups, and ranks disagree about their collectives: each rank has its own": (
                has_ambiguous
            ),
            f"of {lonely} communications only one side was traced: their waiting counts as transfer": lonely > 0,
        }
        self.assumptions += [sentence for sentence, is_so in sentences.items() if is_so]

    def _look_for_the_invisible(self) -> None:
        """Calls of torch.distributed whose work the profiler did not see: a backend's own threads."""
        unseen = 0
        for trace, segments in zip(self.traces, self.cuts, strict=True):
            called = [i for i, name in enumerate(trace.names) if name.startswith("c10d::")]
            calls = int(np.isin(trace.events.name[segments.steps.events(self.step)], called).sum()) if called else 0
            seen = int(np.isin(segments.what, COMMUNICATION).sum())
            unseen += calls if calls and not seen else 0
        if unseen:
            self.assumptions.append(
                f"{unseen} calls of torch.distributed have left no work in the traces: waiting for it counts as the "
                "host's; `switchml trace capture` sees that of the switchml backend"
            )

    def _check(self, key: Key, met: list[tuple[int, int]], present: set[int]) -> None:
        there = {self.traces[place].rank for place, _ in met}
        missing = sorted((present & set(key.members)) - there)
        events = [(self.traces[place], int(self.cuts[place].event[one])) for place, one in met]
        trace, event = events[0]
        what = f"{trace.names[trace.events.name[event]]!r} number {key.sequence} of group {key.group_name!r}"
        if missing:
            raise TraceError(
                f"rank {missing[0]} has no part in {what}, which rank {trace.rank} has in iteration {self.step}: do "
                "the traces cover the same iterations?"
            )
        kinds = {int(one.events.collective[number]) for one, number in events}
        sizes = {float(one.events.bytes[number]) for one, number in events} - {0.0}
        if len(kinds) > 1 or (len(sizes) > 1 and key.source == NONE):
            raise TraceError(
                f"ranks {sorted(there)} disagree about {what}: {len(kinds)} kinds of collectives, sizes of "
                f"{' and '.join(f'{size:.0f}' for size in sorted(sizes))} bytes; do the traces cover the same "
                "iterations?"
            )
