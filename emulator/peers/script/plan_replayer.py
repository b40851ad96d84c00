"""Replays iterations as compiled: one eager iteration is recorded, and later ones are matched with it operator by
operator, so that the plan derived from it (`fusion.py`) determines their kernels and which of their tensors exist."""

import heapq
from collections.abc import Callable, Iterator, Sequence

from emulator.peers.script.costs import Costs
from emulator.peers.script.fusion import Launch, Plan, Recording, Segment, Step, plan
from emulator.peers.script.operators import Operator

_AHEAD = 64
"""Largest number of consecutive launches of a plan that may be skipped."""
_FEW = 20
"""Reciprocal of the largest share of launches that may be missing or additional."""


class PlanReplayer:
    """Records an iteration, and replays later ones by the plan derived from it. Additional operators, as of scripts
    that log every tenth iteration, run eagerly."""

    def __init__(self, costs: Costs):
        self._costs = costs
        self._recording: Recording | None = None
        self._plan: Plan | None = None
        self._next = 0
        self._now: int | None = None
        """Index of the current launch in the plan; None: not in the plan."""
        self._allocated = 0
        self._newest = -1
        self._skipped = 0
        self._until: dict[int, int] = {}
        self._late: list[tuple[int, int]] = []
        """(launch, storage) of memory that is freed later than the script frees it."""

    @property
    def is_ready(self) -> bool:
        """Whether a plan has been derived from a recorded iteration."""
        return self._plan is not None

    @property
    def has_diverged(self) -> bool:
        """Whether iterations differ too much for one plan."""
        return self._plan is not None and self._skipped > len(self._plan.operators) // _FEW

    def begin(self) -> None:
        """Begin an iteration: the first is recorded, later ones are replayed by its plan."""
        if self._recording is not None and self._plan is None:
            self._plan = plan(self._recording, self._costs)
        if self._recording is None:
            self._recording = Recording()
        self._next = self._allocated = self._skipped = 0
        self._until.clear()
        self._late = [(-1, number) for _, number in self._late]

    def launch(
        self, operator: Operator, segment: Segment | None, storages: Callable[[], tuple[int | None, ...]]
    ) -> Step | None:
        """Return the step that replaces an operator; None: run it eagerly."""
        self._allocated, self._now = 0, None
        if self._plan is None:
            if self._recording is not None:
                self._recording.launches.append(Launch(operator, segment, storages()))
            return None
        for place in range(self._next, min(self._next + _AHEAD, len(self._plan.operators))):
            before = self._plan.operators[place]
            # Ignoring options, such as a changing learning rate.
            if before is operator or (before.name, before.inputs) == (operator.name, operator.inputs):
                self._skipped += place - self._next
                self._now, self._next = place, place + 1
                return self._plan.steps[place]
        self._skipped += 1
        return None

    def allocate(self, number: int) -> bool:
        """Return whether the tensor of a new storage, the next output of the last launched operator, exists as
        compiled."""
        if number <= self._newest:  # memory of an older storage that was released
            return True
        self._allocated, self._newest = self._allocated + 1, number
        if self._plan is not None:
            where = (-1 if self._now is None else self._now, self._allocated - 1)
            if where in self._plan.until:
                self._until[number] = self._plan.until[where]
            return where not in self._plan.absent
        if self._recording is not None and self._recording.launches:
            self._recording.launches[-1].made.append(number)
        return True

    def free(self, number: int) -> bool:
        """Record that a storage is freed; return False if its memory is still needed."""
        if self._recording is not None and self._plan is None:
            self._recording.freed[number] = len(self._recording.launches)
        until = self._until.pop(number, -1)
        if until >= self._next:
            heapq.heappush(self._late, (until, number))
            return False
        return True

    def late(self) -> Iterator[int]:
        """Yield storages whose deferred release is due."""
        while self._late and self._late[0][0] < self._next:
            yield heapq.heappop(self._late)[1]

    def share(self, numbers: Sequence[int | None]) -> None:
        """Record storages that a collective uses."""
        if self._recording is not None and self._plan is None:
            self._recording.shared.update(number for number in numbers if number is not None)
