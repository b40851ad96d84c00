"""One rank's iteration as segments: what each lane did, one thing after the other. Host events nest; an operator
becomes one segment unless something inside it matters to others (it launches, waits, communicates, finishes a
gradient): then what is inside becomes segments, and so does what the operator itself did between them. Scopes leave no
segment; time that no segment covers is a gap, and what a gap was for, `causality.py` finds out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from emulator.traces.events import NONE, LaneKind, RankTrace, What
from emulator.workload.graph import Kind

_WHOLE = (What.COLLECTIVE, What.SEND, What.RECV, What.LOAD, What.CODEC, What.CHECKPOINT)
"""One segment whatever is inside."""
_MATTERS = (*_WHOLE, What.LAUNCH, What.SYNC, What.COPY)
COMMUNICATION = (What.COLLECTIVE, What.SEND, What.RECV)

_KINDS = {
    What.COLLECTIVE: Kind.COLLECTIVE,
    What.SEND: Kind.SEND,
    What.RECV: Kind.RECV,
    What.LOAD: Kind.LOAD,
    What.CODEC: Kind.CODEC,
    What.COPY: Kind.COPY,
    What.LAUNCH: Kind.DELAY,
    What.SYNC: Kind.DELAY,
    What.SCOPE: Kind.DELAY,
    What.CHECKPOINT: Kind.CHECKPOINT,
}


@dataclass(frozen=True)
class Segments:
    """All arrays (segments,): those of a host lane or a device lane together and in order, hosts first; transports'
    last, by group and sequence, so that the same communication has the same place in every iteration."""

    event: np.ndarray  # int64: into the trace's events
    lane: np.ndarray  # int32
    start_s: np.ndarray  # float64, on the trace's own clock
    end_s: np.ndarray
    kind: np.ndarray  # int8, `Kind`
    lane_kind: np.ndarray  # int8, `LaneKind`
    of_event: dict[int, tuple[int, int]]
    """Event → its first and last segment; of an operator's insides, the operator's."""
    step_s: tuple[float, float]
    """The iteration's start and end."""

    def __len__(self) -> int:
        return len(self.event)

    def signature(self, trace: RankTrace) -> np.ndarray:
        """int64 (segments, 3): what makes two iterations comparable, segment by segment."""
        place = np.where(self.lane_kind == LaneKind.TRANSPORT, NONE, self.lane)
        return np.stack([trace.events.name[self.event], place, self.kind], axis=1)


def cut(trace: RankTrace, step: int) -> Segments:
    """The segments of iteration `step`. What a transport or device does belongs to the iteration of what set it
    going."""
    events = trace.events
    lane_kind = np.array([lane.kind for lane in trace.lanes], np.int8)[events.lane]
    chosen = _in_step(trace, step, lane_kind)
    kind = np.array([_KINDS.get(What(what), Kind.COMPUTE) for what in range(max(What) + 1)], np.int8)[events.what]
    if np.any(chosen & (lane_kind == LaneKind.DEVICE)):  # what the host does then is to feed the device
        kind[(lane_kind == LaneKind.HOST) & (events.what == What.COMPUTE)] = Kind.DELAY
    inside: list[tuple[int, int]] = []
    spans = _spans(trace, chosen, _opened(trace, chosen, lane_kind), lane_kind, inside)
    rows = np.array(list(spans), [("event", np.int64), ("start_s", np.float64), ("end_s", np.float64)])
    of_transport = lane_kind[rows["event"]] == LaneKind.TRANSPORT
    sequence, group, lane = (column[rows["event"]] for column in (events.sequence, events.group, events.lane))
    order = np.lexsort(
        (
            rows["start_s"],
            np.where(of_transport, sequence, 0),
            np.where(of_transport, group, lane),
            lane_kind[rows["event"]],
        )
    )
    event, start_s, end_s = (np.ascontiguousarray(rows[name][order]) for name in ("event", "start_s", "end_s"))
    lane = lane[order]
    _in_turn(lane, start_s, end_s, of_transport[order])
    of_event: dict[int, tuple[int, int]] = {}
    for place, number in enumerate(event.tolist()):
        of_event[number] = (of_event.get(number, (place,))[0], place)
    of_event |= {inner: of_event[outer] for inner, outer in inside if outer in of_event}
    step_s = (float(trace.steps[step, 0]), float(trace.steps[step, 1]))
    return Segments(event, lane, start_s, end_s, kind[event], lane_kind[event], of_event, step_s)


