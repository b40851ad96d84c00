"""What memory is used for when most of it is allocated."""

from collections import Counter
from enum import IntEnum


class Phase(IntEnum):
    """Of an iteration, in which memory is taken."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2


_USES = {
    Phase.FORWARD: "activations",
    Phase.BACKWARD: "temporaries of backward",
    Phase.OPTIMIZER: "temporaries of the optimizer",
}


class Ledger:
    """Every allocation in order. `mark` says what one is for; the others are told by when they were made."""

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
        """Block `number` is taken while an operator of `module` runs."""
        self._events.append((number, bytes))
        self._phases[number], self._sizes[number], self._modules[number] = phase, bytes, module
        self._live.add(number)
        self._allocated += bytes
        if self._allocated > self._peak:
            self._peak, self._peak_at = self._allocated, len(self._events)

    def freed(self, number: int) -> None:
        """Block `number` is given back."""
        if number in self._live:
            self._live.remove(number)
            self._events.append((number, 0))
            self._allocated -= self._sizes[number]

    def mark(self, number: int, use: str) -> None:
        """Block `number` is for `use`."""
        self._uses[number] = use

    def mark_rest(self, use: str) -> None:
        """An iteration ends: blocks from before it that are still in use are for `use`, unless they have one."""
        for number in self._live & self._from_before:
            self._uses.setdefault(number, use)
        self._from_before = set(self._live)

    def restart(self) -> None:
        """The peak is that of what follows."""
        self._peak, self._peak_at = self._allocated, len(self._events)

    def at_peak(self) -> dict[str, int]:
        """Bytes by use when most was allocated, the largest first."""
        total: Counter[str] = Counter()
        for number, size in self._live_at_peak().items():
            total[self._use(number)] += size
        return dict(total.most_common())

    def activations_at_peak(self) -> dict[str, int]:
        """Bytes of activations by module when most was allocated, the largest first."""
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
