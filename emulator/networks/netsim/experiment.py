"""Build a network, run its jobs, and report times, goodput, retransmissions and queues. Every sum is checked against
exact arithmetic; a wrong sum raises an error.
"""

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from emulator.networks.netsim import bounds, ring, size
from emulator.networks.netsim.aggregator import Aggregator, rack_address, slots_at, slots_in_tree
from emulator.networks.netsim.best_effort import Behind, Front
from emulator.networks.netsim.config import JobConfig, NetworkConfig
from emulator.networks.netsim.link import NS, Environment, LinkCounts, at
from emulator.networks.netsim.packets import Packet, Train
from emulator.networks.netsim.rank import Rank
from emulator.networks.netsim.tcp import HEADER_BYTES, MSS_BYTES, Connection, Segment
from emulator.networks.netsim.tensors import Tensors
from emulator.networks.netsim.topology import Fabric
from switchml.errors import BudgetSpent, SwitchMLError
from switchml.protocol.best_effort import COUNTS
from switchml.protocol.pool import Pool
from switchml.protocol.sizes import WIRES
from switchml.protocol.worker import Worker

PROGRESS_EVERY = 20_000
"""Steps of the simulation between two reports of progress."""


@dataclass
class JobResult:
    """Results of a job. `seconds[k]`: from the first rank's start of collective k to the last rank's end. `bound_s`:
    the closed form of bounds.py without loss, late ranks or other traffic. Counters are summed over the ranks."""

    config: JobConfig
    slots: int
    bound_s: float
    seconds: list[float] = field(default_factory=list)
    sent: int = 0
    retransmitted: int = 0
    spurious: int = 0
    waits: int = 0
    repeated_rounds: int = 0
    timeouts: int = 0

    @property
    def median_s(self) -> float:
        return median(self.seconds)

    @property
    def goodput_bps(self) -> float:
        """Bits of tensor reduced per second (algbw, in bits)."""
        return 8 * self.config.size_bytes / self.median_s


@dataclass
class Result:
    """Results of a simulation. `seconds`: virtual time until the last job was done. `links`: counters by link name."""

    config: NetworkConfig
    jobs: list[JobResult]
    links: dict[str, LinkCounts]
    rates_bps: dict[str, float]
    seconds: float
    most_waiting_packets: float
    """Maximum number of packets waiting in front of the switch's pipeline."""
    steps: int
    wall_s: float
    best_effort: dict[str, int]
    """Counters of contributions at best-effort slots (best_effort.COUNTS); empty without them."""

    def utilisation(self, name: str) -> float:
        """Utilization of a link: share of time in use."""
        return 8 * self.links[name].bytes / self.rates_bps[name] / self.seconds if self.seconds else 0.0


def run(
    config: NetworkConfig,
    say: Callable[[float, int], None] = lambda done, steps: None,
    time_budget_s: float = math.inf,
    memory_budget_bytes: float | None = None,
) -> Result:
    """Simulate `config` to its end. `say(share of work done, steps)` is called every PROGRESS_EVERY steps.

    Raises ConfigError for a network that needs more memory than the budget, by default the free memory; BudgetSpent
    where it needs, or has used, more than `time_budget_s` of wall-clock time; SwitchMLError if a sum is wrong, or if
    the jobs are not done at `config.limit_s` of virtual time.
    """
    started = time.perf_counter()
    size.check(config, time_budget_s, memory_budget_bytes)
    network = _Network(config)
    env, steps = network.env, 0
    while network.running:
        if not env.peek() <= config.limit_s * NS:
            raise SwitchMLError(
                f"not done after {config.limit_s:g} s of virtual time: "
                + "; ".join(player.where() for player in network.players if not player.is_done)
            )
        env.step()
        steps += 1
        if steps % PROGRESS_EVERY == 0:
            say(network.share_done, steps)
            if time.perf_counter() - started > time_budget_s:
                raise BudgetSpent(
                    f"{network.share_done:.0%} of the work was done after {time_budget_s:g} s of wall-clock time, "
                    f"{env.now / NS:g} s of virtual time (--time-limit)",
                    steps,
                    env.now / NS,
                )
    for player in network.players:
        player.finish()
    return Result(
        config,
        [player.result for player in network.players],
        {link.name: link.counts for link in network.fabric.links},
        {link.name: link.config.rate_bps for link in network.fabric.links},
        env.now / NS,
        network.fabric.switch.most_waiting,
        steps,
        time.perf_counter() - started,
        dict(zip(COUNTS, network.front.shared.counts.tolist(), strict=True)) if network.front else {},
    )


