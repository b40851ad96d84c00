"""The parent's side of `switchml bench network`: hosts with slow links around a switch, an aggregator in the switch's
place, a rank in each host, and Gloo's ring over the same links in turn with it.

The network is emulator/testbed/star.py's, the ranks are network/worker.py's. Everything is removed at the end, however
it comes: processes die with this one, namespaces are removed here or by the next run.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import psutil

from emulator.bench import allreduce
from emulator.bench.network import worker as network_worker
from emulator.bench.rank import DENSE, GLOO, SWITCHML, Joined, Sample, Settings, Target
from emulator.bench.sizes import ITEM_BYTES, Case
from emulator.bench.sparsity import Sparsity
from emulator.testbed import star as stars
from emulator.testbed.namespaces import Lab, check_rights
from emulator.testbed.star import LinkOptions
from host_agent.pytorch.aggregator import ChildAggregator
from switchml.errors import ConfigError
from switchml.protocol.packet import HEADER_BYTES

UDP_IP_BYTES = 8 + 20
TCP_IP_BYTES = 20 + 12 + 20
"""TCP's header with the timestamp option that Linux always negotiates, and IP's."""


@dataclass(frozen=True)
class Experiment:
    """What is measured. `slots`: of the job, 0 for the aggregator's choice. `sparsity`: blocks of zeros, which
    SWITCHML skips and DENSE does not. `tcp`: Gloo's congestion control, None for the machine's.
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

    @property
    def framing_bound_bps(self) -> float:
        """Bits of float32 tensor a second that a link carries if it is never idle and nothing is sent twice."""
        frame = self.payload_bytes + HEADER_BYTES + UDP_IP_BYTES + stars.ETHERNET_BYTES
        return self.link.rate_bps * self.payload_bytes / frame * 32 / allreduce.LANE_BITS[self.wire]

    @property
    def union_density(self) -> float:
        """Share of blocks that some rank has: what every link must carry to its host at the least."""
        elements = self.size_bytes // ITEM_BYTES
        return self.sparsity.union_density(self.workers, elements) if self.sparsity else 1.0

    @property
    def union_bound_bps(self) -> float | None:
        """Bits of tensor a second if a link is never idle and carries each block of the union once, in dense packets.
        None if there are no blocks at all."""
        return self.framing_bound_bps / self.union_density if self.union_density else None

    @property
    def ring_traffic(self) -> float:
        """What each rank of a ring sends, and receives, for each bit of the tensor: 2(n-1)/n."""
        return 2 * (self.workers - 1) / self.workers

    @property
    def ring_bound_bps(self) -> float | None:
        """The same bound for a ring over TCP; None for one rank."""
        frame = stars.MTU + stars.ETHERNET_BYTES
        return self.link.rate_bps * (stars.MTU - TCP_IP_BYTES) / frame / self.ring_traffic if self.workers > 1 else None


@dataclass
class Tally:
    """What one backend's repeats came to, warm-up left out."""

    seconds: list[float] = field(default_factory=list)
    """Of the slowest rank, for each repeat."""
    error: float = 0.0
    """The largest absolute difference of an element to the exact sum."""
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    """Of all ranks together, the aggregator, and the process behind the links; all repeats together."""
    agents: dict[str, float] = field(default_factory=dict)
    """`HostAgent.stats()` of all ranks and repeats together; gauges are those of the last repeat, the largest."""
    dropped: dict[str, int] = field(default_factory=lambda: {"up": 0, "down": 0})
    """By queues that were full; a train of packets counts as one."""
    sent_bytes: dict[str, int] = field(default_factory=lambda: {"up": 0, "down": 0})
    """Through the queues, Ethernet headers included."""
    lost: dict[str, int] = field(default_factory=lambda: {"up": 0, "down": 0})
    """Frames that the links lost on purpose."""
    checksum: int = 0
    """Of the last result: equal for results with the same bits."""

    @property
    def median_s(self) -> float:
        return median(self.seconds)


@dataclass(frozen=True)
class Result:
    experiment: Experiment
    tcp: str
    tallies: dict[str, Tally]

    def goodput_bps(self, backend: str) -> float:
        """Bits of tensor a second, from the median time."""
        return 8 * self.experiment.size_bytes / self.tallies[backend].median_s

    @property
    def fraction_of_line_rate(self) -> float:
        """Switchml's goodput over what framing leaves of the line."""
        return self.goodput_bps(SWITCHML) / self.experiment.framing_bound_bps

    @property
    def fraction_of_union_bound(self) -> float | None:
        """Switchml's goodput over what the union of blocks leaves of the line."""
        bound = self.experiment.union_bound_bps
        return self.goodput_bps(SWITCHML) / bound if bound else None

    @property
    def dense_ratio(self) -> float | None:
        """Dense switchml's time over sparse switchml's, the median of the pairs."""
        return self._ratio_to(DENSE)

    @property
    def ratio(self) -> float | None:
        """Gloo's time over switchml's, the median of the pairs: above 1, switchml is faster."""
        return self._ratio_to(GLOO)

    def _ratio_to(self, backend: str) -> float | None:
        if backend not in self.tallies:
            return None
        pairs = zip(self.tallies[backend].seconds, self.tallies[SWITCHML].seconds, strict=True)
        return median(theirs / ours for theirs, ours in pairs)


