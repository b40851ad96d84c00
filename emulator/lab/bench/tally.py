"""Repeats of a case in which all backends alternate, and each backend's totals."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

from emulator.lab.bench.ranks.reducing import GAUGES, SWITCHML
from emulator.lab.bench.ranks.team import ReducingTeam, Repeat
from emulator.lab.bench.sizes import MIN_REPEATS, Case

Survey = Mapping[str, Mapping[str, float]]
"""Counters of processes and links besides the ranks, by kind and name: an aggregator's process, queues of links."""


def _add_to(totals: dict[str, float], more: Mapping[str, float]) -> None:
    """Add the values of `more` to those of `totals`, by name."""
    for name, value in more.items():
        totals[name] = totals.get(name, 0) + value


@dataclass
class Tally:
    """Totals over one backend's repeats, warm-up excluded."""

    seconds: list[float] = field(default_factory=list)
    """Seconds of the slowest rank, for each repeat."""
    samples: int = 0
    """Number of ranks times repeats."""
    error: float = 0.0
    """The largest absolute difference of an element from the exact sum."""
    largest: float = 0.0
    """The largest magnitude of an exact sum, the reference of `relative_error`."""
    checksum: int = 0
    """Checksum of the last result's bits."""
    usage: dict[str, float] = field(default_factory=dict)
    """user_s, system_s, voluntary and involuntary context switches, summed over all ranks and repeats."""
    agents: dict[str, float] = field(default_factory=dict)
    """Counters of `HostAgent.stats()`, summed over all ranks and repeats; gauges: maximum over ranks in the last
    repeat."""
    surveyed: dict[str, dict[str, float]] = field(default_factory=dict)
    """Increase of the survey's counters over all repeats."""

    @property
    def median_s(self) -> float:
        return median(self.seconds)

    @property
    def mean_usage(self) -> dict[str, float]:
        """`usage` of one rank in one repeat."""
        return {name: total / self.samples for name, total in self.usage.items()}

    @property
    def relative_error(self) -> float:
        return self.error / self.largest if self.largest else 0.0

    @property
    def cpu_seconds(self) -> dict[str, float]:
        """CPU seconds over all repeats: of each surveyed process, and of all ranks together."""
        return self.surveyed["cpu_seconds"] | {"ranks": self.usage["user_s"] + self.usage["system_s"]}

    def add(self, repeat: Repeat, before: Survey, after: Survey) -> None:
        """Add a repeat, and the increase of counters between two surveys."""
        self.seconds.append(repeat.seconds)
        self.samples += len(repeat.samples)
        self.error = max(self.error, repeat.error)
        self.largest, self.checksum = repeat.samples[0].largest, repeat.samples[0].checksum
        for sample in repeat.samples:
            _add_to(self.usage, sample.usage)
            _add_to(self.agents, {name: value for name, value in sample.agent.items() if name not in GAUGES})
        for name in repeat.samples[0].agent.keys() & set(GAUGES):
            self.agents[name] = max(sample.agent[name] for sample in repeat.samples)
        for kind, counts in after.items():
            grown = {name: count - before[kind][name] for name, count in counts.items()}
            _add_to(self.surveyed.setdefault(kind, {}), grown)

    def packets_as_json(self) -> dict[str, int]:
        """Packets that the agents sent, and the retransmissions among them."""
        counts = self.packets("sent", "retransmitted")
        return {"packets": counts["sent"], "retransmitted": counts["retransmitted"]}

    def packets(self, *names: str) -> dict[str, int]:
        """Agent counters by name, 0 where missing."""
        return {name: int(self.agents.get(name, 0)) for name in names}


def take_turns(
    team: ReducingTeam,
    case: Case,
    backends: Iterable[str],
    *,
    survey: Callable[[], Survey] = dict,
    on_repeat: Callable[[int, str, Repeat], None] = lambda number, backend, repeat: None,
) -> dict[str, Tally]:
    """Run all repeats of a case. Each backend runs once in each repeat, so the times of a repeat are measured under
    similar machine load. `survey()`: counters before and after each run. `on_repeat(number, backend, repeat)`: called
    after each; numbers of the warm-up, which no tally includes, are below 0. Raises RanksDisagree or JobError if a
    result is wrong, PeerLost if a rank dies."""
    team.prepare(case)
    tallies = {backend: Tally() for backend in backends}
    started = time.monotonic()
    for number in range(-case.warmup, case.repeats):
        if number >= MIN_REPEATS and time.monotonic() - started > case.budget_s:
            break
        for backend, tally in tallies.items():
            before = survey()
            repeat = team.repeat(backend)
            after = survey()
            on_repeat(number, backend, repeat)
            if number >= 0:
                tally.add(repeat, before, after)
    return tallies


def ratios(of: Tally, to: Tally) -> list[float]:
    """Time of `of` over the time of `to`, repeat by repeat."""
    return [theirs / ours for theirs, ours in zip(of.seconds, to.seconds, strict=False)]


def median_ratio(tallies: Mapping[str, Tally], backend: str) -> float | None:
    """A backend's time over switchml's, the median of the pairs: above 1, switchml is faster. None if either was not
    measured."""
    if backend not in tallies or SWITCHML not in tallies:
        return None
    return median(ratios(tallies[backend], tallies[SWITCHML]))
