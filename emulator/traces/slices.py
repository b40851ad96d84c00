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

    event: np.ndarray
    """int64: whose it is, NONE for a gap. Every event has at least one slice."""
    lane: np.ndarray
    """int32."""
    start_s: np.ndarray
    """float64, as traced."""
    duration_s: np.ndarray
    """float64: without waiting for what `leads_to`, or the event itself, had to wait for."""
    before: np.ndarray
    """int64: the slice before it on its lane, NONE for the first."""
    leads_to: np.ndarray
    """int64: of a remainder or gap, the event whose first slice comes next; NONE where it is another remainder."""


def slices(trace: RankTrace) -> Slices:
    """Cut `trace`."""
    events = trace.events
    ready_s = _ready(trace)
    rows: list[tuple[int, int, float, float, int]] = []
    host = [lane.kind == LaneKind.HOST for lane in trace.lanes]
    starts, ends, parents = events.start_s.tolist(), events.end_s.tolist(), events.parent.tolist()
    first_s = min(starts, default=0.0)
    lanes = events.lane.tolist()
    open_events: list[int] = []
    now_s, lane = first_s, NONE

    def rest(until_s: float, leads_to: int) -> None:
        """Time of the innermost open event, or of none, until `until_s`."""
        nonlocal now_s
        from_s = max(now_s, min(ready_s[leads_to], until_s)) if leads_to != NONE else now_s
        if until_s - from_s > LEAST_S:
            rows.append((open_events[-1] if open_events else NONE, lane, from_s, until_s - from_s, leads_to))
        now_s = max(now_s, until_s)

    for event in range(len(events)):
        if lanes[event] != lane:
            while open_events:
                rest(ends[open_events[-1]], NONE)
                open_events.pop()
            lane, now_s = lanes[event], first_s
        if not host[lane]:
            rows.append((event, lane, starts[event], ends[event] - starts[event], NONE))
            continue
        while open_events and open_events[-1] != parents[event]:
            rest(ends[open_events[-1]], NONE)
            open_events.pop()
        rest(starts[event], event)
        rows.append((event, lane, starts[event], 0.0, NONE))
        open_events.append(event)
        now_s = max(now_s, starts[event])
    while open_events:
        rest(ends[open_events[-1]], NONE)
        open_events.pop()
    return _arrays(trace, _merged(rows), ready_s)


def _merged(rows: list[tuple]) -> list[tuple]:
    """An event's beginning and what it does before anything else, as one slice."""
    result: list[tuple] = []
    for row in rows:
        if result and row[0] == result[-1][0] != NONE and result[-1][3] == 0.0 and row[2] <= result[-1][2]:
            result[-1] = (*row[:4], NONE)
        else:
            result.append(row)
    return result


def _ready(trace: RankTrace) -> np.ndarray:
    """float64 (events,): when the last of its causes allowed each; -inf without any."""
    events = trace.events
    ready_s = np.full(len(events), -np.inf)
    if len(trace.causes):
        cause, effect = trace.causes.T
        allowed_s = np.where(events.what[cause] == What.LAUNCH, events.start_s[cause], events.end_s[cause])
        np.maximum.at(ready_s, effect, allowed_s)
    return ready_s


def _arrays(trace: RankTrace, rows: list[tuple], ready_s: np.ndarray) -> Slices:
    event, lane, start, duration, leads_to = zip(*rows, strict=True) if rows else ((),) * 5
    event_ = np.array(event, np.int64)
    lane_ = np.array(lane, np.int32)
    start_s, duration_s = np.array(start, np.float64), np.array(duration, np.float64)
    owned = event_ != NONE
    waits = owned.copy()
    waits[owned] = trace.events.what[event_[owned]] == What.SYNC
    waited_s = np.maximum(ready_s[event_[waits]] - start_s[waits], 0.0)
    duration_s[waits] = np.maximum(duration_s[waits] - waited_s, 0.0)
    before = np.arange(len(rows), dtype=np.int64) - 1
    before[np.diff(lane_, prepend=NONE) != 0] = NONE
    return Slices(event_, lane_, start_s, duration_s, before, np.array(leads_to, np.int64))
