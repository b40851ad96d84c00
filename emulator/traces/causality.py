"""Dependencies on one rank, in addition to the order on each lane: the trace's own, and those implied by frameworks
without an event, such as a host thread's wait for a collective that only leaves a gap. A host runs ahead of its
devices: work on a stream waits for its launch and for the stream's earlier work; the host waits where it synchronizes,
where a copy blocks, and where a launch queue is full (`steps.py`). DistributedDataParallel launches a bucket's
all-reduce from the hook of its last gradient; after backward it waits for the buckets one by one and copies each back,
unless gradients are views of it (torch/csrc/distributed/c10d/reducer.cpp, finalize_backward).
"""

from __future__ import annotations

from bisect import bisect_left
from functools import cached_property

import numpy as np

from emulator.traces.events import COMMUNICATION, NONE, LaneKind, What
from emulator.traces.intervals import TOUCHING_S
from emulator.traces.segments import Segments

HAND_OVER_S = 20e-6
"""A host thread idle for longer than this was waiting for something."""
_LAUNCH, _SYNC, _SCOPE = int(What.LAUNCH), int(What.SYNC), int(What.SCOPE)
_COMMUNICATION = frozenset(map(int, COMMUNICATION))
_ON_HOST, _ON_DEVICE, _ON_TRANSPORT = int(LaneKind.HOST), int(LaneKind.DEVICE), int(LaneKind.TRANSPORT)
"""Plain integers for loops over all causes of a trace, where members of enumerations would take most of the time."""
_NODE = "autograd::engine::evaluate_function"
_COPY_BACK = "copy_bucket_to_grad"
_STREAM_WAITS = "StreamWaitEvent"


def rank_graph(segments: Segments, transfer: np.ndarray) -> RankGraph:
    """Return the dependencies of one rank. `transfer`: int64 (segments,), number of each one's communication, else
    NO_TRANSFER."""
    graph = RankGraph(segments, transfer)
    graph.add_recorded()
    graph.add_hand_overs()
    graph.fill_buckets()
    graph.add_waits()
    graph.add_producers()
    return graph


