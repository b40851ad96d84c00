"""Plays iterations as compiled: one is taken in as it is, and others are matched with it, operator by operator, so that
the plan made of it (`fusion.py`) says what kernels they launch and which of their tensors exist."""

import heapq
from collections.abc import Callable, Iterator, Sequence

from emulator.peers.script.costs import Costs
from emulator.peers.script.fusion import Launch, Plan, Recording, Segment, Step, plan
from emulator.peers.script.operators import Operator

_AHEAD = 64
"""Launches of a plan that may be missing in a row."""
_FEW = 20
"""Of so many launches one may be missing, or be new."""


class Follower:
    """Takes an iteration in, and plays later ones by the plan made of it. What one has beside that, as scripts that log
    every tenth, is done eagerly."""

    def __init__(self, costs: Costs):
        self._costs = costs
        self._recording: Recording | None = None
        self._plan: Plan | None = None
        self._next = 0
        self._now: int | None = None
        """Which launch of the plan is played; None: one that it has not."""
        self._made = 0
        self._newest = -1
        self._strayed = 0
        self._until: dict[int, int] = {}
        self._late: list[tuple[int, int]] = []
        """(launch, storage) of what is given back later than the script gives it back."""

    @property
    def is_ready(self) -> bool:
        """Whether there is a plan."""
        return self._plan is not None

    @property
    def has_strayed(self) -> bool:
        """Whether iterations are too different for one plan."""
        return self._plan is not None and self._strayed > len(self._plan.operators) // _FEW

    def begin(self) -> None:
        """An iteration begins: the first is recorded, those that follow are played by its plan."""
        if self._recording is not None and self._plan is None:
            self._plan = plan(self._recording, self._costs)
        if self._recording is None:
            self._recording = Recording()
        self._next = self._made = self._strayed = 0
        self._until.clear()
        self._late = [(-1, number) for _, number in self._late]

    def launch(
        self, operator: Operator, segment: Segment | None, storages: Callable[[], tuple[int | None, ...]]
    ) -> Step | None:
        """What to do for an operator; None: what is done eagerly."""
        self._made, self._now = 0, None
        if self._plan is None:
            if self._recording is not None:
                self._recording.launches.append(Launch(operator, segment, storages()))
            return None
        for place in range(self._next, min(self._next + _AHEAD, len(self._plan.operators))):
            before = self._plan.operators[place]
            # Options aside, as a learning rate changes.
            if before is operator or (before.name, before.inputs) == (operator.name, operator.inputs):
                self._strayed += place - self._next
                self._now, self._next = place, place + 1
                return self._plan.steps[place]
        self._strayed += 1
        return None

    def allocate(self, number: int) -> bool:
        """Whether there is a tensor for a storage that is made: the next of the operator that was launched last."""
        if number <= self._newest:  # memory of an old one, which had been given back
            return True
        self._made, self._newest = self._made + 1, number
        if self._plan is not None:
            where = (-1 if self._now is None else self._now, self._made - 1)
            if where in self._plan.until:
                self._until[number] = self._plan.until[where]
            return where not in self._plan.absent
        if self._recording is not None and self._recording.launches:
            self._recording.launches[-1].made.append(number)
        return True

    def free(self, number: int) -> bool:
        """A storage is given back; False: that has to wait."""
        if self._recording is not None and self._plan is None:
            self._recording.freed[number] = len(self._recording.launches)
        until = self._until.pop(number, -1)
        if until >= self._next:
            heapq.heappush(self._late, (until, number))
            return False
        return True

    def late(self) -> Iterator[int]:
        """Storages that had to wait and need not any more."""
        while self._late and self._late[0][0] < self._next:
            yield heapq.heappop(self._late)[1]

    def share(self, numbers: Sequence[int | None]) -> None:
        """A collective uses storages."""
        if self._recording is not None and self._plan is None:
            self._recording.shared.update(number for number in numbers if number is not None)
