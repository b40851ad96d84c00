"""Attribution of memory at its peak to uses."""

from collections import Counter
from collections.abc import Iterator
from enum import IntEnum
from itertools import groupby
from typing import NamedTuple


class Phase(IntEnum):
    """Phase of an iteration in which memory is allocated."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2


_USES = {
    Phase.FORWARD: "activations",
    Phase.BACKWARD: "temporaries of backward",
    Phase.OPTIMIZER: "temporaries of the optimizer",
}


class _Event(NamedTuple):
    """Allocation of `bytes` for block `number`, or its release if 0, at `at_s` on the host's clock. `reserved_bytes`:
    reserved by the allocator afterwards."""

    number: int
    bytes: int
    at_s: float
    reserved_bytes: int


class Ledger:
    """Records every allocation in order. `mark` sets a block's use; that of others follows from the phase of their
    allocation."""

    def __init__(self) -> None:
        self._events: list[_Event] = []
        self._phases: dict[int, Phase] = {}
        self._modules: dict[int, str] = {}
        self._sizes: dict[int, int] = {}
        self._live: set[int] = set()
        self._from_before: set[int] = set()
        self._uses: dict[int, str] = {}
        self._allocated = self._peak = self._peak_at = 0

    def allocated(self, number: int, bytes: int, phase: Phase, module: str, at_s: float, reserved_bytes: int) -> None:
        """Record that block `number` is allocated while an operator of `module` runs."""
        self._events.append(_Event(number, bytes, at_s, reserved_bytes))
        self._phases[number], self._sizes[number], self._modules[number] = phase, bytes, module
        self._live.add(number)
        self._allocated += bytes
        if self._allocated > self._peak:
            self._peak, self._peak_at = self._allocated, len(self._events)

    def freed(self, number: int, at_s: float, reserved_bytes: int) -> None:
        """Record that block `number` is freed."""
        if number in self._live:
            self._live.remove(number)
            self._events.append(_Event(number, 0, at_s, reserved_bytes))
            self._allocated -= self._sizes[number]

    def mark(self, number: int, use: str) -> None:
        """Set the use of block `number`."""
        self._uses[number] = use

    def mark_rest(self, use: str) -> None:
        """End an iteration: blocks still in use since before it are for `use`, unless already marked."""
        for number in self._live & self._from_before:
            self._uses.setdefault(number, use)
        self._from_before = set(self._live)

    def restart(self) -> None:
        """Restart the peak."""
        self._peak, self._peak_at = self._allocated, len(self._events)

    def at_peak(self) -> dict[str, int]:
        """Return bytes by use at the peak, in falling order."""
        total: Counter[str] = Counter()
        for number, size in self._live_at_peak().items():
            total[self._use(number)] += size
        return dict(total.most_common())

    def timeline(self, from_s: float) -> Iterator[tuple[float, dict[str, int], int]]:
        """Yield (seconds, bytes by use, reserved bytes) after allocations and releases from `from_s` on. Of several at
        the same time: the state with most bytes allocated, and the final one a nanosecond later."""
        used, sizes = dict.fromkeys(map(self._use, self._sizes), 0), dict[int, int]()
        for at_s, events in groupby(self._events, key=lambda event: event.at_s):
            most, most_bytes = (dict(used), 0), -1
            for event in events:
                used[self._use(event.number)] += event.bytes - sizes.get(event.number, 0)
                sizes[event.number] = event.bytes
                if (total := sum(used.values())) > most_bytes:
                    most, most_bytes = (dict(used), event.reserved_bytes), total
            if at_s >= from_s:
                yield at_s, *most
                if most[0] != used:
                    yield at_s + 1e-9, dict(used), event.reserved_bytes

    def activations_at_peak(self) -> dict[str, int]:
        """Return bytes of activations by module at the peak, in falling order."""
        total: Counter[str] = Counter()
        for number, size in self._live_at_peak().items():
            if self._use(number) == _USES[Phase.FORWARD]:
                total[self._modules[number]] += size
        return dict(total.most_common())

    def _use(self, number: int) -> str:
        return "workspaces" if number < 0 else self._uses.get(number, _USES[self._phases[number]])

    def _live_at_peak(self) -> dict[int, int]:
        live: dict[int, int] = {}
        for event in self._events[: self._peak_at]:
            if event.bytes:
                live[event.number] = event.bytes
            else:
                live.pop(event.number, None)
        return live