class _Network:
    def __init__(self, config: NetworkConfig):
        self.config = config
        self.env = Environment(0)
        self.fabric = Fabric(self.env, config)
        uplinks = self.fabric.rack_up if config.racks and config.racks.aggregate else []
        self._racks = [Aggregator(self.fabric.in_rack, up.send) for up in uplinks]
        for number, rack in enumerate(self._racks):
            self.fabric.to_rack[number] = rack.receive
            self.fabric.to_rack[rack_address(number)] = rack.receive_result
        self._core = Aggregator(self.fabric.from_aggregator)
        self.fabric.to_aggregator = self._core.receive
        self.front: Front | None = None
        if config.behind is not None:
            up, down = self.fabric.behind
            self.front = Front(self.env, config.switch.slots, self.fabric.from_aggregator, up.send)
            self._behind = Behind(down.send)
            self.fabric.to_aggregator, self.fabric.from_behind = self.front.receive, self.front.receive_result
            self.fabric.to_behind = self._behind.receive
        self.players: list[_AggregatedJob | _RingJob] = []
        self.running = len(config.jobs)
        self._handlers: dict[tuple[int, int], Callable[[Packet], None]] = {}
        for h in range(config.hosts):
            self.fabric.to_host[h] = self._at_host
        each = zip(config.jobs, config.placement(), config.slots_of_jobs(), strict=True)
        for number, (job, hosts, slots) in enumerate(each):
            kind = _AggregatedJob if job.backend == "switchml" else _RingJob
            self.players.append(kind(self, number, job, hosts, slots))

    @property
    def share_done(self) -> float:
        return sum(player.share_done for player in self.players) / len(self.players)

    def aggregate(self, number: int, job: JobConfig, hosts: tuple[int, ...], pool: partial[Pool]) -> None:
        """Allocate a job's pool, given without the workers; in a tree, one at each of its racks and one above."""
        if self.front is not None:
            shared = pool(workers=job.workers)
            self.front.add(number, shared, hosts)
            self._behind.add(number, shared)
            return
        if not self._racks:
            self._core.add(number, slots_at(range(job.workers), hosts, job.train_packets, pool))
            return
        racks = sorted({self.fabric.rack_of(host) for host in hosts})
        ranks = [[rank for rank, host in enumerate(hosts) if self.fabric.rack_of(host) == rack] for rack in racks]
        below, above = slots_in_tree(ranks, racks, hosts, job.train_packets, pool)
        for rack, own in zip(racks, below, strict=True):
            self._racks[rack].add(number, own)
        self._core.add(number, above)

    def expect(self, job: int, rank: int, handler: Callable[[Packet], None]) -> None:
        """Pass protocol 2 packets for this rank to `handler`."""
        self._handlers[job, rank] = handler

    def _at_host(self, packet: Any) -> None:
        if isinstance(packet, Segment):
            packet.connection.receive(packet)
        else:
            first = packet.packets[0] if isinstance(packet, Train) else packet
            self._handlers[first.job, first.rank](packet)

    def ended(self) -> None:
        self.running -= 1


class _Job:
    """Base class of jobs: each rank starts its next collective when its last one is done."""

    def __init__(self, network: _Network, job: JobConfig, bound_s: float, slots: int):
        self.network, self.config = network, job
        self.result = JobResult(job, slots, bound_s)
        self._begin_ns: list[int] = []
        self._end_ns = [0] * job.repeats
        self._calls = [0] * job.workers  # number of collectives that each rank has started
        self._remaining = job.workers * job.repeats
        for rank in range(job.workers):
            self._schedule(rank, int(job.start_s * NS))

    @property
    def is_done(self) -> bool:
        return not self._remaining

    @property
    def share_done(self) -> float:
        """Share of all ranks' collectives that are done."""
        return 1 - self._remaining / (self.config.workers * self.config.repeats)

    def where(self) -> str:
        """Progress of the slowest ranks, for messages."""
        least = min(self._calls)
        slow = [rank for rank, calls in enumerate(self._calls) if calls == least]
        return f"job {self.config.name or self.config.backend}: all-reduce {least}, ranks {slow[:8]}"

    def _schedule(self, rank: int, time_ns: int) -> None:
        late_ns = int((self.config.pause_s + self.config.late_ranks.get(rank, 0.0)) * NS)
        at(self.network.env, time_ns + late_ns, self._begin, rank)

    def _begin(self, rank: int) -> None:
        call = self._calls[rank]
        self._calls[rank] += 1
        if call == len(self._begin_ns):  # the first rank to start it
            self._begin_ns.append(self.network.env.now)
        self.start(rank)

    def start(self, rank: int) -> None:
        raise NotImplementedError

    def done(self, rank: int) -> None:
        """Record the end of a rank's collective."""
        call, now = self._calls[rank] - 1, self.network.env.now
        self._end_ns[call] = max(self._end_ns[call], now)
        self._remaining -= 1
        if call + 1 < self.config.repeats:
            self._schedule(rank, now)
        elif not self._remaining:
            self.network.ended()

    def finish(self) -> None:
        """Complete the result."""
        self.result.seconds = [(end - begin) / NS for begin, end in zip(self._begin_ns, self._end_ns, strict=True)]


