"""Attribution of memory at its peak to uses."""

from collections import Counter
from enum import IntEnum


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


class Ledger:
    """Records every allocation in order. `mark` sets a block's use; that of others follows from the phase of their
    allocation."""

    def __init__(self) -> None:
        self._events: list[tuple[int, int]] = []
        self._phases: dict[int, Phase] = {}
        self._modules: dict[int, str] = {}
        self._sizes: dict[int, int] = {}
        self._live: set[int] = set()
        self._from_before: set[int] = set()
        self._uses: dict[int, str] = {}
        self._allocated = self._peak = self._peak_at = 0

    def allocated(self, number: int, bytes: int, phase: Phase, module: str) -> None:
        """Record that block `number` is allocated while an operator of `module` runs."""
        self._events.append((number, bytes))
        self._phases[number], self._sizes[number], self._modules[number] = phase, bytes, module
        self._live.add(number)
        self._allocated += bytes
        if self._allocated > self._peak:
            self._peak, self._peak_at = self._allocated, len(self._events)

    def freed(self, number: int) -> None:
        """Record that block `number` is freed."""
        if number in self._live:
            self._live.remove(number)
            self._events.append((number, 0))
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
        for number, size in self._events[: self._peak_at]:
            if size:
                live[number] = size
            else:
                live.pop(number, None)
        return live
