"""The configuration of a simulated network: dataclasses that validate themselves, and the TOML files they come from.

    seed = 1

    [link]                       # of every host, both ways
    rate_bps = 10e9
    delay_s = 1e-6
    loss = 0.001

    [racks]                      # optional: hosts in racks, one link from each rack to the aggregation switch
    hosts = 4
    rate_bps = 20e9
    aggregate = true             # a rack's switch adds up its own ranks; else it only forwards

    [behind]                     # optional: best-effort slots, and an aggregator behind the switch
    rate_bps = 40e9

    [[jobs]]
    workers = 8
    size_bytes = 26214400
    backend = "switchml"         # or "ring": Gloo's all-reduce over TCP

Keys are the fields of the classes below.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emulator import datafile
from emulator.networks.netsim.blocks import OVERLAPS
from emulator.ranges import RATE, SECONDS, SEED, SHARE, Range, Ranged, number
from switchml.control.allocation import default_slots, fit_slots
from switchml.errors import ConfigError
from switchml.protocol.packet import SIZE_CODE_OF, V2_MAX_WORKERS, check_slots
from switchml.protocol.sizes import ETHERNET_LINE_BYTES, IP_BYTES, UDP_BYTES, WIRES
from switchml.protocol.worker_state import QUEUES

FRAMING_BYTES = UDP_BYTES + IP_BYTES + ETHERNET_LINE_BYTES
"""Ethernet overhead of a datagram besides its payload: UDP, IPv4, Ethernet, check sequence, preamble,
gap (IEEE 802.3)."""
BACKENDS = ("switchml", "ring")
KINDS = {
    "all_reduce": ("all_reduce",),
    "reduce_scatter": ("reduce_scatter",),
    "all_gather": ("all_gather",),
    "broadcast": ("broadcast",),
    "fsdp": ("all_gather", "reduce_scatter"),
}
"""Protocol collectives that make up a job's collective."""


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


MAX_RANKS = 65_536
"""Maximum number of ranks over all jobs."""
QUEUE = Range(0, 2**50)
LOST = Range(0, 1, "[)")
FRAMING = Range(0, 65_536)
CAPACITY = Range(0, 1e18)
"""Packets/s; 0: line rate."""


@dataclass(frozen=True)
class LinkConfig(Ranged):
    """One direction of a link. `burst_bytes`: depth of its token bucket (tc-tbf). `queue_bytes`: capacity of the queue
    in front of it (0: no limit). `packet_s`: the minimum time that a packet occupies it, for hosts and switches with a
    limited packet rate. `loss`: share of packets lost, in bursts of `burst_packets` on average (Gilbert's model; 1:
    independently). `jitter_s`: the largest random addition to the delay, without reordering. `duplicate`: share of
    packets that arrive twice. `late`: share of packets that are delayed by up to `late_s`, and so arrive out of order.
    `framing_bytes`: added to each packet's length.
    """

    rate_bps: float = number(RATE, 10e9)
    delay_s: float = number(SECONDS, 1e-6)
    queue_bytes: int = number(QUEUE, 0)
    burst_bytes: int = number(QUEUE, 0)
    packet_s: float = number(SECONDS, 0.0)
    loss: float = number(LOST, 0.0)
    burst_packets: float = number(Range(1, 1e9), 1.0)
    jitter_s: float = number(SECONDS, 0.0)
    duplicate: float = number(LOST, 0.0)
    late: float = number(LOST, 0.0)
    late_s: float = number(SECONDS, 0.0)
    framing_bytes: int = number(FRAMING, FRAMING_BYTES)


def _link_of(config: Any) -> LinkConfig:
    """The link with a configuration's fields of the same names."""
    names = {each.name for each in dataclasses.fields(LinkConfig)}
    return LinkConfig(**{name: value for name, value in vars(config).items() if name in names})


@dataclass(frozen=True)
class RackConfig(Ranged):
    """Hosts in racks of `hosts`, each rack with one link of these properties, both ways, to the aggregation switch.
    `aggregate`: whether a rack's switch sums its own ranks and sends one partial sum up (docs/protocol.md, section 9),
    or forwards all packets."""

    hosts: int = number(Range(1, 65_536))
    aggregate: bool = False
    rate_bps: float = number(RATE, 40e9)
    delay_s: float = number(SECONDS, 1e-6)
    queue_bytes: int = number(QUEUE, 0)
    loss: float = number(LOST, 0.0)
    framing_bytes: int = number(FRAMING, FRAMING_BYTES)

    @property
    def link(self) -> LinkConfig:
        return _link_of(self)