class _AggregatedJob(_Job):
    """Collectives through the aggregation switch."""

    def __init__(self, network: _Network, number: int, job: JobConfig, hosts: tuple[int, ...], slots: int):
        config = network.config
        links = [(config.link_of(host), ranks) for host, ranks in Counter(hosts).items()]
        slowest, sharing = max(links, key=lambda one: bounds.round_trip_s(job, *one))
        above = config.racks.link if config.racks and config.racks.aggregate else None
        if config.behind is not None:
            above = config.behind.link
        super().__init__(network, job, bounds.aggregation_s(job, slowest, slots, above, sharing), slots)
        generator = np.random.default_rng((config.seed, number))
        self._tensors = Tensors(job, slots, generator)
        isn = int(generator.integers(2**32 // (2 * slots))) * 2 * slots
        wire = WIRES[job.wire]
        pool = partial(Pool, slots=slots, payload_bytes=job.payload_bytes, wire=wire, job_tag=1 + number, isn=isn)
        network.aggregate(number, job, hosts, pool)
        self._ranks = []
        for rank in range(job.workers):
            worker = Worker(
                rank=rank,
                workers=job.workers,
                slots=slots,
                job_tag=1 + number,
                isn=isn,
                window=min(job.window or slots, slots, config.switch.slots),
                payload_bytes=job.payload_bytes,
                two_queues=job.queues > 1,
            )
            send, trains = network.fabric.up[hosts[rank]].send, (job.train_packets, config.link.framing_bytes)
            self._ranks.append(Rank(network.env, worker, number, rank, send, self.done, *trains))
            network.expect(number, rank, self._ranks[rank].receive)

    def start(self, rank: int) -> None:
        self._ranks[rank].start(*self._tensors.tasks(rank))

    def finish(self) -> None:
        super().finish()
        for name in ("sent", "retransmitted", "spurious", "waits", "repeats"):
            total = sum(int(rank.worker.counters[name]) for rank in self._ranks)
            setattr(self.result, "repeated_rounds" if name == "repeats" else name, total)
        self._tensors.check()


class _RingJob(_Job):
    """All-reduces by Gloo's ring."""

    def __init__(self, network: _Network, number: int, job: JobConfig, hosts: tuple[int, ...], slots: int):
        config = network.config
        links = [config.link_of(host) for host in hosts]
        sent = ring.sent_bytes(job.workers, job.size_bytes)
        share = MSS_BYTES / (MSS_BYTES + HEADER_BYTES + config.link.framing_bytes)
        super().__init__(network, job, max(8 * sent / (link.rate_bps * share) for link in links), slots)
        env, up = network.env, network.fabric.up
        self._ranks = [ring.RingRank(env, rank, job.workers, job.size_bytes) for rank in range(job.workers)]
        self._connections = []
        for rank, player in enumerate(self._ranks if job.workers > 1 else ()):
            to = (rank - 1) % job.workers
            ends = (hosts[rank], hosts[to])
            player.connection = Connection(env, ends, up[ends[0]].send, up[ends[1]].send, self._ranks[to].take)
            self._connections.append(player.connection)

    def start(self, rank: int) -> None:
        self.network.env.process(self._ranks[rank].run(self.done))

    def finish(self) -> None:
        super().finish()
        for name in ("sent", "retransmitted", "timeouts"):
            setattr(self.result, name, sum(getattr(connection, name) for connection in self._connections))
