"""Dependencies in a Kineto trace, in addition to the order on a lane: launches before kernels, forward operators before
backward ones, calls before collectives, backward's thread within `backward()`, and waits of streams and threads. CUDA's
profiler can record the latter (`cuda_sync`); otherwise they are inferred from c10d, where times are consistent.
"""

import numpy as np

from emulator.traces.events import NONE, LaneKind, What
from emulator.traces.readers.kineto.events import BY_HOST
from emulator.traces.readers.kineto.reading import Reading

_SLACK_S = 2e-6
"""Old traces are rounded to whole microseconds."""


def find_causes(reading: Reading, launch: dict[int, int], more: list[tuple[int, int]]) -> tuple[np.ndarray, int]:
    """Return int32 (causes, 2) for `RankTrace.causes`, without duplicates, and the number of inferred ones: the order
    between streams in traces without CUDA's own records of it. `launch`: communication → the host event that launched
    it; `more`: additional (effect, cause) pairs."""
    waits, lane = _Waits(reading), reading.events.lane
    inferred = waits.inferred()
    called = [pair for pair in launch.items() if lane[pair[0]] != lane[pair[1]]]
    pairs = [*called, *_backward_calls(reading), *waits.recorded(), *more, *inferred]
    launched = np.flatnonzero(reading.launch_of != NONE)
    causes = np.concatenate(
        [
            np.stack([reading.launch_of[launched], launched], axis=1),
            _forward_backward(reading),
            np.array(pairs, np.int64).reshape(-1, 2)[:, ::-1],
        ]
    )
    return np.unique(causes[causes[:, 0] != causes[:, 1]], axis=0).astype(np.int32), len(inferred)


def _forward_backward(reading: Reading) -> np.ndarray:
    """Return pairs of forward and backward operators, int64 (pairs, 2), from the profiler's arrows, else from sequence
    numbers."""
    events, ends = reading.events, reading.table.arrows.arrays()
    if not len(ends["id"]):
        return _by_sequence(reading)
    # An arrow's end is the start of an operator: of several the innermost, not its wrappers.
    place = {}
    starts_s = (ends["ts"] - reading.first_ts) * 1e-6
    lanes = reading.lane_of_table[ends["lane"]]
    for event in np.flatnonzero(np.isin(events.start_s, starts_s)).tolist():
        place[int(events.lane[event]), float(events.start_s[event])] = event
    both: dict[int, list[int]] = {}
    columns = (column.tolist() for column in (ends["id"], ends["is_head"], lanes, starts_s))
    for id, is_head, lane, at_s in zip(*columns, strict=True):
        if (lane, at_s) in place:
            both.setdefault(id, [NONE, NONE])[is_head] = place[lane, at_s]
    return np.array([pair for pair in both.values() if NONE not in pair], np.int64).reshape(-1, 2)


def _by_sequence(reading: Reading) -> np.ndarray:
    """Operators that create no autograd node carry the number of the next node, so of forward operators with the same
    number the last one is used (as in torch/csrc/profiler/kineto_shim)."""
    rows, start_s = reading.table.autograd.arrays(), reading.events.start_s
    events = reading.row_to_event[rows["row"]]
    rows, events = {name: column[events != NONE] for name, column in rows.items()}, events[events != NONE]
    order = np.lexsort((start_s[events], rows["sequence"]))
    columns = (column[order].tolist() for column in (rows["is_backward"], rows["sequence"], events))
    last = {(bool(backward), sequence): event for backward, sequence, event in zip(*columns, strict=True)}
    both = [(last[False, at], event) for (backward, at), event in last.items() if backward and (False, at) in last]
    pairs = np.array(both, np.int64).reshape(-1, 2)
    return pairs[reading.events.end_s[pairs[:, 0]] <= start_s[pairs[:, 1]] + 1e-6]