@dataclass(frozen=True)
class BehindConfig(Ranged):
    """An aggregator behind the switch, with one link, both ways. The switch's slots are then best-effort: jobs share
    them first come, first served (docs/protocol.md, section 14). `packets_per_s`: the aggregator's capacity (0: line
    rate)."""

    rate_bps: float = number(RATE, 40e9)
    delay_s: float = number(SECONDS, 1e-6)
    queue_bytes: int = number(QUEUE, 0)
    loss: float = number(LOST, 0.0)
    packets_per_s: float = number(CAPACITY, 0.0)
    framing_bytes: int = number(FRAMING, FRAMING_BYTES)

    @property
    def link(self) -> LinkConfig:
        return _link_of(self)


@dataclass(frozen=True)
class SwitchConfig(Ranged):
    """The aggregation switch. `slots`: over all v2 jobs. `packets_per_s`: capacity (0: line rate). `latency_s`: from a
    packet's arrival to the departure of its results.
    """

    slots: int = number(Range(2, 2**22), 65536)
    packets_per_s: float = number(CAPACITY, 0.0)
    latency_s: float = number(SECONDS, 0.0)


@dataclass(frozen=True)
class JobConfig(Ranged):
    """One job: `repeats` collectives of `size_bytes` of float32, one after the other.

    `collective`: one of KINDS; "fsdp" is a concurrent all-gather and reduce-scatter. The size is that of the tensor on
    all ranks together.

    `slots` 0: the aggregator's default. `window`: maximum rounds in flight (0: as many as slots). `hosts`: the host of
    each rank; by default hosts without other ranks. Ranks of one host share its link: one queue, one token bucket.
    `start_s`: start time of the job. `pause_s`: each rank's pause before each collective (a step's computation).
    `train_packets`: packets sent as one train (60: a host with UDP segmentation offload; 1: a switch). `late_ranks[r]`:
    delay of rank r before each collective (seconds). `backend` "ring" is Gloo's algorithm over TCP, with a host for
    each rank. `block`: omit blocks of this many elements that are zero on every rank (0: send all); each rank has a
    share `density` of non-zero blocks, drawn according to `overlap` (blocks.py).
    """

    workers: int = number(Range(1, V2_MAX_WORKERS), 4)
    size_bytes: int = number(Range(4, 10**12), 1 << 20)
    name: str = ""
    backend: str = "switchml"
    collective: str = "all_reduce"
    wire: str = "int32"
    payload_bytes: int = number(Range(min(SIZE_CODE_OF), max(SIZE_CODE_OF)), 1024)
    slots: int = number(Range(0, 65_536), 0)
    window: int = number(Range(0, 65_536), 0)
    repeats: int = number(Range(1, 1_000_000), 1)
    start_s: float = number(SECONDS, 0.0)
    pause_s: float = number(SECONDS, 0.0)
    train_packets: int = number(Range(1, 60), 1)
    block: int = number(Range(0, 2**30), 0)
    density: float = number(SHARE, 1.0)
    overlap: str = "random"
    hosts: tuple[int, ...] = number(Range(0, 65_535), ())
    late_ranks: Mapping[int, float] = number(SECONDS, factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self.size_bytes % 4 == 0, f"size_bytes = {self.size_bytes}: expected a multiple of 4 (float32)")
        named = {"backend": BACKENDS, "collective": KINDS, "wire": WIRES, "payload_bytes": SIZE_CODE_OF}
        for name, choices in named.items():
            value = getattr(self, name)
            _check(value in choices, f"{name} = {value!r}: expected one of {', '.join(map(str, choices))}")
        _check(
            self.collective == "all_reduce" or self.backend == "switchml",
            f"collective = {self.collective!r}: the model of rings has all-reduces only",
        )
        is_shared = KINDS[self.collective][0] in ("reduce_scatter", "all_gather")
        _check(
            not is_shared or self.size_bytes % (4 * self.workers) == 0,
            f"size_bytes = {self.size_bytes}: expected a multiple of {4 * self.workers}, a share for each rank",
        )
        if self.slots:
            check_slots(self.slots)
        _check(self.overlap in OVERLAPS, f"overlap = {self.overlap!r}: expected one of {', '.join(OVERLAPS)}")
        _check(
            not self.block or (self.backend, self.collective) == ("switchml", "all_reduce"),
            f"block = {self.block}: rings and other collectives send zeros too, expected all-reduces by switchml",
        )
        _check(
            bool(self.block) or self.density == 1,
            f"density = {self.density}: zeros are left out by the block, expected block = 256 or another size, too",
        )
        _check(
            not self.hosts or len(self.hosts) == self.workers,
            f"hosts = {list(self.hosts)}: expected {self.workers} hosts, one a rank",
        )
        _check(
            self.backend != "ring" or len(set(self.hosts)) == len(self.hosts),
            f"hosts = {list(self.hosts)}: expected {self.workers} different hosts, as the model has no rings in a host",
        )
        for rank in self.late_ranks:
            _check(0 <= rank < self.workers, f"late_ranks: rank {rank}: expected ranks 0 to {self.workers - 1}")

    @property
    def kinds(self) -> tuple[str, ...]:
        """Collectives that start concurrently in a repeat."""
        return KINDS[self.collective]

    @property
    def queues(self) -> int:
        """Queues of the rank's worker (docs/protocol.md, section 11); all-reduces need only one."""
        return 1 if self.collective == "all_reduce" else QUEUES


