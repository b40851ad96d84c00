"""A trace cut into slices that follow each other on their lanes, none inside another: what a graph of dependencies is
made of. Of nested host events each keeps the time in which no inner one runs; where a host thread runs none, the slice
belongs to no event: a gap.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from emulator.traces.events import NONE, LaneKind, RankTrace, What

LEAST_S = 1e-6
"""Shorter remainders get no slice of their own: an event's last own microsecond goes to its first slice."""


@dataclass(frozen=True)
class Slices:
    """All arrays (slices,), by lane, then time."""

    event: np.ndarray  # int64: whose it is, NONE for a gap. Every event has at least one slice
    lane: np.ndarray  # int32
    start_s: np.ndarray  # float64, as traced
    duration_s: np.ndarray  # float64: without waiting for what `leads_to`, or the event itself, had to wait for
    before: np.ndarray  # int64: the slice before it on its lane, NONE for the first
    leads_to: np.ndarray
    """int64: of a remainder or gap, the event whose first slice comes next; NONE where it is another remainder."""


def slices(trace: RankTrace) -> Slices:
    """Cut `trace`."""
    events, ready_s = trace.events, _ready(trace)
    rows: list[tuple[int, int, float, float, int]] = []
    host = [lane.kind == LaneKind.HOST for lane in trace.lanes]
    columns = (events.lane, events.start_s, events.end_s, events.parent)
    lanes, starts, ends, parents = (column.tolist() for column in columns)
    first_s = min(starts, default=0.0)
    open_events: list[int] = []
    now_s, lane = first_s, NONE

    def rest(until_s: float, leads_to: int) -> None:
        """Time of the innermost open event, or of none, until `until_s`."""
        nonlocal now_s
        from_s = max(now_s, min(ready_s[leads_to], until_s)) if leads_to != NONE else now_s
        if until_s - from_s > LEAST_S:
            owner = open_events[-1] if open_events else NONE
            if open_events and rows[-1][0] == owner and rows[-1][3] == 0.0 and from_s <= rows[-1][2]:
                rows.pop()  # its beginning and what it does before anything else are one slice
                leads_to = NONE
            rows.append((owner, lane, from_s, until_s - from_s, leads_to))
        now_s = max(now_s, until_s)

    def close(parent: int) -> None:
        """End what is open, up to `parent`."""
        while open_events and open_events[-1] != parent:
            rest(ends[open_events[-1]], NONE)
            open_events.pop()

    for event in range(len(events)):
        if lanes[event] != lane:
            close(NONE)
            lane, now_s = lanes[event], first_s
        if not host[lane]:
            rows.append((event, lane, starts[event], ends[event] - starts[event], NONE))
            continue
        close(parents[event])
        rest(starts[event], event)
        rows.append((event, lane, starts[event], 0.0, NONE))
        open_events.append(event)
        now_s = max(now_s, starts[event])
    close(NONE)
    names = [("event", np.int64), ("lane", np.int32), ("start_s", float), ("duration_s", float), ("leads_to", np.int64)]
    table = np.array(rows, names)
    waits = np.flatnonzero((table["event"] != NONE) & (events.what[table["event"]] == What.SYNC))
    waited_s = np.maximum(ready_s[table["event"][waits]] - table["start_s"][waits], 0.0)
    table["duration_s"][waits] = np.maximum(table["duration_s"][waits] - waited_s, 0.0)
    before = np.arange(len(rows), dtype=np.int64) - 1
    before[np.diff(table["lane"], prepend=NONE) != 0] = NONE
    return Slices(**{name: table[name] for name, _ in names}, before=before)


def _ready(trace: RankTrace) -> np.ndarray:
    """float64 (events,): when the last of its causes allowed each; -inf without any."""
    events = trace.events
    ready_s = np.full(len(events), -np.inf)
    if len(trace.causes):
        cause, effect = trace.causes.T
        allowed_s = np.where(events.what[cause] == What.LAUNCH, events.start_s[cause], events.end_s[cause])
        np.maximum.at(ready_s, effect, allowed_s)
    return ready_s