def _backward_calls(reading: Reading) -> list[tuple[int, int]]:
    """With an accelerator, `backward()` runs on autograd's thread while the caller's thread waits: the caller's last
    event before it is a cause, its next event an effect."""
    if not reading.lanes or reading.lanes[0].kind != LaneKind.HOST:
        return []
    events, start_s, end_s = reading.events, reading.events.start_s, reading.events.end_s
    top = reading.where(lambda _, name: name.startswith("autograd::engine::evaluate"))
    top = top[(events.parent[top] == NONE) & (events.lane[top] != 0)]
    caller = np.flatnonzero(events.lane == 0)
    by_end = caller[np.argsort(end_s[caller], kind="stable")]
    pairs = []
    for lane in np.unique(events.lane[top]).tolist():
        worker = top[events.lane[top] == lane]
        after = np.searchsorted(start_s[caller], end_s[worker])
        before = np.searchsorted(end_s[by_end], start_s[worker], side="right") - 1
        for burst in np.split(np.arange(len(worker)), np.flatnonzero(np.diff(after)) + 1):
            first, last = burst[0], burst[-1]
            if before[first] >= 0:
                pairs.append((int(worker[first]), int(by_end[before[first]])))
            if after[last] < len(caller):
                pairs.append((int(caller[after[last]]), int(worker[last])))
    return pairs