def _in_turn(lane: np.ndarray, start_s: np.ndarray, end_s: np.ndarray, is_transport: np.ndarray) -> None:
    """A transport's lane serves what it is given in turn: one begins when it was given and the one before is done."""
    for number in np.unique(lane[is_transport]).tolist():
        mine = np.flatnonzero(is_transport & (lane == number))
        mine = mine[np.argsort(start_s[mine], kind="stable")]
        end_s[mine] = np.maximum.accumulate(end_s[mine])
        start_s[mine[1:]] = np.maximum(start_s[mine[1:]], end_s[mine[:-1]])


def _in_step(trace: RankTrace, step: int, lane_kind: np.ndarray) -> np.ndarray:
    """bool (events,)."""
    from_s, until_s = trace.steps[step]
    events = trace.events
    within = (events.start_s >= from_s) & (events.start_s < until_s)
    if len(trace.causes):
        cause, caused = trace.causes.T
        launched = (lane_kind[cause] == LaneKind.HOST) & (lane_kind[caused] != LaneKind.HOST)
        launched &= events.what[cause] == What.LAUNCH
        within[caused[launched]] = within[cause[launched]]
    return within


def _opened(trace: RankTrace, chosen: np.ndarray, lane_kind: np.ndarray) -> np.ndarray:
    """bool (events,): of which the insides count."""
    events = trace.events
    matters = chosen & (np.isin(events.what, _MATTERS) | events.gradient) & (lane_kind != LaneKind.DEVICE)
    has_inside = np.zeros(len(events), bool)
    for event in np.flatnonzero(matters).tolist():
        for outer in events.around(event):
            if has_inside[outer]:
                break
            has_inside[outer] = True
    return (has_inside & ~np.isin(events.what, _WHOLE)) | (events.what == What.SCOPE)


def _spans(trace: RankTrace, chosen, opened, lane_kind, inside: list[tuple[int, int]]):
    """Yield (event, start, end) of each segment; fills `inside` with (event that leaves none, event it is part of)."""
    events = trace.events
    end_s = events.end_s
    part_of = np.full(len(events), NONE, np.int64)  # the event whose segment covers this one
    at_s: dict[int, float] = {}  # opened operator → up to where its own time has been yielded
    stack: list[int] = []
    numbers = np.flatnonzero(chosen)
    what, parent, lane = events.what.tolist(), events.parent.tolist(), events.lane.tolist()
    start_s, ends_s, is_open = events.start_s.tolist(), end_s.tolist(), opened.tolist()
    on_device = (lane_kind == LaneKind.DEVICE).tolist()

    def close(until_s: float, on_lane: int):
        while stack and (lane[stack[-1]] != on_lane or ends_s[stack[-1]] <= until_s):
            done = stack.pop()
            if ends_s[done] > at_s[done]:
                yield done, at_s[done], ends_s[done]

    for event in numbers.tolist():
        if on_device[event]:
            yield event, start_s[event], ends_s[event]
            continue
        yield from close(start_s[event], lane[event])
        over = parent[event]
        if over != NONE and part_of[over] != NONE:
            part_of[event] = part_of[over]
            inside.append((event, int(part_of[over])))
            continue
        if stack:  # this one interrupts the innermost opened operator
            outer = stack[-1]
            if start_s[event] > at_s[outer]:
                yield outer, at_s[outer], start_s[event]
            at_s[outer] = max(at_s[outer], start_s[event] if what[event] == What.SCOPE else ends_s[event])
        if is_open[event]:
            if what[event] != What.SCOPE:
                stack.append(event)
                at_s[event] = start_s[event]
        else:
            part_of[event] = event
            yield event, start_s[event], ends_s[event]
    yield from close(np.inf, NONE)
