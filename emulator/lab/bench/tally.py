"""What the repeats of one backend add up to."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from emulator.lab.bench.ranks.reducing import GAUGES, SWITCHML
from emulator.lab.bench.ranks.team import Repeat


def add_to(totals: dict, more: dict) -> None:
    """Add the values of `more` to those of `totals`, name by name."""
    for name, value in more.items():
        totals[name] = totals.get(name, 0) + value


@dataclass
class Tally:
    """Repeats of one backend, warm-up excluded."""

    seconds: list[float] = field(default_factory=list)
    """Of the slowest rank, for each repeat."""
    samples: int = 0
    """Ranks times repeats."""
    error: float = 0.0
    """The largest absolute difference of an element from the exact sum."""
    largest: float = 0.0
    """The largest magnitude of an exact sum: what `error` is relative to."""
    checksum: int = 0
    """Of the last result: equal for results with the same bits."""
    usage: dict[str, float] = field(default_factory=dict)
    """user_s, system_s, voluntary and involuntary context switches of all ranks and repeats together."""
    agents: dict[str, float] = field(default_factory=dict)
    """`HostAgent.stats()` of all ranks and repeats together; gauges are those of the last repeat, the largest."""

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

    def add(self, repeat: Repeat) -> None:
        """Count a repeat."""
        self.seconds.append(repeat.seconds)
        self.samples += len(repeat.samples)
        self.error = max(self.error, repeat.error)
        self.largest, self.checksum = repeat.samples[0].largest, repeat.samples[0].checksum
        for sample in repeat.samples:
            add_to(self.usage, sample.usage)
            add_to(self.agents, {name: value for name, value in sample.agent.items() if name not in GAUGES})
        for name in repeat.samples[0].agent.keys() & set(GAUGES):
            self.agents[name] = max(sample.agent[name] for sample in repeat.samples)

    def packets_as_json(self) -> dict[str, int]:
        """Packets that the agents sent, and how many of them were retransmissions."""
        counts = self.packets("sent", "retransmitted")
        return {"packets": counts["sent"], "retransmitted": counts["retransmitted"]}

    def packets(self, *names: str) -> dict[str, int]:
        """Those counters of the agents, 0 where there were none."""
        return {name: int(self.agents.get(name, 0)) for name in names}


def ratios(of: Tally, to: Tally) -> list[float]:
    """How many times as long as `to` `of` took, repeat by repeat."""
    return [theirs / ours for theirs, ours in zip(of.seconds, to.seconds, strict=False)]


def median_ratio(tallies: dict[str, Tally], backend: str) -> float | None:
    """A backend's time over switchml's, the median of the pairs: above 1, switchml is faster. None if either was not
    measured."""
    if backend not in tallies or SWITCHML not in tallies:
        return None
    return median(ratios(tallies[backend], tallies[SWITCHML]))
