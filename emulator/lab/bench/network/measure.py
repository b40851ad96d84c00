"""Measurement of `switchml bench network`: hosts with slow links around a switch, an aggregator in the switch's place,
a rank in each host, alternating with Gloo's ring over the same links.

The network is emulator/networks/testbed/star.py's. Everything is removed at the end, also after a crash: processes die
with this one, and leftover namespaces are removed by the next run."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from emulator.lab.bench.allreduce import check_torch
from emulator.lab.bench.ranks.reducing import DENSE, GLOO, NODE, SWITCHML, Target
from emulator.lab.bench.ranks.team import (
    STORE_PORT,
    Repeat,
    joined_ranks,
    places,
    reducing_context,
    star_with_aggregator,
)
from emulator.lab.bench.sizes import ALL_REDUCE, FSDP, ITEM_BYTES, Case
from emulator.lab.bench.sparsity import Sparsity
from emulator.lab.bench.tally import Survey, Tally, median_ratio, take_turns
from emulator.networks.testbed.fabric import Fabric
from emulator.networks.testbed.star import LinkOptions, Star
from switchml.errors import ConfigError
from switchml.protocol import sizes
from switchml.protocol.packet import WORD_BYTES

TENSORS = 2
"""Tensors per rank: input and output."""


@dataclass(frozen=True)
class Experiment:
    """An experiment's parameters. `workers`: hosts, each with `ranks_per_host` ranks. `slots`: of the job, 0 for the
    aggregator's choice. `collective`: one of sizes.COLLECTIVES; only ALL_REDUCE supports several ranks per host.
    `sparsity`: blocks of zeros, which SWITCHML skips and DENSE does not. `tcp`: Gloo's congestion control, None for the
    machine's default.
    """

    workers: int
    link: LinkOptions
    size_bytes: int
    wire: str = "int32"
    payload_bytes: int = 1024
    slots: int = 0
    sparsity: Sparsity | None = None
    backends: tuple[str, ...] = (SWITCHML, GLOO)
    repeats: int = 3
    warmup: int = 1
    tcp: str | None = None
    ranks_per_host: int = 1
    collective: str = ALL_REDUCE

    @property
    def world_size(self) -> int:
        return self.workers * self.ranks_per_host

    @property
    def framing_bound_bps(self) -> float:
        """Bits of float32 tensor per second that a link carries if it is never idle and nothing is retransmitted.
        Packets without data are not counted."""
        word = WORD_BYTES if self.collective != ALL_REDUCE else 0
        frame = self.payload_bytes + word + sizes.FRAME_OVERHEAD_BYTES
        return self.link.rate_bps * self.payload_bytes / frame / self.link_share

    @property
    def link_share(self) -> float:
        """Bytes that a link carries in its busier direction for each byte of the tensor. Sums are in lanes. With FSDP,
        a rank's uplink carries its own shard of the all-gather and the others' shards of the reduce-scatter; its
        downlink the reverse."""
        lane, others = sizes.LANE_BYTES[self.wire] / ITEM_BYTES, (self.world_size - 1) / self.world_size
        own = 1 - others
        return {
            ALL_REDUCE: lane,
            "reduce_scatter": lane * others,
            "all_gather": others,
            "broadcast": 1.0,
            FSDP: max(lane * others + own, others + lane * own),
        }[self.collective]

    @property
    def union_density(self) -> float:
        """Share of blocks that are non-zero on at least one rank: the minimum that every link must
        carry to its host."""
        elements = self.size_bytes // ITEM_BYTES
        return self.sparsity.union_density(self.world_size, elements) if self.sparsity else 1.0

    @property
    def union_bound_bps(self) -> float | None:
        """Bits of tensor per second if a link is never idle and carries each block of the union once for each rank of
        its host, in dense packets. None if there are no non-zero blocks."""
        return self.framing_bound_bps / self.ranks_per_host / self.union_density if self.union_density else None

    @property
    def ring_traffic(self) -> float:
        """Bits that each rank of a ring sends, and receives, for each bit of the tensor: 2(n-1)/n, half of that for
        gather or scatter alone. A host's link carries that once, as only one of its ranks has its neighbor on another
        host."""
        rounds = 2 if self.collective in (ALL_REDUCE, FSDP) else 1
        return rounds * (self.world_size - 1) / self.world_size

    @property
    def ring_bound_bps(self) -> float | None:
        """The same bound for a ring over TCP; None for one host, and for broadcasts, which Gloo does by a tree."""
        if self.workers == 1 or self.collective == "broadcast":
            return None
        return self.link.rate_bps * sizes.TCP_SHARE / self.ring_traffic

    def bound_bps(self, backend: str) -> float | None:
        """Upper bound set by the links for a backend, in bits of tensor per second."""
        dense_bps = self.framing_bound_bps / self.ranks_per_host
        bounds = {SWITCHML: self.union_bound_bps, DENSE: dense_bps, NODE: self.framing_bound_bps}
        return bounds.get(backend, self.ring_bound_bps)

    @property
    def links_s(self) -> float:
        """Minimum time in seconds that the links are busy over all repeats."""
        bounds = [bound for backend in self.backends if (bound := self.bound_bps(backend))]
        return (self.repeats + self.warmup) * sum(8 * self.size_bytes / bound for bound in bounds)


def survey(network: Star | Fabric, pids: dict[str, int | None]) -> Survey:
    """Counters of a network so far. `pids`: processes whose CPU seconds are counted. `dropped`: packets dropped by full
    queues, a train of packets as one; `sent_bytes`: through the queues, Ethernet headers included; `lost`: frames lost
    by the links' configured loss."""
    lost = {direction: link["lost"] for direction, link in network.links().items()}
    times = {name: psutil.Process(pid).cpu_times() for name, pid in pids.items() if pid is not None}
    queues = network.queues()
    return {
        "cpu_seconds": {name: one.user + one.system for name, one in times.items()},
        "dropped": {direction: queue.dropped for direction, queue in queues.items()},
        "sent_bytes": {direction: queue.bytes for direction, queue in queues.items()},
        "lost": {"up": 0, "down": 0} | lost,  # links without loss or delay have no counters
    }


