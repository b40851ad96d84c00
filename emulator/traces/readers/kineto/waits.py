"""What streams and host threads of an accelerator wait for. CUDA's profiler can record it
(`cuda_sync` events: which stream, which recorded event); else it is inferred from what c10d and streams do, where the
times of the trace agree.
"""

from __future__ import annotations

import numpy as np

from emulator.traces.events import NONE, LaneKind
from emulator.traces.readers.kineto.communication import Communication
from emulator.traces.readers.kineto.reading import Reading

_SLACK_S = 2e-6
"""Old traces round to whole microseconds."""


class Waits:
    """All pairs are (what waits, what it waits for)."""

    def __init__(self, reading: Reading, communication: Communication) -> None:
        self._reading = reading
        self._launch_of = reading.launch_of()
        self._end_s = reading.start_s + reading.duration_s
        self._communication = communication
        self._is_communication = communication.collective > 0
        self._devices = [lane for lane, what in enumerate(reading.lanes) if what.kind == LaneKind.DEVICE]
        self._events: dict[int, np.ndarray] = {}
        """Lane → its events in order, and below when each was launched: a stream takes them in that order."""
        self._launched_s: dict[int, np.ndarray] = {}
        for lane in self._devices:
            events = np.flatnonzero(reading.lane == lane)
            calls = np.where(self._launch_of[events] != NONE, self._launch_of[events], events)
            self._events[lane], self._launched_s[lane] = events, np.maximum.accumulate(reading.start_s[calls])
        self._lane_of_stream = {reading.lane_keys[lane][1]: lane for lane in self._devices}
        self._calls = self._runtime_calls()

    def _runtime_calls(self) -> dict[str, np.ndarray]:
        """Events of the calls that matter here."""
        names = [str(name) if category == "runtime" else "" for category, name in self._reading.kinds]
        calls = {}
        for word in ("Synchronize", "StreamWaitEvent", "EventRecord"):
            kinds = [kind for kind, name in enumerate(names) if word in name]
            calls[word] = np.flatnonzero(np.isin(self._reading.kind, kinds))
        return calls

    def _last_before(self, lane: int, at_s: float) -> int | None:
        """The last event on a stream that was launched before `at_s`."""
        place = int(np.searchsorted(self._launched_s[lane], at_s)) - 1
        return int(self._events[lane][place]) if place >= 0 else None

    def _first_after(self, lane: int, at_s: float) -> int | None:
        place = int(np.searchsorted(self._launched_s[lane], at_s))
        return int(self._events[lane][place]) if place < len(self._events[lane]) else None

    def recorded(self) -> list[tuple[int, int]]:
        """From `cuda_sync` events and from calls that say everything themselves."""
        reading, pairs = self._reading, []
        records = {int(reading.correlation[call]): call for call in self._calls["EventRecord"].tolist()}
        for call in self._calls["Synchronize"].tolist():
            pairs += [(call, event) for event in self._synchronized(call, records)]
        for call in self._calls["StreamWaitEvent"].tolist():
            sync = reading.table.syncs.get(int(reading.correlation[call]))
            if sync is None or sync.stream is None or sync.waits_on_stream is None:
                continue
            waiting, awaited = (self._lane_of_stream.get(stream) for stream in (sync.stream, sync.waits_on_stream))
            record = records.get(int(sync.waits_on_record or -1))
            if waiting is None or awaited is None or record is None:
                continue
            later = self._first_after(waiting, reading.start_s[call])
            sooner = self._last_before(awaited, reading.start_s[record])
            if later is not None and sooner is not None:
                pairs.append((later, sooner))
        return pairs

    def _synchronized(self, call: int, records: dict[int, int]) -> list[int]:
        """What a host thread waits for in a `…Synchronize`."""
        reading = self._reading
        at_s = float(reading.start_s[call])
        sync = reading.table.syncs.get(int(reading.correlation[call]))
        name = str(reading.kinds[reading.kind[call]][1])
        lanes = self._devices
        if sync is not None and sync.sync == "Event Sync" and sync.waits_on_stream in self._lane_of_stream:
            lanes = [self._lane_of_stream[sync.waits_on_stream]]
            record = records.get(int(sync.waits_on_record or -1))
            at_s = float(reading.start_s[record]) if record is not None else at_s
        elif sync is not None and sync.stream in self._lane_of_stream:
            lanes = [self._lane_of_stream[sync.stream]]
        elif "Device" not in name:
            return self._ended_with(call)
        return [event for lane in lanes if (event := self._last_before(lane, at_s)) is not None]

    def _ended_with(self, call: int) -> list[int]:
        """Which stream is synchronized is unknown: the one that made the call wait, if any."""
        candidates = (self._last_before(lane, self._reading.start_s[call]) for lane in self._devices)
        made_it_wait = [
            event
            for event in candidates
            if event is not None and self._reading.start_s[call] < self._end_s[event] <= self._end_s[call] + _SLACK_S
        ]
        return sorted(made_it_wait, key=lambda event: self._end_s[event])[-1:]

    def inferred(self) -> list[tuple[int, int]]:
        """Where CUDA recorded nothing. c10d lets its stream wait for all that the caller's stream has been given so
        far; and `Work.wait` lets the caller's stream wait for the collective, by a cudaStreamWaitEvent of its own."""
        reading = self._reading
        if reading.table.syncs or not self._is_communication.any():
            return []
        devices = set(self._devices)
        kernels = [event for event in np.flatnonzero(self._is_communication).tolist() if reading.lane[event] in devices]
        kernels = [event for event in kernels if self._launch_of[event] != NONE]
        others = [lane for lane in self._devices if not self._is_communication[self._events[lane]].any()]
        if not kernels or not others:
            return []
        compute = max(others, key=lambda lane: len(self._events[lane]))
        kernels.sort(key=lambda event: reading.start_s[self._launch_of[event]])
        launched_s = np.array([reading.start_s[self._launch_of[event]] for event in kernels])

        pairs = []
        for event, at_s in zip(kernels, launched_s.tolist(), strict=True):
            sooner = self._last_before(compute, at_s)
            if sooner is not None and self._end_s[sooner] <= reading.start_s[event] + _SLACK_S:
                pairs.append((event, sooner))
        for call in self._awaits(kernels):
            later = self._first_after(compute, float(reading.start_s[call]))
            if later is None:
                continue
            for place in range(int(np.searchsorted(launched_s, reading.start_s[call])) - 1, -1, -1):
                if self._end_s[kernels[place]] <= reading.start_s[later] + _SLACK_S:
                    pairs.append((later, kernels[place]))
                    break
        return pairs

    def _awaits(self, kernels: list[int]) -> list[int]:
        """Calls of cudaStreamWaitEvent that belong to no launch of communication: those of `Work.wait`."""
        starting = set()
        for event in kernels:
            outer = self._outermost_c10d(int(self._launch_of[event]))
            if outer is not None:
                starting.add(outer)
        return [call for call in self._calls["StreamWaitEvent"].tolist() if self._outermost_c10d(call) not in starting]

    def _outermost_c10d(self, event: int) -> int | None:
        reading, outermost = self._reading, None
        while (event := int(reading.parent[event])) >= 0:
            if str(reading.kinds[reading.kind[event]][1]).startswith(("c10d::", "record_param_comms", "nccl:")):
                outermost = event
        return outermost
