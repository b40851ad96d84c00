"""Detection of ranks that disagree on their collectives or the order of them (docs/protocol.md, section 11): two queues
share no slot, so no packet shows that one rank waits in one queue and another rank in the other; and if packets show
that calls differ, they do not say which calls.

A rank whose call stalls, or differs, reports its calls. The statements of a report remain true for the calls so far, so
two contradictory reports prove a disagreement, whenever they were made: a slow rank contradicts no other.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_QUEUES = 2
MAX_WORDS = 80
"""Maximum characters of a call's description shown to others."""


@dataclass(frozen=True)
class QueueReport:
    """A rank's calls in one queue: `calls` so far; of them, `awaited` is the first that is not done (equal to `calls`
    if all are), `index` its number among the calls of all queues, and `what` its description, equal on all ranks."""

    calls: int
    awaited: int
    index: int = 0
    what: str = ""

    @property
    def waits(self) -> bool:
        return self.awaited < self.calls


@dataclass(frozen=True)
class Report:
    """A rank's calls up to its latest one; `queues[q]` are in the same order on all ranks."""

    queues: tuple[QueueReport, ...]

    @property
    def calls(self) -> int:
        return sum(queue.calls for queue in self.queues)

    def lacks(self, number: int, call: QueueReport) -> bool:
        """Whether this rank has made later calls than `call`, a call of queue `number`, but not this one."""
        mine = self.queues[number].calls if number < len(self.queues) else call.calls
        return call.waits and mine <= call.awaited and self.calls > call.index

    def differs(self, number: int, call: QueueReport) -> bool:
        """Whether this rank waits at the same position of queue `number` as `call`, but in a different call."""
        if number >= len(self.queues):
            return False
        mine = self.queues[number]
        return mine.waits and mine.awaited == call.awaited and mine.what != call.what

    def __str__(self) -> str:
        waiting = [queue for queue in self.queues if queue.waits]
        first = min(waiting, key=lambda queue: queue.index, default=None)
        return f"waits in its call {first.index}, {_shown(first.what)}" if first else f"has made {self.calls} calls"


@dataclass
class Reports:
    """The latest reports of a job's ranks, by part and rank."""

    _of: dict[int, dict[int, Report]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, part: int, rank: int, report: Report) -> str:
        """Add a rank's report; returns a description of a contradiction with other reports, or ""."""
        self._of[part][rank] = report
        return _contradiction(self._of[part], rank)


def _contradiction(reports: Mapping[int, Report], rank: int) -> str:
    """Describe a contradiction between the report of `rank` and one of the others, or return ""."""
    ours = reports[rank]
    for other, theirs in sorted(reports.items()):
        for waits, lacks, waiting, lacking in ((rank, other, ours, theirs), (other, rank, theirs, ours)):
            for number, call in enumerate(waiting.queues):
                if call.waits and lacking.differs(number, call):
                    other_call = lacking.queues[number]
                    return (
                        f"rank {waits} waits in its call {call.index}, {_shown(call.what)}, and rank {lacks} in its "
                        f"call {other_call.index}, {_shown(other_call.what)}, where both should be the same"
                    )
                if lacking.lacks(number, call):
                    return (
                        f"rank {waits} waits in its call {call.index}, {_shown(call.what)}, which rank {lacks} has not "
                        f"called: it {lacking}"
                    )
    return ""


def _shown(what: str) -> str:
    """An untrusted description, sanitized for a message."""
    return "".join(character for character in what[:MAX_WORDS] if character.isprintable()) or "a collective"