@dataclass(frozen=True)
class NetworkConfig(Ranged):
    """A whole network. `slow_hosts[h]`: fields of `link` that differ for host h."""

    jobs: tuple[JobConfig, ...] = ()
    link: LinkConfig = LinkConfig()
    switch: SwitchConfig = SwitchConfig()
    racks: RackConfig | None = None
    behind: BehindConfig | None = None
    slow_hosts: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    seed: int = number(SEED, 1)
    limit_s: float = number(Range(0, 1e9, "(]"), 3600.0)
    """Virtual time after which the run fails."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(bool(self.jobs), "a network without jobs: expected at least one")
        ranks = sum(job.workers for job in self.jobs)
        _check(ranks <= MAX_RANKS, f"jobs have {ranks:,} ranks together; expected {MAX_RANKS:,} at most")
        if self.behind is not None:
            tree, slots = self.racks is not None and self.racks.aggregate, self.switch.slots
            _check(not tree, "behind: an aggregator behind the switch, and racks that aggregate: expected one of them")
            _check(slots & (slots - 1) == 0, f"switch.slots = {slots}: expected a power of two with `behind`")
        hosts = self.hosts
        for host in self.slow_hosts:
            _check(0 <= host < hosts, f"slow_hosts: host {host}: expected 0 to {hosts - 1}")
            self.link_of(host)
        self.slots_of_jobs()

    def placement(self) -> list[tuple[int, ...]]:
        """Hosts of each job's ranks: the configured ones, else the next free ones."""
        places, free = [], max((max(job.hosts) + 1 for job in self.jobs if job.hosts), default=0)
        for job in self.jobs:
            if job.hosts:
                places.append(job.hosts)
            else:
                places.append(tuple(range(free, free + job.workers)))
                free += job.workers
        return places

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return 1 + max(max(place) for place in self.placement())

    def link_of(self, host: int) -> LinkConfig:
        """Link of a host."""
        changes = self.slow_hosts.get(host, {})
        return datafile.build(LinkConfig, {**dataclasses.asdict(self.link), **changes}, f"slow_hosts.{host}")

    def slots_of_jobs(self) -> list[int]:
        """Slots of each job by the aggregator's own rule, first come, first served; 0 for rings. Raises ConfigError if
        there are not enough."""
        slots, free = [], self.switch.slots
        for place, job in enumerate(self.jobs):
            if job.backend != "switchml":
                slots.append(0)
                continue
            requested = job.slots or default_slots(job.workers, job.queues)
            if self.behind is not None:  # the aggregator behind has memory for all
                slots.append(requested)
                continue
            slots.append(fit_slots(requested, free))
            _check(slots[-1] > 0, f"job {place}: {free} of the switch's {self.switch.slots} slots are free")
            free -= slots[-1]
        return slots


def load(path: str | Path) -> NetworkConfig:
    """Read a TOML file as shown above. Raises ConfigError that names the file and the error in it."""
    return datafile.build(NetworkConfig, datafile.load(Path(path)), str(path))