class _Waits:
    """Dependencies by waiting; all pairs are (waiting event, awaited event)."""

    def __init__(self, reading: Reading) -> None:
        self._reading, self._start_s, self._end_s = reading, reading.events.start_s, reading.events.end_s
        self._is_communication = reading.events.collective > 0
        self._devices = [lane for lane, what in enumerate(reading.lanes) if what.kind == LaneKind.DEVICE]
        self._events: dict[int, np.ndarray] = {}
        """Lane → its events in order; `_launched_s` has their launch times, as a stream runs them in launch order."""
        self._launched_s: dict[int, np.ndarray] = {}
        for lane in self._devices:
            events = np.flatnonzero(reading.events.lane == lane)
            calls = np.where(reading.launch_of[events] != NONE, reading.launch_of[events], events)
            self._events[lane], self._launched_s[lane] = events, np.maximum.accumulate(self._start_s[calls])
        self._lane_of_stream = {reading.lane_keys[lane][1]: lane for lane in self._devices}

    def _calls(self, word: str) -> list[int]:
        """Return runtime calls whose names contain `word`."""
        return self._reading.where(lambda category, name: category == "runtime" and word in name).tolist()

    def _last_before(self, lane: int, at_s: float) -> int | None:
        """Return the last event on a stream that was launched before `at_s`."""
        place = int(np.searchsorted(self._launched_s[lane], at_s)) - 1
        return int(self._events[lane][place]) if place >= 0 else None

    def _first_after(self, lane: int, at_s: float) -> int | None:
        place = int(np.searchsorted(self._launched_s[lane], at_s))
        return int(self._events[lane][place]) if place < len(self._events[lane]) else None

    def recorded(self) -> list[tuple[int, int]]:
        """Return waits from `cuda_sync` events and from calls that are explicit by themselves."""
        reading, pairs = self._reading, []
        records = {int(reading.correlation[call]): call for call in self._calls("EventRecord")}
        for call in self._calls("Synchronize"):
            pairs += [(call, event) for event in self._synchronized(call, records)]
        for call in self._calls("StreamWaitEvent"):
            sync = reading.syncs.get(int(reading.correlation[call]))
            if sync is None or sync.stream is None or sync.waits_on_stream is None:
                continue
            waiting, awaited = (self._lane_of_stream.get(stream) for stream in (sync.stream, sync.waits_on_stream))
            record = records.get(int(sync.waits_on_record or -1))
            if waiting is None or awaited is None or record is None:
                continue
            later = self._first_after(waiting, self._start_s[call])
            sooner = self._last_before(awaited, self._start_s[record])
            if later is not None and sooner is not None:
                pairs.append((later, sooner))
        return pairs

    def _synchronized(self, call: int, records: dict[int, int]) -> list[int]:
        """Return what a host thread waits for in a `…Synchronize`."""
        reading = self._reading
        at_s = float(self._start_s[call])
        sync = reading.syncs.get(int(reading.correlation[call]))
        lanes = self._devices
        if sync is not None and sync.sync == "Event Sync" and sync.waits_on_stream in self._lane_of_stream:
            lanes = [self._lane_of_stream[sync.waits_on_stream]]
            record = records.get(int(sync.waits_on_record or -1))
            at_s = float(self._start_s[record]) if record is not None else at_s
        elif sync is not None and sync.stream in self._lane_of_stream:
            lanes = [self._lane_of_stream[sync.stream]]
        elif "Device" not in reading.name(call):
            return self._ended_with(call)
        return [event for lane in lanes if (event := self._last_before(lane, at_s)) is not None]

    def _ended_with(self, call: int) -> list[int]:
        """Return the stream event that ended a wait for an unknown stream, if any."""
        candidates = (self._last_before(lane, self._start_s[call]) for lane in self._devices)
        made_it_wait = [
            event
            for event in candidates
            if event is not None and self._start_s[call] < self._end_s[event] <= self._end_s[call] + _SLACK_S
        ]
        return sorted(made_it_wait, key=lambda event: self._end_s[event])[-1:]

    def inferred(self) -> list[tuple[int, int]]:
        """Return inferred waits, if CUDA recorded none. c10d makes its stream wait for all work of the caller's stream
        so far, and `Work.wait` makes the caller's stream wait for the collective, each by a cudaStreamWaitEvent. A host
        backend's streams copy tensors down and results up."""
        reading = self._reading
        if reading.syncs or not self._is_communication.any():
            return []
        others = [lane for lane in self._devices if not self._is_communication[self._events[lane]].any()]
        if not others:
            return []
        compute = max(others, key=lambda lane: len(self._events[lane]))
        begins, ends, starting = self._on_streams(apart_from=compute)
        pairs = []
        for event in begins:
            sooner = self._last_before(compute, float(self._start_s[reading.launch_of[event]]))
            if sooner is not None and self._end_s[sooner] <= self._start_s[event] + _SLACK_S:
                pairs.append((event, sooner))
        launched_s = np.array([self._start_s[reading.launch_of[event]] for event in ends])
        # Calls that belong to no launch of communication.
        for call in (call for call in self._calls("StreamWaitEvent") if self._outermost(call) not in starting):
            later = self._first_after(compute, float(self._start_s[call]))
            if later is None:
                continue
            for place in range(int(np.searchsorted(launched_s, self._start_s[call])) - 1, -1, -1):
                if self._end_s[ends[place]] <= self._start_s[later] + _SLACK_S:
                    pairs.append((later, ends[place]))
                    break
        return pairs

    def _on_streams(self, apart_from: int) -> tuple[list[int], list[int], set[int]]:
        """Return the events by which communication starts and ends on streams other than `apart_from`, in launch order,
        and the host events that launch them. A kernel is both."""
        reading = self._reading
        is_kernel, is_copy = self._is_communication, reading.events.what == What.COPY
        on_device = np.isin(reading.events.lane, [lane for lane in self._devices if lane != apart_from])
        on_device &= reading.launch_of != NONE
        begins, ends, starting = [], [], set()
        events = np.flatnonzero(on_device & (is_kernel | is_copy))
        for event in events[np.argsort(self._start_s[reading.launch_of[events]], kind="stable")].tolist():
            outer = self._outermost(int(reading.launch_of[event]))
            by_work = outer != NONE and BY_HOST.match(reading.name(outer)) is not None
            if is_kernel[event] or (outer != NONE and not by_work):
                begins.append(event)
            if is_kernel[event] or by_work:
                ends.append(event)
            starting |= {outer} - {NONE}
        return begins, ends, starting

    def _outermost(self, event: int) -> int:
        """Return the outermost c10d operator or communication annotation around an event."""
        names = ("c10d::", "record_param_comms", "nccl:")
        around = [
            one
            for one in self._reading.events.around(event)
            if self._reading.name(one).startswith(names) or BY_HOST.match(self._reading.name(one))
        ]
        return around[-1] if around else NONE
