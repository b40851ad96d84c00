"""A trace's events by iteration, and waits that no profiler records: hosts waiting for space in a launch queue and for
blocking copies, streams waiting for each other. Computed once for all iterations; `segments.cut` extracts one.
"""

from functools import cached_property

import numpy as np

from emulator.traces.completeness import unanswered
from emulator.traces.events import NONE, LaneKind, RankTrace, What

SLACK_S = 2e-6
"""Maximum delay of a recorded end after the start of a dependent event: old traces are rounded to whole microseconds.
"""
MIN_QUEUE = 256
"""Minimum capacity of a launch queue. CUDA's holds 1,024 launches (as observed in traces; undocumented)."""
FULL = 0.98
"""Share of a queue's largest observed length from which on it counts as full."""
MIN_FULL = 3
"""Minimum number of launches blocked by a full queue to determine its capacity."""
QUICK, HELD_UP = 0.1, 3
"""Quantile of launch durations taken as the unblocked one, and the ratio to it from which on a launch counts as
blocked."""
BLOCKING = 0.9
"""Share of the copies of one name that had ended when the call returned from which on such calls are blocking."""
IDLE_S = 5e-5
"""A stream idle for longer than this, although work was launched for it, waits for another stream."""
LOOK_BACK = 64
"""Number of events examined for the one that it waited for."""


