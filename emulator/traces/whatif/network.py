"""What communication would cost on another network: a model of few numbers, fitted to a trace's own all-reduces, and
changed from there. A transfer keeps what it took beyond the model in the trace, so that an unchanged network changes
nothing.

What a collective costs on it, `emulator.cluster.collectives` says: of S bytes
`steps · latency_s + S · (volume / link_bytes_per_s + host_s_per_byte)`, with steps and volume by algorithm.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from emulator.cluster.cluster import Cluster, Interconnect, measured
from emulator.cluster.collectives import check_all_reduce, cost
from emulator.cluster.topology import place
from emulator.jobs.workload.graph import Collective
from emulator.traces.joined import Joined
from emulator.traces.whatif import repeated_rounds, transfers
from emulator.traces.whatif.contention import Contention
from switchml.errors import ConfigError

OF_BACKEND = {"switchml": "switchml"}
"""What a backend's all-reduce is; "ring" for the others."""
TOO_MUCH = 2.0
"""More than so many times what links carry can't be noise. (Some is usual: ranks that arrive early have begun before
the last one arrives, from when an all-reduce counts.)"""

LARGE_BYTES = float(1 << 30)
"""From this size on, costs grow in proportion to bytes."""


@dataclass(frozen=True)
class Network:
    """What joins the ranks."""

    algorithm: str
    """Of all-reduces, one of `emulator.cluster.algorithms.ALGORITHMS`."""
    link_bytes_per_s: float
    """Of each host's link, each way."""
    latency_s: float
    """Of one step of a collective: a message, and waking up its receiver."""
    host_s_per_byte: float = 0.0
    """What a byte of the buffer takes besides its way over links: copies, sums."""
    per_host: int = 1
    """Ranks that share a link."""
    hierarchy: str = "auto"
    """Who speaks to the network in all-reduces, one of `emulator.cluster.algorithms.HIERARCHIES`."""
    traced: str = ""
    """The algorithm that it was fitted to: what its repeated rounds took is in the other numbers."""
    repeat_factor: float | None = None
    """How many times as many rounds as `repeated_rounds.REPEAT_SHARE` says are repeated; None: unknown, so as many."""
    assumptions: tuple[str, ...] = ()

    cluster: Cluster | None = None
    """The cluster whose network this is, at the rate and latency above; None: one that was fitted to measurements."""

    def __post_init__(self) -> None:
        check_all_reduce(self.algorithm, self.hierarchy)
        if not (self.link_bytes_per_s > 0 and self.latency_s >= 0 and self.per_host >= 1):
            raise ConfigError(
                f"links of {8 * self.link_bytes_per_s:g} bit/s with {self.latency_s:g} s of latency and "
                f"{self.per_host} ranks: expected positive numbers"
            )

    @classmethod
    def of_cluster(cls, cluster: Cluster, like: Network) -> Network:
        """The network of `cluster`, whose nodes the ranks fill one after the other; all-reduces go as in `like`."""
        between = cluster.between
        return dataclasses.replace(
            like,
            link_bytes_per_s=between.ports_per_node * between.port_bps / 8,
            latency_s=between.hop_s,
            host_s_per_byte=between.host_s_per_byte,
            per_host=cluster.accelerators_per_node,
            cluster=cluster,
            assumptions=(f"{cluster.title}; {between.title}: {between.source}",),
        )

    @property
    def link_text(self) -> str:
        """What links carry, for reports."""
        if self.link_bytes_per_s > transfers.FREE_BYTES_PER_S:
            return "no link speed could be fitted: the traced all-reduces take as long whatever their size"
        return f"links of {self.link_bytes_per_s * 8 / 1e6:.4g} Mbit/s"

    @cached_property
    def links(self) -> Interconnect:
        """As `emulator.cluster` has it."""
        if self.cluster is None:
            return measured(self.link_bytes_per_s, self.latency_s, self.host_s_per_byte, self.per_host)
        between = self.cluster.between
        port_bps = 8 * self.link_bytes_per_s / between.ports_per_node
        between = dataclasses.replace(
            between, port_bps=port_bps, hop_s=self.latency_s, host_s_per_byte=self.host_s_per_byte
        )
        return dataclasses.replace(self.cluster, between=between)

    def seconds(self, size_bytes: float, ranks: int, collective: int = Collective.ALL_REDUCE) -> float:
        """Of one collective with nothing else on the network."""
        where = place(ranks, 1, self.per_host)
        name = Collective(collective).name.lower()
        return cost(self.links, name, size_bytes, where, self.algorithm, self.hierarchy).seconds

    def line(self, ranks: int, collective: int = Collective.ALL_REDUCE) -> tuple[float, float]:
        """(seconds, seconds a byte) of large collectives."""
        large_s, double_s = (self.seconds(times * LARGE_BYTES, ranks, collective) for times in (1, 2))
        return max(0.0, 2 * large_s - double_s), (double_s - large_s) / LARGE_BYTES

    def volume(self, ranks: int) -> float:
        """How often each byte of an all-reduce among so many crosses the link that it crosses most often."""
        return dataclasses.replace(self, link_bytes_per_s=1.0, host_s_per_byte=0.0).line(ranks)[1]

    def transfer(self, ranks: int, lanes: str = "int32") -> transfers.TransferCost:
        """Of all-reduces among so many. `lanes`: of our protocol's packets; "" for integers, without exponents."""
        fixed_s, per_byte_s = self.line(ranks)
        transfer = transfers.TransferCost(fixed_s, 1.0 / max(per_byte_s, 1e-18))
        if self.algorithm != "switchml" or not lanes or (self.traced, lanes) == ("switchml", "int32"):
            return transfer
        share = repeated_rounds.REPEAT_SHARE[lanes] * (1.0 if self.repeat_factor is None else self.repeat_factor)
        return dataclasses.replace(
            transfer, repeat_share=share, guessed_bytes=float(repeated_rounds.guessed_bytes(ranks))
        )


