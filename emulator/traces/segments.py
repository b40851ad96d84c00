"""One rank's iteration as segments, the sequential activities of each lane. A host operator becomes one segment unless
nested events affect others (launch, wait, communicate, finish a gradient): then these and the operator's own time in
between become segments. A call that blocks until its copy has ended becomes two, launch and wait. Scopes have no
segments. Uncovered time is a gap, which `causality.py` explains.
"""

from dataclasses import dataclass

import numpy as np

from emulator.jobs.workload.graph import Kind
from emulator.traces.events import COMMUNICATION, NONE, LaneKind, RankTrace, What
from emulator.traces.steps import Steps

_WHOLE = (*COMMUNICATION, What.LOAD, What.CODEC, What.CHECKPOINT)
"""Events that are one segment whatever they contain."""
_MATTERS = (*_WHOLE, What.LAUNCH, What.SYNC, What.COPY)
_SCOPE, _ON_DEVICE = int(What.SCOPE), int(LaneKind.DEVICE)

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
    """All arrays (segments,): segments of a host lane or device lane are consecutive and in order, hosts first, then
    devices' lanes by first use in the iteration; transports' last, by group and sequence. Equal work therefore has
    equal positions in every iteration."""

    event: np.ndarray  # int64: index of the trace's event
    lane: np.ndarray  # int32
    place: np.ndarray  # int32: of hosts, the lane; of devices, the order of first use in the iteration; else NONE
    start_s: np.ndarray  # float64, on the trace's own clock
    end_s: np.ndarray
    kind: np.ndarray  # int8, `Kind`
    what: np.ndarray  # int8, `What`: that of the event, except for the wait of a blocking call
    lane_kind: np.ndarray  # int8, `LaneKind`
    of_event: dict[int, tuple[int, int]]
    """Event → its first and last segment; for events within an operator's segment, the operator's."""
    steps: Steps
    step: int
    """Index of the iteration in `steps`."""

    def __len__(self) -> int:
        return len(self.event)

    @property
    def step_s(self) -> tuple[float, float]:
        """Start and end of the iteration."""
        from_s, until_s = self.trace.steps[self.step].tolist()
        return from_s, until_s

    @property
    def trace(self) -> RankTrace:
        """The rank's trace."""
        return self.steps.trace

    def signature(self) -> np.ndarray:
        """Return the properties compared between iterations, segment by segment, int64 (segments, 3)."""
        return np.stack([self.trace.events.name[self.event], self.place, self.kind], axis=1)


def cut(steps: Steps, step: int) -> Segments:
    """Return the segments of iteration `step`."""
    events, lane_kind, chosen = steps.trace.events, steps.lane_kind, steps.events(step)
    kinds = np.array([_KINDS.get(What(what), Kind.COMPUTE) for what in range(max(What) + 1)], np.int8)
    inside: list[tuple[int, int]] = []
    rows = np.array(
        list(_spans(steps, chosen, _opened(steps, chosen), inside)),
        [("event", np.int64), ("start_s", np.float64), ("end_s", np.float64)],
    )
    rows, what = _split(steps, rows)
    of_transport = lane_kind[rows["event"]] == LaneKind.TRANSPORT
    sequence, group, lane = (column[rows["event"]] for column in (events.sequence, events.group, events.lane))
    place = np.where(of_transport, NONE, _places(steps, rows["event"]))
    order = np.lexsort(
        (
            rows["start_s"],
            np.where(of_transport, sequence, 0),
            np.where(of_transport, group, place),
            lane_kind[rows["event"]],
        )
    )
    event, start_s, end_s = (np.ascontiguousarray(rows[name][order]) for name in ("event", "start_s", "end_s"))
    lane, place, what = lane[order], place[order], what[order]
    _in_turn(lane, start_s, end_s, of_transport[order])
    kind = kinds[what]
    if np.any(lane_kind[chosen] == LaneKind.DEVICE):  # then the host's work is to feed the device
        kind[(lane_kind[event] == LaneKind.HOST) & (what == What.COMPUTE)] = Kind.DELAY
    of_event: dict[int, tuple[int, int]] = {}
    for at, number in enumerate(event.tolist()):
        of_event[number] = (of_event.get(number, (at,))[0], at)
    of_event |= {inner: of_event[outer] for inner, outer in inside if outer in of_event}
    return Segments(event, lane, place, start_s, end_s, kind, what, lane_kind[event], of_event, steps, step)


