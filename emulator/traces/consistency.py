"""Validates that a trace is as specified in `events.py`: all indexes within range, all arrays as long as their table,
all times finite. Later steps rely on it, so every reader's result is checked here.
"""

import dataclasses
from typing import Any

import numpy as np

from emulator.jobs.workload.graph import Collective
from emulator.traces.events import NONE, Events, LaneKind, Pings, RankTrace, What, Wire
from emulator.traces.limits import LONGEST_S, MAX_BYTES, MAX_RANKS
from switchml.errors import TraceError

_DTYPES = {Events: "iiiffiiiiifb", Wire: "fiiiiii", Pings: "fib"}
"""Types of the columns in order: integer, floating-point or boolean."""
_KINDS = {"i": "iu", "f": "f", "b": "b"}


def check(trace: RankTrace) -> None:
    """Raise TraceError unless `trace` is consistent."""
    checks = _Checks(trace)
    checks.ranks()
    checks.tables()
    checks.events()
    checks.causes_and_steps()


class _Checks:
    def __init__(self, trace: RankTrace) -> None:
        self.trace = trace

    def _expect(self, holds: Any, what: str) -> None:
        if not holds:
            raise TraceError(f"{self.trace.source} is damaged, or not as expected: {what}")

    def _within(self, what: str, column: np.ndarray, least: float, most: float) -> None:
        """Check that all values are at least `least` and less than `most`; a NaN is not."""
        is_wrong = ~((column >= least) & (column < most))
        if is_wrong.any():
            row = int(np.argwhere(is_wrong)[0, 0])
            self._expect(False, f"{what} {row:,} is {column[row]}, expected at least {least:,} and less than {most:,}")

    def ranks(self) -> None:
        trace = self.trace
        self._expect(0 <= trace.rank < MAX_RANKS, f"its rank is {trace.rank}, expected 0 to {MAX_RANKS - 1}")
        world = trace.world_size
        self._expect(0 <= world <= MAX_RANKS, f"its job has {world} ranks; the limit is {MAX_RANKS:,}")
        self._within("the epoch", np.array([trace.epoch_s]), -LONGEST_S, LONGEST_S)
        for group in trace.groups:
            known = all(0 <= rank < MAX_RANKS for rank in group.ranks)
            self._expect(known, f"group {group.name!r} has a rank that is not from 0 to {MAX_RANKS - 1}")
        for event in trace.gradient_names:
            self._expect(0 <= event < len(trace.events), f"event {event}, which has a gradient's name, does not exist")

    def tables(self) -> None:
        for table in (self.trace.events, self.trace.wire, self.trace.pings):
            if table is None:
                continue
            for field, kind in zip(dataclasses.fields(table), _DTYPES[type(table)], strict=True):
                column = getattr(table, field.name)
                name = f"the column {field.name} of its {type(table).__name__.lower()}"
                self._expect(column.ndim == 1, f"{name} is no array of one dimension")
                self._expect(column.dtype.kind in _KINDS[kind], f"{name} has the type {column.dtype}")
                self._expect(len(column) == len(table), f"{name} has {len(column)} rows, others {len(table)}")
        if (wire := self.trace.wire) is not None:
            self._within("the time of packet", wire.at_s, -LONGEST_S, LONGEST_S)
            self._within("the size of packet", wire.bytes, 0, MAX_BYTES)
        if (pings := self.trace.pings) is not None:
            self._within("the time of message", pings.at_s, -LONGEST_S, LONGEST_S)

    def events(self) -> None:
        trace, events = self.trace, self.trace.events
        self._within("the name of event", events.name, 0, len(trace.names))
        self._within("the kind of event", events.what, 0, len(What))
        self._within("the lane of event", events.lane, 0, len(trace.lanes))
        self._within("the start of event", events.start_s, -LONGEST_S, LONGEST_S)
        self._within("the duration of event", events.duration_s, 0, LONGEST_S)
        self._within("the size of event", events.bytes, 0, MAX_BYTES)
        self._within("the collective of event", events.collective, 0, len(Collective))
        self._within("the group of event", events.group, NONE, len(trace.groups))
        self._within("the number of event", events.sequence, NONE, 1 << 62)
        self._within("the peer of event", events.peer, NONE, MAX_RANKS)
        self._within("the parent of event", events.parent, NONE, len(events))
        self._expect((events.parent < np.arange(len(events))).all(), "an event's parent comes after it")
        self._expect((np.diff(events.lane) >= 0).all(), "its events are not sorted by lane")
        communicates = events.collective != Collective.NONE
        self._expect((events.group[communicates] != NONE).all(), "a communication is in no group")
        grouped = np.isin(events.what, (What.COLLECTIVE, What.SEND, What.RECV))
        self._expect(communicates[grouped].all(), "a communication does not say which")
        self._expect(all(isinstance(lane.kind, LaneKind) for lane in trace.lanes), "a lane is of no known kind")

    def causes_and_steps(self) -> None:
        causes, steps = self.trace.causes, self.trace.steps
        self._expect(causes.ndim == 2 and causes.shape[1] == 2 and causes.dtype.kind in "iu", "its causes are no pairs")
        self._within("the cause", causes, 0, len(self.trace.events))
        self._expect(steps.ndim == 2 and steps.shape[1] == 2 and steps.dtype.kind == "f", "its iterations are no pairs")
        self._within("the iteration", steps, -LONGEST_S, LONGEST_S)
        self._expect((steps[:, 1] >= steps[:, 0]).all(), "an iteration ends before it begins")