def measure(experiment: Experiment, say: Callable[[str], None] = lambda line: None) -> Result:
    """Build the network, run all repeats, remove the network. `say` gets a line now and then.

    Raises ConfigError without root, iproute2 or torch, PeerLost or AggregatorLost if a process dies, RanksDisagree or
    JobError if a result is wrong.
    """
    if GLOO in experiment.backends and importlib.util.find_spec("torch") is None:
        raise ConfigError("measuring against gloo needs torch: pip install 'switchml[torch]', or say --against none")
    elements = experiment.size_bytes // ITEM_BYTES
    with contextlib.ExitStack() as stack:
        lab = stack.enter_context(Lab())
        context = allreduce.context_of_ranks(experiment.backends, "emulator.bench.network.worker")
        say(f"{experiment.workers} hosts: building the network")
        star = stars.Star(lab, experiment.workers, experiment.link, experiment.tcp)
        stack.callback(star.close)
        aggregator = SwitchAggregator(star)
        stack.callback(aggregator.stop)
        inputs, sums = stack.enter_context(allreduce.shared_tensors(elements, experiment.workers, experiment.sparsity))
        settings = Settings(
            workers=experiment.workers,
            wire=experiment.wire,
            targets={SWITCHML: Target(aggregator.address, "udp")},
            job=f"bench-{os.getpid()}-{secrets.token_hex(3)}",
            backends=experiment.backends,
            inputs=inputs,
            sums=sums,
            store="",
            sparsity=experiment.sparsity,
        )
        say(f"{experiment.workers} hosts: starting the ranks")
        pids = {"aggregator": aggregator.pid, "links": star.links_pid}
        return Result(experiment, _congestion_control(star), repeat(experiment, star, settings, pids, context, say))


def repeat(
    experiment: Experiment,
    star: stars.Star,
    settings: Settings,
    pids: dict[str, int | None],
    context,
    say: Callable[[str], None],
) -> dict[str, Tally]:
    """Start ranks in the first hosts of a network and run all repeats. `pids`: whose CPU seconds to tell besides the
    ranks'. Without an address in the settings there are no agents, and Gloo is all that can be measured. Raises as
    `measure` does."""
    with contextlib.ExitStack() as stack:
        team = HostTeam(settings, star, experiment, context)
        stack.callback(team.stop)
        team.replies(Joined)
        team.prepare(Case((experiment.size_bytes // ITEM_BYTES,), False, experiment.repeats, experiment.warmup))
        tallies = {backend: Tally() for backend in experiment.backends}
        for repeat in range(-experiment.warmup, experiment.repeats):
            for backend, tally in tallies.items():
                before = _survey(star, pids)
                samples = team.repeat(backend)
                after = _survey(star, pids)
                worst = max(sample.error if sample.error == sample.error else float("inf") for sample in samples)
                allreduce.check_samples(backend, samples, worst, settings)
                seconds = max(sample.seconds for sample in samples)
                which = f"repeat {repeat + 1} of {experiment.repeats}" if repeat >= 0 else "warm-up"
                goodput = 8 * experiment.size_bytes / seconds / 1e6
                say(f"{experiment.workers} hosts: {which}, {backend}: {seconds:.3f} s, {goodput:.1f} Mbit/s of tensor")
                if repeat >= 0:
                    _add(tally, seconds, worst, samples, before, after)
        team.leave()
        return tallies


class SwitchAggregator(ChildAggregator):
    """`switchml aggregate` in the switch's namespace, at the switch's address."""

    def __init__(self, star: stars.Star):
        options = [
            "--bind",
            star.switch_address,
            "--control-port",
            "0",
            "--data-port",
            "0",
            "--events-port",
            "0",
            "--json",
        ]
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = star.switch.popen(
            [sys.executable, "-m", "host_agent.pytorch.aggregator", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
        )
        self._address = None


class HostTeam(allreduce.Team):
    """The ranks' processes, each in a host of its own."""

    def __init__(self, settings: Settings, star: stars.Star, experiment: Experiment, context):
        shared = (stars.INTERFACE, star.address(0), experiment.payload_bytes, experiment.slots)
        arguments = [
            (rank, settings, network_worker.Place(host.name, *shared))
            for rank, host in enumerate(star.hosts[: settings.workers])
        ]
        self._start(context, network_worker.main, arguments)


def _survey(star: stars.Star, pids: dict[str, int | None]) -> tuple[dict[str, float], dict, dict]:
    """CPU seconds by process, and what queues and links have counted so far."""
    cpu_s = {}
    for name, pid in pids.items():
        if pid is not None:
            times = psutil.Process(pid).cpu_times()
            cpu_s[name] = times.user + times.system
    return cpu_s, star.queues(), star.links()


def _add(tally: Tally, seconds: float, worst: float, samples: list[Sample], before: tuple, after: tuple) -> None:
    tally.seconds.append(seconds)
    tally.error = max(tally.error, worst)
    spent = {name: after[0][name] - before[0][name] for name in after[0]}
    spent["ranks"] = sum(sample.usage["cpu_s"] for sample in samples)
    for name, cpu_s in spent.items():
        tally.cpu_seconds[name] = tally.cpu_seconds.get(name, 0.0) + cpu_s
    for name in samples[0].agent:
        values = [sample.agent[name] for sample in samples]
        if name in network_worker.GAUGES:
            tally.agents[name] = max(values)
        else:
            tally.agents[name] = tally.agents.get(name, 0) + sum(values)
    for way in after[1]:
        tally.dropped[way] = tally.dropped.get(way, 0) + after[1][way].dropped - before[1][way].dropped
        tally.sent_bytes[way] = tally.sent_bytes.get(way, 0) + after[1][way].bytes - before[1][way].bytes
    for way in after[2]:
        tally.lost[way] += after[2][way]["lost"] - before[2][way]["lost"]
    tally.checksum = samples[0].checksum


def _congestion_control(star: stars.Star) -> str:
    path = Path("/proc/sys/net/ipv4/tcp_congestion_control")
    return star.hosts[0].call(lambda: path.read_text().strip())


__all__ = ["Experiment", "LinkOptions", "Result", "Tally", "check_rights", "measure"]