class RankGraph:
    """Segments of one rank's iteration and their dependencies, built by `rank_graph`."""

    def __init__(self, segments: Segments, transfer: np.ndarray) -> None:
        self.trace, self.segments, self.transfer = segments.trace, segments, transfer
        self.lane_kind, self.what = segments.lane_kind, segments.what
        self.host = np.flatnonzero(self.lane_kind == LaneKind.HOST)
        gradients = self.host[self.trace.events.gradient[segments.event[self.host]]]
        self.gradients: list[int] = sorted(gradients.tolist(), key=segments.start_s.__getitem__)
        """Segments in which gradients became final, in order."""
        self.order = np.lexsort((segments.start_s, segments.lane))
        self.before, self.after = _neighbours(segments, self.order)
        self.main_lane = self._main_lane()
        """Host lane with the span of the iteration, else the busiest; of a rank without hosts, its first lane."""
        self.communications = np.flatnonzero(np.isin(self.what, COMMUNICATION))
        self.launch_of: dict[int, int] = {}  # communication → the segment that launched it
        self.launcher = np.full(len(segments), NONE, np.int64)
        """int64 (segments,): launch of each compute or copy segment on a device, if known; else NONE."""
        self.buckets: list[tuple[int, list[int]]] = []
        """(communication, segments of its gradients), where gradients are known."""
        self.waiter: dict[int, int] = {}
        """Communication → the first segment that needs it. If it seems to end after that segment resumed, its end was
        recorded late."""
        self.is_wait = self.what == What.SYNC
        """bool (segments,): segments that end with what they wait for: synchronization, launches into a full queue."""
        self._edges: set[tuple[int, int]] = set()
        self._earlier: list[tuple[int, int]] = []
        self._on_lane = np.searchsorted(segments.lane[self.host], np.arange(len(self.trace.lanes) + 1))
        self._whats, self._lane_kinds, self._lanes, self._start_s, self._end_s = (
            column.tolist() for column in (self.what, self.lane_kind, segments.lane, segments.start_s, segments.end_s)
        )

    # Results

    @cached_property
    def pairs(self) -> np.ndarray:
        """Edges, int64 (edges, 2): the first segment before the second."""
        return np.array(sorted(self._edges), np.int64).reshape(-1, 2)

    @cached_property
    def earlier(self) -> np.ndarray:
        """int64 (waits, 2): segments, and the transport and device events of earlier iterations that they wait for."""
        return np.array(self._earlier, np.int64).reshape(-1, 2)

    @cached_property
    def predecessors(self) -> np.ndarray:
        """`pairs`, and the order of segments on each lane."""
        follows = np.flatnonzero(self.before >= 0)
        return np.concatenate([self.pairs, np.stack([self.before[follows], follows], axis=1)])

    def awaited(self, pairs: np.ndarray) -> np.ndarray:
        """Return for pairs of segments whether the second blocks until a device or transport has completed the first,
        bool (pairs,). Other dependencies of a segment precede the gap before it."""
        return self.is_wait[pairs[:, 1]] & (self.lane_kind[pairs[:, 0]] != LaneKind.HOST)

    def is_launch(self, pairs: np.ndarray) -> np.ndarray:
        """Return for pairs of segments whether the first launches the second on a device, bool (pairs,)."""
        return self.launcher[pairs[:, 1]] == pairs[:, 0]

    def name(self, segment: int) -> str:
        """Return the name of a segment's event."""
        return self._name(int(self.segments.event[segment]))

    def on_main(self) -> np.ndarray:
        """Return the segments of the main lane, int64."""
        return np.flatnonzero(self.segments.lane == self.main_lane)

    def _main_lane(self) -> int:
        segments, events = self.segments, self.trace.events
        if not len(self.host):
            return int(segments.lane[0]) if len(segments) else 0
        mine = segments.steps.events(segments.step)
        begins = events.lane[mine[(events.start_s[mine] == segments.step_s[0]) & (events.what[mine] == What.SCOPE)]]
        if (begins := begins[np.isin(begins, segments.lane[self.host])]).size:
            return int(begins[0])
        duration_s = (segments.end_s - segments.start_s)[self.host]
        return int(np.argmax(np.bincount(segments.lane[self.host], duration_s)))

    # Dependencies in the trace

    def add_recorded(self) -> None:
        steps, of_event, whats, launch_of = self.segments.steps, self.segments.of_event, self._whats, self.launch_of
        causes = steps.causes(self.segments.step)
        cause, caused = causes.T
        waits = (self.trace.events.what[caused] == _LAUNCH) & (steps.lane_kind[cause] == _ON_DEVICE)
        columns = (cause, caused, waits, steps.launch[cause] == caused, steps.launch[caused] == cause)
        for cause, caused, is_wait, is_own, is_launch in zip(*(column.tolist() for column in columns), strict=True):
            second = self._segment(caused, last=False)
            if second is None:
                continue
            if is_wait:
                # An event that a call waits for. If that is its own copy, the second part of the call waits.
                second = of_event[caused][is_own]
                self.is_wait[second] = True
            first = self._segment(cause, last=True)
            if first is None:
                self._from_earlier(cause, second)
                continue
            if first == second:
                continue
            if whats[first] == _LAUNCH:
                if whats[second] in _COMMUNICATION:
                    launch_of[second] = first
                if self._start_s[second] < self._end_s[first]:
                    first = int(self.before[first])  # it began before the call returned: the call's start is the cause
            if whats[first] in _COMMUNICATION and self.is_wait[second]:
                # It was done before the wait ended, whatever its timestamp: under load the end is recorded late.
                if self._start_s[first] < self._end_s[second]:
                    self._edges.add((first, second))
                continue
            self._add(first, second)
            if is_launch and self._lane_kinds[second] == _ON_DEVICE:
                is_known = (first, second) in self._edges and whats[second] not in _COMMUNICATION
                self.launcher[second] = first if is_known else NONE

    def _segment(self, event: int, *, last: bool) -> int | None:
        """Return the segment of an event; for a scope, the last or first in it."""
        segments, events = self.segments, self.trace.events
        if (ends := segments.of_event.get(event)) is not None:
            # The effects of a blocking call follow its first part.
            is_split = ends[0] != ends[1] and self._whats[ends[1]] == _SYNC and self._whats[ends[0]] == _LAUNCH
            return ends[1] if last and not is_split else ends[0]
        if events.what[event] != _SCOPE or segments.steps.lane_kind[event] != _ON_HOST:
            return None
        first, after = self._on_lane[events.lane[event] : events.lane[event] + 2].tolist()
        from_s, until_s = events.start_s[event], events.start_s[event] + events.duration_s[event]
        begin = first + int(np.searchsorted(segments.start_s[first:after], from_s))
        end = first + int(np.searchsorted(segments.end_s[first:after], until_s, side="right"))
        return (end - 1 if last else begin) if begin < end else None

    def _from_earlier(self, cause: int, second: int) -> None:
        """Add a dependency on an earlier iteration, unless the trace contradicts it."""
        events, segments = self.trace.events, self.segments
        if segments.steps.lane_kind[cause] == LaneKind.HOST or not 0 <= segments.steps.number[cause] < segments.step:
            return
        limit_s = (segments.end_s if self.is_wait[second] else segments.start_s)[second]
        if events.start_s[cause] + events.duration_s[cause] <= limit_s + TOUCHING_S:
            self._earlier.append((second, cause))

    def _add(self, first: int, second: int) -> None:
        """Add an edge, unless the trace contradicts it or the lane's order implies it."""
        if first < 0 or first == second:
            return
        if self.is_wait[second]:
            if self._whats[first] in _COMMUNICATION and self._start_s[first] < self._end_s[second]:
                self.waiter.setdefault(first, second)
            elif self._end_s[first] > self._end_s[second] + TOUCHING_S:
                return
        elif self._end_s[first] > self._start_s[second] + TOUCHING_S:
            return
        if self._lanes[first] == self._lanes[second] and self._lane_kinds[first] != _ON_TRANSPORT:
            return
        self._edges.add((first, second))

    # Threads

    def add_hand_overs(self) -> None:
        """Add edges between host threads: a thread that resumes was woken by the one that finished last, such as main
        by autograd's and vice versa."""
        lanes = np.unique(self.segments.lane[self.host])
        if len(lanes) < 2:
            return
        segments = self.segments
        takes_part = [lane for lane in lanes.tolist() if self._is_main_or_autograd(lane)]
        hosts = self.host[np.isin(segments.lane[self.host], takes_part)]
        by_end = hosts[np.argsort(segments.end_s[hosts], kind="stable")]
        ends_s = segments.end_s[by_end].tolist()
        for second in hosts.tolist():
            previous = int(self.before[second])
            idle_from_s = segments.end_s[previous] if previous >= 0 else -np.inf
            start_s = segments.start_s[second]
            if start_s - idle_from_s < HAND_OVER_S:
                continue
            place = bisect_left(ends_s, start_s + TOUCHING_S) - 1
            if place >= 0 and ends_s[place] > idle_from_s:
                self._add(int(by_end[place]), second)

    def _is_main_or_autograd(self, lane: int) -> bool:
        mine = self.host[self.segments.lane[self.host] == lane]
        return lane == self.main_lane or any(self._node(int(one)) is not None for one in mine[:200])

    def _node(self, segment: int) -> int | None:
        """Return the outermost autograd node around a segment."""
        event = int(self.segments.event[segment])
        nodes = [one for one in (event, *self.trace.events.around(event)) if self._name(one).startswith(_NODE)]
        return nodes[-1] if nodes else None

    def _name(self, event: int) -> str:
        return self.trace.names[self.trace.events.name[event]]

    # Buckets

    def fill_buckets(self) -> None:
        """Assign gradients to buckets in launch order: by size if sizes add up, else by time."""
        events, segments = self.trace.events, self.segments
        gradients = self.gradients
        launched = [one for one in self.communications.tolist() if self._is_bucket(one)]
        launched.sort(key=lambda one: segments.start_s[self.launch_of.get(one, one)])
        if not gradients or not launched:
            return
        size = events.bytes[segments.event]
        upcoming = 0
        for number, bucket in enumerate(launched):
            ready_s = segments.start_s[self.launch_of.get(bucket, bucket)]
            filled, first = 0.0, upcoming
            while upcoming < len(gradients) and filled < size[bucket]:
                filled += size[gradients[upcoming]]
                upcoming += 1
            if not filled or filled != size[bucket]:
                upcoming = first
                is_last = number == len(launched) - 1
                while upcoming < len(gradients) and (is_last or segments.start_s[gradients[upcoming]] <= ready_s):
                    upcoming += 1
            self.buckets.append((bucket, gradients[first:upcoming]))

    def _is_bucket(self, communication: int) -> bool:
        """Return whether autograd launched a communication."""
        if self.what[communication] != What.COLLECTIVE:
            return False
        launch = self.launch_of.get(communication)
        if launch is None and self.lane_kind[communication] == LaneKind.HOST:
            launch = communication
        return launch is not None and self._node(launch) is not None

    # Waits visible only as gaps

    def add_waits(self) -> None:
        segments = self.segments
        on_device = (self.lane_kind == LaneKind.DEVICE) & ~np.isin(self.what, COMMUNICATION)
        needs = ((self.what == What.SYNC) | on_device).tolist()
        # Communication is the cause of a copy that carries its result, but no thread has waited for it yet.
        awaited = {first for first, second in self._edges if needs[second] and self.launcher[second] != first}
        in_backward = []
        for one in self.communications.tolist():
            if one in awaited or self.lane_kind[one] == LaneKind.HOST or one not in self.launch_of:
                continue
            if self._node(self.launch_of[one]) is not None:
                in_backward.append(one)
            else:
                self._after_call(one)
        if in_backward:
            in_backward.sort(key=lambda one: segments.start_s[self.launch_of[one]])
            self._after_backward(in_backward)

    def _after_call(self, communication: int) -> None:
        """Add the wait for communication launched by the script itself: before the thread's next segment, if later,
        else before the end of an idle time."""
        segments = self.segments
        end_s = segments.end_s[communication]
        one = int(self.after[self.launch_of[communication]])
        is_next = True
        while one >= 0:
            idle_s = segments.start_s[one] - segments.end_s[self.before[one]]
            if segments.start_s[one] >= end_s - HAND_OVER_S:
                if is_next or (idle_s > HAND_OVER_S and segments.end_s[self.before[one]] < end_s):
                    self._wait(communication, one)
                return
            one, is_next = int(self.after[one]), False

    def _after_backward(self, communications: list[int]) -> None:
        segments = self.segments
        last = self.launch_of[communications[-1]]
        over_s = self.trace.events.end_s[self._node(last)]
        later = [int(one) for one in self.host if segments.start_s[one] >= over_s - TOUCHING_S]
        later = [one for one in later if self._node(one) is None]
        if not later:
            return
        first = min(later, key=lambda one: (segments.lane[one] != segments.lane[last], segments.start_s[one]))
        waiters = dict.fromkeys(communications, first)
        if marks := self._marks(communications, [one for one in later if segments.lane[one] == segments.lane[last]]):
            for one, (begin, end) in zip(communications, marks, strict=True):
                waiters[one] = self._after_longest_pause(begin, end)
        for one, waiter in waiters.items():
            if self.lane_kind[one] != LaneKind.DEVICE:
                self._wait(one, waiter)
            elif (first := self._launched_from(segments.start_s[waiter])) >= 0:
                # Not the host waits, but the work it launches from then on, unless the trace contradicts.
                self._add(one, first)

    def _marks(self, communications: list[int], later: list[int]) -> list[tuple[int, int]]:
        """Return for each bucket the host segments between which its wait lies (including the second): before its
        copies back, or, without any, before a stream was made to wait for the result. Empty where neither is visible.
        """
        copies = [one for one in later if _COPY_BACK in self.name(one)]
        filled = dict(self.buckets)
        counts = [len(filled.get(one, ())) for one in communications]
        if copies and all(counts) and sum(counts) == len(copies):
            firsts = np.cumsum([0, *counts[:-1]]).tolist()
            return [(int(self.after[copies[at - 1]]) if at else later[0], copies[at]) for at in firsts]
        calls = [one for one in later if _STREAM_WAITS in self.name(one)]
        if len(calls) < len(communications) or np.any(self.lane_kind[communications] == LaneKind.DEVICE):
            return []
        ends = calls[: len(communications)]
        return list(zip([later[0], *(int(self.after[end]) for end in ends[:-1])], ends, strict=True))

    def _after_longest_pause(self, begin: int, end: int) -> int:
        """Return the segment after the longest pause, among those of a host thread from one segment to another."""
        between = [begin]
        while between[-1] != end:
            between.append(int(self.after[between[-1]]))
        start_s, end_s = self.segments.start_s, self.segments.end_s
        return max(between, key=lambda one: start_s[one] - end_s[self.before[one]])

    def _launched_from(self, from_s: float) -> int:
        """Return the first segment launched on a device from a time on, excluding communication; -1: none."""
        at_s, works = self._launches
        place = int(np.searchsorted(at_s, from_s))
        return int(works[place]) if place < len(works) else -1

    @cached_property
    def _launches(self) -> tuple[np.ndarray, np.ndarray]:
        """Launch times of device work, in rising order, and its segments."""
        segments = self.segments
        works = np.flatnonzero((self.lane_kind == LaneKind.DEVICE) & ~np.isin(self.what, COMMUNICATION))
        call = segments.steps.launch[segments.event[works]]
        works, call = works[call != NONE], call[call != NONE]
        order = np.argsort(self.trace.events.start_s[call], kind="stable")
        return self.trace.events.start_s[call[order]], works[order]

    def _wait(self, communication: int, waiter: int) -> None:
        self.waiter[communication] = waiter
        self._edges.add((communication, waiter))

    # Remaining

    def add_producers(self) -> None:
        """Add edges to communication without a dependency: from the last host segment before it."""
        segments = self.segments
        has_one = {second for _, second in self._edges}
        order = self.host[np.argsort(segments.end_s[self.host], kind="stable")]
        ends_s = segments.end_s[order].tolist()
        for one in self.communications.tolist():
            if one in has_one:
                continue
            place = bisect_left(ends_s, segments.start_s[one] + TOUCHING_S) - 1
            while place >= 0 and int(order[place]) == one:
                place -= 1
            if place >= 0:
                self._edges.add((int(order[place]), one))


def _neighbours(segments: Segments, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the preceding and following segment on the lane, int64 (segments,) each, -1 for none."""
    before, after = np.full(len(order), -1, np.int64), np.full(len(order), -1, np.int64)
    same = np.flatnonzero(segments.lane[order][1:] == segments.lane[order][:-1])
    before[order[same + 1]] = order[same]
    after[order[same]] = order[same + 1]
    return before, after