@dataclass(frozen=True)
class Result:
    experiment: Experiment
    tcp: str
    tallies: dict[str, Tally]

    def goodput_bps(self, backend: str) -> float:
        """Bits of the tensor per second, from the median time."""
        return 8 * self.experiment.size_bytes / self.tallies[backend].median_s

    @property
    def fraction_of_line_rate(self) -> float:
        """Switchml's goodput over the line rate after framing, per rank of a host."""
        return self.goodput_bps(SWITCHML) * self.experiment.ranks_per_host / self.experiment.framing_bound_bps

    @property
    def fraction_of_union_bound(self) -> float | None:
        """Switchml's goodput over the bound set by the union of blocks."""
        bound = self.experiment.union_bound_bps
        return self.goodput_bps(SWITCHML) / bound if bound else None

    @property
    def dense_ratio(self) -> float | None:
        """Dense switchml's time over sparse switchml's, the median of the pairs."""
        return median_ratio(self.tallies, DENSE)

    @property
    def node_ratio(self) -> float | None:
        """Time of switchml with flat ranks over that with two levels (hierarchy "node"), the median of the pairs."""
        return 1 / ratio if (ratio := median_ratio(self.tallies, NODE)) else None

    @property
    def ratio(self) -> float | None:
        """Gloo's time over switchml's, the median of the pairs: above 1, switchml is faster."""
        return median_ratio(self.tallies, GLOO)


def check_size(experiments: Sequence[Experiment], time_budget_s: float = math.inf) -> None:
    """Raises ConfigError where the ranks' tensors don't fit into free memory, or the links need longer than the time
    budget for all bytes of the experiments."""
    needed_bytes = max(TENSORS * e.world_size * e.size_bytes for e in experiments)
    free_bytes = psutil.virtual_memory().available
    if needed_bytes > free_bytes:
        raise ConfigError(
            f"the ranks' tensors need about {needed_bytes / 1e9:,.1f} GB, but {free_bytes / 1e9:,.1f} GB are free: "
            "take a smaller --size, or fewer --hosts"
        )
    seconds = sum(e.links_s for e in experiments)
    if seconds > time_budget_s:
        raise ConfigError(
            f"the links alone need {seconds:,.0f} s for this; --time-limit allows {time_budget_s:,.0f} s: take a "
            "smaller --size, a higher --rate, or fewer --repeats"
        )


def measure(experiment: Experiment, progress: Callable[[str], None] = lambda line: None) -> Result:
    """Build the network, run all repeats, remove the network. `progress` is called with status lines.

    Raises ConfigError without root, iproute2 or torch, PeerLost or AggregatorLost if a process dies, RanksDisagree or
    JobError if a result is wrong.
    """
    check_torch(experiment.backends)
    reducing_context(experiment.backends)  # imports in the background while the network is built
    progress(f"{experiment.workers} hosts: building the network")
    with star_with_aggregator(experiment.workers, experiment.link, experiment.tcp) as (star, aggregator):
        address = aggregator.address
        progress(f"{experiment.workers} hosts: starting the ranks")
        pids = {"aggregator": aggregator.pid, "links": star.links_pid}
        return Result(experiment, _congestion_control(star), repeat(experiment, star, address, pids, progress))


def repeat(
    experiment: Experiment,
    network: Star | Fabric,
    aggregator: str | None,
    pids: dict[str, int | None],
    progress: Callable[[str], None],
) -> dict[str, Tally]:
    """Start ranks in the first hosts of a network and run all repeats. `aggregator`: HOST:PORT; with None there are no
    agents, and only Gloo can be measured. `pids`: processes whose CPU seconds are counted besides the ranks'. Raises as
    `measure` does."""
    e = experiment
    elements = e.size_bytes // ITEM_BYTES
    target = Target(aggregator or "", "udp", e.payload_bytes, e.slots)
    targets = dict.fromkeys((SWITCHML, NODE), lambda: target) if aggregator else {}
    hosts = places(network.hosts[: e.workers], e.ranks_per_host)
    rendezvous = f"tcp://{network.address(0)}:{STORE_PORT}"

    def on_repeat(number: int, backend: str, repeat: Repeat) -> None:
        which = f"repeat {number + 1} of {e.repeats}" if number >= 0 else "warm-up"
        figures = f"{repeat.seconds:.3f} s, {8 * e.size_bytes / repeat.seconds / 1e6:.1f} Mbit/s of tensor"
        progress(f"{e.workers} hosts: {which}, {backend}: {figures}")

    with joined_ranks(
        hosts, e.backends, elements, targets, sparsity=e.sparsity, wire=e.wire, rendezvous=rendezvous
    ) as (team, _):
        case = Case((elements,), False, e.repeats, e.warmup, collective=e.collective)
        return take_turns(team, case, e.backends, survey=partial(survey, network, pids), on_repeat=on_repeat)


def _congestion_control(star: Star) -> str:
    path = Path("/proc/sys/net/ipv4/tcp_congestion_control")
    return star.hosts[0].call(lambda: path.read_text().strip())
