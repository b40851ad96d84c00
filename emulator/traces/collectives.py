"""Matches events of different ranks that are the same communication: equal group and sequence number, or sender and
receiver."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from emulator.jobs.workload.graph import NO_TRANSFER
from emulator.traces.events import COMMUNICATION, NONE, RankTrace, What
from emulator.traces.readers.tables import Numbers
from emulator.traces.segments import Segments
from switchml.errors import TraceError


class Key(NamedTuple):
    """Key of a communication, the same on all its members."""

    ranks: tuple[int, ...]
    group: str
    sequence: int
    source: int = NONE
    """Sender; for sends and receives, as `destination`."""
    destination: int = NONE
    only: int = NONE
    """The only member, if groups of that name differ between ranks."""

    @property
    def members(self) -> tuple[int, ...]:
        """Ranks whose traces may contain the communication."""
        return self.ranks if self.only == NONE else (self.only,)

    @property
    def group_name(self) -> str:
        """Display name of the group."""
        name = self.group or "all ranks"
        return name if self.only == NONE else f"{name} (rank {self.only})"


def key_of(trace: RankTrace, event: int, ambiguous: frozenset[tuple] = frozenset()) -> Key:
    """Return the key of a communication event. `ambiguous`: the result of `ambiguous_groups`."""
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
    """Return (ranks, name) of unnamed groups in which ranks disagree: several groups that old traces do not
    distinguish."""
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


def match(cuts: Sequence[Segments], ambiguous: frozenset[tuple]) -> tuple[list[Key], list[np.ndarray], list[str]]:
    """Return the communications of one iteration; for each rank, each segment's communication, int64 (segments,); and
    the assumptions made. `ambiguous`: the result of `ambiguous_groups`. Raises TraceError if a rank is missing in a
    communication, or members disagree."""
    transfer = [np.full(len(segments), NO_TRANSFER, np.int64) for segments in cuts]
    number = Numbers()
    members: dict[Key, list[tuple[Segments, int]]] = defaultdict(list)
    for segments, mine in zip(cuts, transfer, strict=True):
        for one in np.flatnonzero(np.isin(segments.trace.events.what[segments.event], COMMUNICATION)).tolist():
            event = int(segments.event[one])
            key = key_of(segments.trace, event, ambiguous)
            mine[one] = number[key]
            members[key].append((segments, event))
    present = {segments.trace.rank for segments in cuts}
    for key, parts in members.items():
        _check(key, parts, present)
    return list(members), transfer, [*_assumed(members, len(present), bool(ambiguous)), *_unseen(cuts)]


def _assumed(members: Mapping[Key, Sequence], traced: int, has_ambiguous: bool) -> list[str]:
    missing = max((len(key.ranks) for key in members), default=traced) - traced
    lonely = sum(len(parts) == 1 and len(key.ranks) > 1 for key, parts in members.items())
    sentences = {
        f"{missing} ranks were not traced: they are taken to do what the {traced} traced ones did": missing > 0,
        "the traces do not name groups, and ranks disagree about their collectives: each rank has its own": (
            has_ambiguous
        ),
        f"of {lonely} communications only one side was traced: their waiting counts as transfer": lonely > 0,
    }
    return [sentence for sentence, is_so in sentences.items() if is_so]


def _unseen(cuts: Sequence[Segments]) -> list[str]:
    """Report calls of torch.distributed whose work the profiler did not record: threads of a backend."""
    unseen = 0
    for segments in cuts:
        trace = segments.trace
        called = [i for i, name in enumerate(trace.names) if name.startswith("c10d::")]
        if called and not np.isin(segments.what, COMMUNICATION).any():
            unseen += int(np.isin(trace.events.name[segments.steps.events(segments.step)], called).sum())
    if not unseen:
        return []
    return [
        f"{unseen} calls of torch.distributed have left no work in the traces: waiting for it counts as the host's; "
        "`switchml trace capture` sees that of the switchml backend"
    ]


def _check(key: Key, parts: Sequence[tuple[Segments, int]], present: set[int]) -> None:
    there = {segments.trace.rank for segments, _ in parts}
    segments, event = parts[0]
    trace = segments.trace
    what = f"{trace.names[trace.events.name[event]]!r} number {key.sequence} of group {key.group_name!r}"
    if missing := sorted((present & set(key.members)) - there):
        raise TraceError(
            f"rank {missing[0]} has no part in {what}, which rank {trace.rank} has in iteration {segments.step}: do "
            "the traces cover the same iterations?"
        )
    kinds = {int(segments.trace.events.collective[event]) for segments, event in parts}
    sizes = {float(segments.trace.events.bytes[event]) for segments, event in parts} - {0.0}
    if len(kinds) > 1 or (len(sizes) > 1 and key.source == NONE):
        raise TraceError(
            f"ranks {sorted(there)} disagree about {what}: {len(kinds)} kinds of collectives, sizes of "
            f"{' and '.join(f'{size:.0f}' for size in sorted(sizes))} bytes; do the traces cover the same iterations?"
        )