def fit(joined: Joined | Sequence[Joined], link_bps: float | None = None, per_host: int = 0) -> Network:
    """To the all-reduces of the trace; of several iterations the median fit counts.

    link_bps: what each host's link is known to carry; else all of the time that grows with size counts as the link's.
    per_host: ranks on a host; 0: as the traces say.
    Raises GraphError without an all-reduce, ConfigError for links slower than what was measured.
    """
    several = [joined] if isinstance(joined, Joined) else list(joined)
    joined = several[0]
    backend = next((trace.backend for trace in joined.traces if trace.backend), "gloo")
    algorithm = OF_BACKEND.get(backend, "ring")
    ranks = world_size(joined)
    if not per_host:
        hosts = {trace.host or f"rank {trace.rank}" for trace in joined.traces}
        per_host = max(1, len(joined.traces) // len(hosts)) if link_bps is None and len(hosts) > 1 else 1
    if per_host >= ranks:
        per_host = 1  # whatever joins the ranks of a single host is its network here
    model = Network(
        algorithm,
        link_bytes_per_s=1.0,
        latency_s=0.0,
        per_host=per_host,
        hierarchy=joined.traces[0].about.get("hierarchy", "none") if algorithm == "switchml" else "auto",
        traced=algorithm,
        repeat_factor=repeated_rounds.times_usual(joined.traces),
    )
    volume = model.volume(ranks)
    steps, _ = dataclasses.replace(model, link_bytes_per_s=1e30, latency_s=1.0).line(ranks)
    most_bytes_per_s = link_bps / 8 / volume if link_bps and volume else np.inf
    fitted = _median([transfers.fit(one, most_bytes_per_s=most_bytes_per_s) for one in several])
    latency_s = fitted.fixed_s / max(1.0, steps)
    assumptions: tuple[str, ...] = (fitted.assumed,) if fitted.assumed else ()
    if link_bps is None:
        assumptions += ("all that an all-reduce takes for each byte is taken for its link's; say what links carry",)
        return dataclasses.replace(
            model, link_bytes_per_s=volume * fitted.bytes_per_s, latency_s=latency_s, assumptions=assumptions
        )
    used_bps = 8 * volume * float(np.median([transfers.used_bytes_per_s(one) for one in several]))
    if used_bps > link_bps * TOO_MUCH:
        raise ConfigError(
            f"the trace's all-reduces moved {used_bps / 1e6:.0f} Mbit/s over each link, which should carry "
            f"{link_bps / 1e6:g} Mbit/s: was it traced on that network?"
        )
    return dataclasses.replace(
        model,
        link_bytes_per_s=link_bps / 8,
        latency_s=latency_s,
        host_s_per_byte=max(0.0, 1.0 / fitted.bytes_per_s - volume / (link_bps / 8)),
        assumptions=assumptions,
    )


def _median(fits: list[transfers.TransferCost]) -> transfers.TransferCost:
    """Of each number by itself: an iteration in which something else held up a transfer is no measure of it."""
    fixed_s = float(np.median([one.fixed_s for one in fits]))
    per_byte_s = float(np.median([1.0 / one.bytes_per_s for one in fits]))
    return transfers.TransferCost(fixed_s, 1.0 / per_byte_s, fits[0].assumed)


def world_size(joined: Joined) -> int:
    """Ranks of the job, traced or not."""
    return max(round(float(joined.graph.ranks.weight.sum())), 1)


@dataclass(frozen=True)
class Scenario(Joined):
    """A joined iteration with assumptions."""

    network: Network | None = None
    """None: as fitted to the iteration's own all-reduces."""
    contention: Contention | None = None
    """None: operators take what they took, whatever communication runs beside them."""


def assume(joined: Joined, **assumptions: Any) -> Scenario:
    """The same iteration with these fields of `Scenario`."""
    if isinstance(joined, Scenario):
        return dataclasses.replace(joined, **assumptions)
    return Scenario(**{field.name: getattr(joined, field.name) for field in dataclasses.fields(joined)}, **assumptions)


def network_of(joined: Joined) -> Network:
    """What is assumed, else what fits the iteration."""
    return getattr(joined, "network", None) or fit(joined)


def contention_of(joined: Joined) -> Contention | None:
    """What is assumed."""
    return getattr(joined, "contention", None)


def with_network(joined: Joined, *, link_bps: float | None = None, per_host: int = 0) -> Scenario:
    """The network fitted to the iteration, with what is known: each host's link rate, and ranks (0: as traced)."""
    return assume(joined, network=fit(joined, link_bps, per_host))