def _places(steps: Steps, event: np.ndarray) -> np.ndarray:
    """Return `Segments.place`, int32 (segments,). Streams may rotate through a pool, in the same order in each
    iteration."""
    place = steps.trace.events.lane[event]
    devices = np.flatnonzero(steps.lane_kind[event] == LaneKind.DEVICE)
    launch = steps.launch[event[devices]]
    set_going = np.where(launch != NONE, launch, event[devices])
    used = devices[np.argsort(steps.trace.events.start_s[set_going], kind="stable")]
    lanes, first = np.unique(place[used], return_index=True)
    rank = np.empty(len(lanes), np.int32)
    rank[np.argsort(first)] = np.arange(len(lanes))
    place[devices] = rank[np.searchsorted(lanes, place[devices])]
    return place


def _split(steps: Steps, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Split blocking calls: the launch, then the wait. Return the rows and the `What` of each segment."""
    copy, what = steps.blocks[rows["event"]], steps.trace.events.what[rows["event"]]
    copy[what != What.LAUNCH] = NONE
    if not (copy != NONE).any():
        return rows, what
    place = np.repeat(np.arange(len(rows)), np.where(copy != NONE, 2, 1))
    waits = np.flatnonzero(place[1:] == place[:-1]) + 1
    issued_s = np.minimum(rows["start_s"] + steps.issue_s, steps.trace.events.start_s[copy])[place[waits]]
    rows, what = rows[place], what[place]
    rows["end_s"][waits - 1] = rows["start_s"][waits] = np.clip(issued_s, rows["start_s"][waits], rows["end_s"][waits])
    what[waits] = What.SYNC
    return rows, what


def _in_turn(lane: np.ndarray, start_s: np.ndarray, end_s: np.ndarray, is_transport: np.ndarray) -> None:
    """Serialize a transport's lane: a segment begins when it was submitted and the preceding one has ended."""
    for number in np.unique(lane[is_transport]).tolist():
        mine = np.flatnonzero(is_transport & (lane == number))
        mine = mine[np.argsort(start_s[mine], kind="stable")]
        end_s[mine] = np.maximum.accumulate(end_s[mine])
        start_s[mine[1:]] = np.maximum(start_s[mine[1:]], end_s[mine[:-1]])


def _opened(steps: Steps, chosen: np.ndarray) -> set[int]:
    """Return the operators whose nested events become segments."""
    events = steps.trace.events
    matters = np.isin(events.what[chosen], _MATTERS) | events.gradient[chosen]
    matters &= steps.lane_kind[chosen] != LaneKind.DEVICE
    opened: set[int] = set()
    for outer in np.unique(events.parent[chosen[matters]]).tolist():
        while outer != NONE and outer not in opened:
            opened.add(outer)
            outer = int(events.parent[outer])
    outer_ops = np.fromiter(opened, np.int64, len(opened))
    return set(outer_ops[~np.isin(events.what[outer_ops], _WHOLE)].tolist())


def _spans(steps: Steps, chosen: np.ndarray, opened: set[int], inside: list):
    """Yield (event, start, end) of each segment; fill `inside` with (event without a segment, event that covers it)."""
    events = steps.trace.events
    part_of: dict[int, int] = {}  # event → the event whose segment covers it
    at_s: dict[int, float] = {}  # opened operator → end of its own time that was yielded
    ends_s: dict[int, float] = {}
    stack: list[int] = []
    on_lane = NONE

    def close(until_s: float):
        while stack and ends_s[stack[-1]] <= until_s:
            done = stack.pop()
            if ends_s[done] > at_s[done]:
                yield done, at_s[done], ends_s[done]

    columns = (steps.lane_kind, events.what, events.parent, events.lane, events.start_s, events.duration_s)
    rows = zip(chosen.tolist(), *(column[chosen].tolist() for column in columns), strict=True)
    for event, runs_on, what, over, lane, start_s, duration_s in rows:
        end_s = start_s + duration_s
        if runs_on == _ON_DEVICE:
            yield event, start_s, end_s
            continue
        if stack:
            yield from close(start_s if lane == on_lane else np.inf)
        on_lane = lane
        if over in part_of:
            part_of[event] = part_of[over]
            inside.append((event, part_of[over]))
            continue
        if stack:  # the event interrupts the innermost opened operator
            outer = stack[-1]
            if start_s > at_s[outer]:
                yield outer, at_s[outer], start_s
            at_s[outer] = max(at_s[outer], start_s if what == _SCOPE else end_s)
        if what == _SCOPE:
            continue
        if event in opened:
            stack.append(event)
            at_s[event], ends_s[event] = start_s, end_s
        else:
            part_of[event] = event
            yield event, start_s, end_s
    yield from close(np.inf)
