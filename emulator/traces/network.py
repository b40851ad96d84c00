"""Cost model of a network with few parameters. `whatif/network.py` fits it to a trace.

Collectives are costed by `emulator.cluster.collectives`: S bytes take `steps · latency_s + S · (volume /
link_bytes_per_s + host_s_per_byte)`, with steps and volume by algorithm.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from emulator.cluster.cluster import Cluster, Interconnect, measured
from emulator.cluster.collectives import check_all_reduce, cost
from emulator.cluster.topology import place
from emulator.jobs.workload.graph import Collective
from emulator.traces import repeated_rounds
from switchml.errors import ConfigError
from switchml.units import bytes_text, time_text

FREE_BYTES_PER_S = 1e13
"""A fitted rate above this means that size made no difference."""
LARGE_BYTES = float(1 << 30)
"""From this size on, costs are proportional to bytes."""


@dataclass(frozen=True)
class TransferCost:
    """`fixed_s`, then the buffer's bytes at `bytes_per_s`. `assumed`: assumptions beyond the trace, for reports."""

    fixed_s: float
    bytes_per_s: float
    assumed: str = ""
    repeat_share: float = 0.0
    """Without announced exponents: the share of an all-reduce's first `guessed_bytes` that is repeated."""
    guessed_bytes: float = 0.0

    def __str__(self) -> str:
        if self.bytes_per_s > FREE_BYTES_PER_S:
            return f"{time_text(self.fixed_s)}, whatever its size"
        return f"{time_text(self.fixed_s)} and its bytes at {bytes_text(self.bytes_per_s)}/s"

    def seconds(self, size_bytes: float | np.ndarray) -> float | np.ndarray:
        """Return the duration of one all-reduce of `size_bytes` with announced exponents."""
        return self.fixed_s + size_bytes / self.bytes_per_s

    def repeats_s(self, size_bytes: float | np.ndarray) -> float | np.ndarray:
        """Return the additional duration without announced exponents."""
        return self.repeat_share * np.minimum(size_bytes, self.guessed_bytes) / self.bytes_per_s


@dataclass(frozen=True)
class Network:
    """The network between the ranks."""

    algorithm: str
    """All-reduce algorithm, one of `emulator.cluster.algorithms.ALGORITHMS`."""
    link_bytes_per_s: float
    """Bandwidth of each host's link in each direction."""
    latency_s: float
    """Latency of one step of a collective: a message, and waking up its receiver."""
    host_s_per_byte: float = 0.0
    """Host time per byte of the buffer, in addition to the transfer: copies, sums."""
    per_host: int = 1
    """Ranks that share a link."""
    hierarchy: str = "auto"
    """Hierarchy of all-reduces, one of `emulator.cluster.algorithms.HIERARCHIES`."""
    traced: str = ""
    """Algorithm to which the parameters were fitted; the cost of its repeated rounds is included in them."""
    repeat_factor: float | None = None
    """Factor on the repeated rounds in `repeated_rounds.REPEAT_SHARE`; None: unknown, taken as 1."""
    assumptions: tuple[str, ...] = ()

    cluster: Cluster | None = None
    """Cluster whose network this is, at the rate and latency above; None: fitted to measurements."""

    def __post_init__(self) -> None:
        check_all_reduce(self.algorithm, self.hierarchy)
        if not (self.link_bytes_per_s > 0 and self.latency_s >= 0 and self.per_host >= 1):
            raise ConfigError(
                f"links of {8 * self.link_bytes_per_s:g} bit/s with {self.latency_s:g} s of latency and "
                f"{self.per_host} ranks: expected positive numbers"
            )

    @classmethod
    def of_cluster(cls, cluster: Cluster, like: Network) -> Network:
        """Return the network of `cluster`, whose nodes the ranks fill in order, with the all-reduce algorithm of
        `like`."""
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
        """Describe the link speed, for reports."""
        if self.link_bytes_per_s > FREE_BYTES_PER_S:
            return "no link speed could be fitted: the traced all-reduces take as long whatever their size"
        return f"links of {self.link_bytes_per_s * 8 / 1e6:.4g} Mbit/s"

    @cached_property
    def links(self) -> Interconnect:
        """The interconnect as defined by `emulator.cluster`."""
        if self.cluster is None:
            return measured(self.link_bytes_per_s, self.latency_s, self.host_s_per_byte, self.per_host)
        between = self.cluster.between
        port_bps = 8 * self.link_bytes_per_s / between.ports_per_node
        between = dataclasses.replace(
            between, port_bps=port_bps, hop_s=self.latency_s, host_s_per_byte=self.host_s_per_byte
        )
        return dataclasses.replace(self.cluster, between=between)

    def seconds(self, size_bytes: float, ranks: int, collective: int = Collective.ALL_REDUCE) -> float:
        """Return the duration of one collective without other traffic."""
        where = place(ranks, 1, self.per_host)
        name = Collective(collective).name.lower()
        return cost(self.links, name, size_bytes, where, self.algorithm, self.hierarchy).seconds

    def line(self, ranks: int, collective: int = Collective.ALL_REDUCE) -> tuple[float, float]:
        """Return (seconds, seconds per byte) of large collectives."""
        large_s, double_s = (self.seconds(times * LARGE_BYTES, ranks, collective) for times in (1, 2))
        return max(0.0, 2 * large_s - double_s), (double_s - large_s) / LARGE_BYTES

    def volume(self, ranks: int) -> float:
        """Return how often each byte of an all-reduce among `ranks` ranks crosses the busiest link."""
        return dataclasses.replace(self, link_bytes_per_s=1.0, host_s_per_byte=0.0).line(ranks)[1]

    def transfer(self, ranks: int, lanes: str = "int32") -> TransferCost:
        """Return the cost of all-reduces among `ranks` ranks. `lanes`: lane type of switchml packets; "" for integers,
        without exponents."""
        fixed_s, per_byte_s = self.line(ranks)
        transfer = TransferCost(fixed_s, 1.0 / max(per_byte_s, 1e-18))
        if self.algorithm != "switchml" or not lanes or (self.traced, lanes) == ("switchml", "int32"):
            return transfer
        share = repeated_rounds.REPEAT_SHARE[lanes] * (1.0 if self.repeat_factor is None else self.repeat_factor)
        return dataclasses.replace(
            transfer, repeat_share=share, guessed_bytes=float(repeated_rounds.guessed_bytes(ranks))
        )