class Steps:
    """Iterations of `trace`. Work of transports and devices belongs to its launch's iteration, else to that of its
    start."""

    def __init__(self, trace: RankTrace) -> None:
        self.trace = trace
        events = trace.events
        self.lane_kind = trace.lane_kind
        """int8 (events,): `LaneKind`."""
        self.launch = self._launches()
        """int64 (events,): launch of a transport or device event, or the communication whose result is copied to a
        device; else NONE."""
        self._launched_s = np.full(len(events), -np.inf)  # time of the launch
        launched, by = np.flatnonzero(self.launch != NONE), self.launch[self.launch != NONE]
        when_s = np.where(self.lane_kind[by] == LaneKind.HOST, events.start_s[by], events.end_s[by])
        self._launched_s[launched] = when_s
        self.number = self._numbers()
        """int64 (events,): iteration, NONE outside of all."""
        self._order = np.argsort(self.number, kind="stable")
        self._starts = np.searchsorted(self.number[self._order], np.arange(len(trace.steps) + 1))

    def events(self, step: int) -> np.ndarray:
        """Return the events of an iteration in rising order, int64."""
        return self._order[self._starts[step] : self._starts[step + 1]]

    def causes(self, step: int) -> np.ndarray:
        """Return dependencies whose effect is in the iteration, int64 (causes, 2). In addition to the trace's own: work
        that made space for a launch; copies that blocking calls waited for (device event, call); and work on other
        streams that a stream waited for."""
        causes, first = self._causes
        return causes[first[step] : first[step + 1]]

    @cached_property
    def _causes(self) -> tuple[np.ndarray, np.ndarray]:
        """All dependencies by the iteration of their effect, and where those of each iteration begin."""
        every = (self.trace.causes, self._queue_space(), self._blocking(), self._between_streams())
        causes = np.concatenate(every).astype(np.int64)
        effect = self.number[causes[:, 1]]
        by_step = np.argsort(effect, kind="stable")
        return causes[by_step], np.searchsorted(effect[by_step], np.arange(len(self.trace.steps) + 1))

    def works(self, step: int) -> int:
        """Return the number of events of an iteration on devices and transports."""
        return int(np.count_nonzero(self.lane_kind[self.events(step)] != LaneKind.HOST))

    def launches(self, step: int) -> int:
        """Return the number of launches of an iteration without an effect in the trace."""
        return int(np.count_nonzero(self._unanswered == step))

    @cached_property
    def _unanswered(self) -> np.ndarray:
        return self.number[unanswered(self.trace)]

    @cached_property
    def done_s(self) -> np.ndarray:
        """float64 (iterations, lanes): end of all work up to an iteration on a transport or device; -inf: none."""
        events, lanes = self.trace.events, max(len(self.trace.lanes), 1)
        done_s = np.full((len(self.trace.steps), lanes), -np.inf)
        works = np.flatnonzero((self.lane_kind != LaneKind.HOST) & (self.number != NONE))
        np.maximum.at(done_s, (self.number[works], events.lane[works]), events.end_s[works])
        return np.maximum.accumulate(done_s, axis=0)

    def begin_s(self, step: int) -> float:
        """Return when the host begins the iteration."""
        return float(self.trace.steps[step, 0])

    def host_s(self, step: int) -> float:
        """Return the time from its start to the start of the next."""
        from_s, until_s = self.trace.steps[step]
        if step + 1 < len(self.trace.steps):
            until_s = max(until_s, self.trace.steps[step + 1, 0])
        return float(until_s - from_s)

    def ahead_s(self, step: int) -> float:
        """Return the remaining device work for earlier iterations when the host begins the iteration."""
        devices = self.trace.lanes_of(LaneKind.DEVICE)
        if not step or not devices:
            return 0.0
        return max(float(self.done_s[step - 1, devices].max()) - self.begin_s(step), 0.0)

    def duration_s(self, step: int) -> float:
        """Return the time from the end of all previous work to the end of the iteration's: the device's time, even if
        the host runs ahead."""
        return self.complete_s(step) - (self.complete_s(step - 1) if step else self.begin_s(0))

    def complete_s(self, step: int) -> float:
        """Return when all work of this and earlier iterations has ended."""
        return max(self.begin_s(step) + self.host_s(step), float(self.done_s[step].max()))

    @cached_property
    def issue_s(self) -> float:
        """Duration of an unblocked launch."""
        events = self.trace.events
        calls = (events.what == What.LAUNCH) & (self.lane_kind == LaneKind.HOST)
        return float(np.quantile(events.duration_s[calls], QUICK)) if calls.any() else 0.0

    @cached_property
    def blocks(self) -> np.ndarray:
        """int64 (events,): for a call that returns only when its copy has ended, that copy; else NONE. Blocking depends
        on the kind of copy (`Memcpy DtoH (Device -> Pageable)` blocks, pinned memory does not)."""
        events, blocks = self.trace.events, np.full(len(self.launch), NONE, np.int64)
        pinned = np.array(["Pinned" in name for name in self.trace.names], bool)
        copies = np.flatnonzero((events.what == What.COPY) & (self.launch != NONE) & ~pinned[events.name])
        if len(copies):
            is_over = events.end_s[copies] <= events.end_s[self.launch[copies]] + SLACK_S
            name = events.name[copies]
            share = np.bincount(name, is_over) / np.maximum(np.bincount(name), 1)
            copies = copies[share[name] >= BLOCKING]
            blocks[self.launch[copies]] = copies
        return blocks

    def _launches(self) -> np.ndarray:
        launch = np.full(len(self.lane_kind), NONE, np.int64)
        cause, caused = self.trace.causes.T
        by_host = (self.lane_kind[cause] == LaneKind.HOST) & (self.lane_kind[caused] != LaneKind.HOST)
        by_host &= self.trace.events.what[cause] == What.LAUNCH
        by_transport = (self.lane_kind[cause] == LaneKind.TRANSPORT) & (self.lane_kind[caused] == LaneKind.DEVICE)
        for launched in (by_transport, by_host):
            launch[caused[launched]] = cause[launched]
        return launch

    def _numbers(self) -> np.ndarray:
        events, steps = self.trace.events, self.trace.steps
        if not len(steps):
            return np.full(len(events), NONE, np.int64)
        number = np.searchsorted(steps[:, 0], events.start_s, side="right") - 1
        number[(number >= 0) & (events.start_s >= steps[number, 1])] = NONE
        for kind in (LaneKind.TRANSPORT, LaneKind.DEVICE):  # a transport may launch device work
            works = np.flatnonzero((self.launch != NONE) & (self.lane_kind == kind))
            number[works] = number[self.launch[works]]
        return number

    def _blocking(self) -> np.ndarray:
        """Return pairs of a copy and the call that waited for it, int64 (pairs, 2)."""
        calls = np.flatnonzero(self.blocks != NONE)
        return np.stack([self.blocks[calls], calls], axis=1)

    def _queue_space(self) -> np.ndarray:
        """Return pairs of the device work that made space for a launch, and the launch, int64 (pairs, 2); blocked
        launches show the queue's capacity."""
        events = self.trace.events
        pairs = [np.empty((0, 2), np.int64)]
        for lane in self.trace.lanes_of(LaneKind.DEVICE):
            works = np.flatnonzero((events.lane == lane) & (self.launch != NONE))
            works = works[self.lane_kind[self.launch[works]] == LaneKind.HOST]
            if len(works) < MIN_QUEUE:
                continue
            # One launch may start several kernels (a graph's): the last of them is used.
            call, last = np.unique(self.launch[works][::-1], return_index=True)
            work = works[::-1][last]
            order = np.lexsort((call, events.start_s[call]))
            call, work = call[order], work[order]
            done_s = np.maximum.accumulate(events.end_s[work])
            ended = np.searchsorted(done_s, events.end_s[call] + SLACK_S, side="right")
            queued = np.arange(1, len(call) + 1) - ended
            most = int(queued.max())
            held_up = (events.duration_s[call] > HELD_UP * self.issue_s) & (queued >= FULL * most)
            held_up &= done_s[ended - 1] > events.start_s[call]  # the work that made space ended during the call
            if most < MIN_QUEUE or held_up.sum() < MIN_FULL:
                continue
            awaited = np.where(held_up, ended, np.arange(1, len(call) + 1) - most) - 1
            waits = awaited >= 0
            pairs.append(np.stack([work[awaited[waits]], call[waits]], axis=1))
        return np.concatenate(pairs)

    def _between_streams(self) -> np.ndarray:
        """Return, for late work on an idle stream, the last event to end on another stream among those launched before,
        int64 (pairs, 2)."""
        events, lane_kind, end_s = self.trace.events, self.lane_kind, self.trace.events.end_s
        on_device = np.flatnonzero(lane_kind == LaneKind.DEVICE)
        work = on_device[self.launch[on_device] != NONE]
        if len(np.unique(events.lane[on_device])) < 2:
            return np.empty((0, 2), np.int64)
        ready_s = np.where(self.launch != NONE, end_s[self.launch], np.inf)
        cause, caused = self.trace.causes.T
        known = (lane_kind[cause] == LaneKind.DEVICE) & (lane_kind[caused] == LaneKind.DEVICE)
        np.maximum.at(ready_s, caused[known], end_s[cause[known]])
        for lane in np.unique(events.lane[on_device]):
            mine = on_device[events.lane[on_device] == lane]
            ready_s[mine[1:]] = np.maximum(ready_s[mine[1:]], np.maximum.accumulate(end_s[mine])[:-1])
        waited = work[events.start_s[work] - ready_s[work] > IDLE_S]
        by_end = work[np.argsort(end_s[work], kind="stable")]
        place = np.searchsorted(end_s[by_end], events.start_s[waited] + SLACK_S, side="right")
        pairs = []
        for one, after in zip(waited.tolist(), place.tolist(), strict=True):
            others = by_end[max(after - LOOK_BACK, 0) : after]
            is_it = (events.lane[others] != events.lane[one]) & (end_s[others] > ready_s[one])
            is_it &= self._launched_s[others] < self._launched_s[one]
            if is_it.any():
                pairs.append((int(others[np.flatnonzero(is_it)[-1]]), one))
        return np.array(pairs, np.int64).reshape(-1, 2)
