"""The plan of a seed: jobs, their collectives, the network's impairments, and the times of faults."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from emulator.networks.faults.clock import TRUE, Clock
from emulator.networks.netsim.config import LinkConfig
from switchml.protocol.sizes import EXACT

DTYPES = ("float32", "float32", "float64", "float16", "int32", "int64")
NARROW = ("int16", "int8")
_EXACT_SHARE = 0.3
"""Share of jobs with int32 lanes whose float sums are exact."""
_MIXED_SHARE = 0.5
"""Share of jobs without a misfit whose calls are collectives of all kinds."""
KINDS_OF_CALLS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "barrier")
ONE_SENDS = ("all_gather", "broadcast")
"""Collectives that use a queue of their own (docs/protocol.md, section 11)."""
_MISFIT_SHARE = 0.1
"""Share of jobs with calls of all kinds in which a rank makes a call of the other queue instead."""
SPECIALS = ("", "", "", "", "", "nan", "inf", "infs", "zeros", "overflow")
"""Special content of a tensor besides ordinary values. "infs": both infinities at one place."""


@dataclass(frozen=True)
class PlannedCall:
    """One collective of `kind`. `pause_s`: the program's pause before it. `exponent`: binary exponent of the values'
    scale. `numel`: of one rank's share in a reduce-scatter or an all-gather. `bucket`: number of the error memory of
    sums that don't wait for late ranks (late.py); a step begins with bucket 0."""

    dtype: str
    numel: int
    op: str
    timeout_s: float | None
    pause_s: float
    exponent: int
    special: str
    kind: str = "all_reduce"
    root: int = 0
    bucket: int = -1

    def mixed(self, kinds: random.Random, workers: int) -> PlannedCall:
        """The same call as one of any kind. Special "overflow" is kept for all-reduces only, as otherwise only the rank
        that receives the sum detects it."""
        kind = kinds.choice(KINDS_OF_CALLS)
        special = self.special if kind == "all_reduce" or self.special != "overflow" else ""
        return replace(self, kind=kind, root=kinds.randrange(workers), special=special)


@dataclass(frozen=True)
class Pace:
    """Compute time of a rank before each step: `step_s`, plus `slow_s` with probability `chance` until the network
    heals."""

    step_s: float
    slow_s: float
    chance: float


@dataclass(frozen=True)
class JobPlan:
    """One job. `misfit`: a mistake of one of its programs at call `misfit_call`, if any: "dtype" (calls with another
    dtype), "kind" (calls a collective of the other queue) or "leaves" (leaves early, in good order). `at_once[r]`: rank
    r submits all its calls before it waits (with a deadline: those of a step). `keeps_port`: a restarted program
    receives on the same port. `deadline_s`: how long sums wait for late ranks, 0 for no limit (deadlines_plan.py);
    `paces`: of the ranks of such a job.
    """

    name: str
    hosts: tuple[int, ...]
    slots: int
    payload_bytes: int
    wire: str
    calls: tuple[PlannedCall, ...]
    starts_s: tuple[float, ...]
    at_once: tuple[bool, ...]
    keeps_port: bool
    misfit: str = ""
    misfit_rank: int = -1
    misfit_call: int = -1
    deadline_s: float = 0.0
    paces: tuple[Pace, ...] = ()

    @property
    def workers(self) -> int:
        return len(self.hosts)

    @property
    def may_be_late(self) -> bool:
        """Whether some rank is slow at times."""
        return any(pace.chance for pace in self.paces)


@dataclass(frozen=True)
class Fault:
    """A fault. `kind`: "cut" (host `host` and the aggregator can't reach each other), "cut data" (packets are lost, the
    control connection is not), "cut up" and "cut down" (packets in one direction are lost), "pause" (the host's program
    is stopped), "crash" (it dies and restarts after `duration_s`), "aggregator" (the aggregator crashes; `host` is -1),
    "suspicion" (failover_plan.py). `aggregator`: number of the aggregator."""

    at_s: float
    kind: str
    host: int
    duration_s: float
    aggregator: int = 0


KINDS = ("cut", "cut data", "pause", "crash", "aggregator")


@dataclass(frozen=True)
class FaultPlan:
    """Everything that a seed determines. After `heal_s` there are no more faults, and all jobs must end."""

    seed: int
    jobs: tuple[JobPlan, ...]
    link: LinkConfig
    faults: tuple[Fault, ...]
    heal_s: float
    peer_timeout_s: float
    join_timeout_s: float
    slot_capacity: int
    inbox_packets: int
    aggregators: int = 1
    """The first aggregator plus standbys."""
    failover_s: float = 0.0
    """How long agents try to fail over when their aggregator is lost; 0: they don't."""
    clocks: tuple[Clock, ...] = ()
    """Clocks of the hosts; empty: all show the true time."""
    shared_slots: int = 0
    """Slots of a switch that all jobs share (best_effort_plan.py); 0: each job has its own at the aggregator."""
    behind: LinkConfig | None = None
    """Link between that switch and the aggregator behind it."""

    @property
    def hosts(self) -> int:
        return sum(job.workers for job in self.jobs)

    @property
    def is_calm(self) -> bool:
        """Whether no fault occurs and no rank is late."""
        return self.is_plain and not (self.faults or any(job.may_be_late for job in self.jobs))

    @property
    def is_steady(self) -> bool:
        """Whether the only faults are slow or stopped ranks, and no call waits for them."""
        waits = any(call.bucket < 0 for job in self.jobs for call in job.calls)
        return self.is_plain and not waits and all(fault.kind == "pause" for fault in self.faults)

    @property
    def is_plain(self) -> bool:
        """Whether links have no impairments."""
        link = self.link
        return not (link.loss or link.duplicate or link.late or link.queue_bytes)

    def clock(self, host: int) -> Clock:
        """A host's clock."""
        return self.clocks[host] if self.clocks else TRUE

    def describe(self) -> list[str]:
        """A readable summary, as lines."""
        shares = [(name, getattr(self.link, name)) for name in ("loss", "duplicate", "late")]
        impairments = ", ".join(f"{name} {share:.1%}" for name, share in shares if share)
        lines = [
            f"seed {self.seed}: {len(self.jobs)} jobs, links of {self.link.rate_bps / 1e6:.3g} Mbit/s and "
            f"{self.link.delay_s * 1e6:.0f} µs, {impairments or 'no impairments'}, "
            f"peer timeout {self.peer_timeout_s:.2g} s, healed at {self.heal_s:.3f} s"
        ]
        for job in self.jobs:
            misfit = f"; rank {job.misfit_rank} {job.misfit} at call {job.misfit_call}" if job.misfit else ""
            kinds = ", ".join(sorted({call.kind for call in job.calls}))
            lines.append(
                f"  {job.name}: hosts {job.hosts[0]}-{job.hosts[-1]}, {job.slots} slots, {job.payload_bytes} bytes, "
                f"{job.wire} lanes, {len(job.calls)} calls ({kinds}){misfit}"
            )
            if job.deadline_s:
                slow = ", ".join(f"{pace.chance:.0%} x {1e3 * pace.slow_s:.3g} ms" for pace in job.paces)
                lines.append(f"    a deadline of {1e3 * job.deadline_s:.3g} ms; its ranks are slow by {slow}")
        if self.aggregators > 1 or self.failover_s:
            lines.append(f"  {self.aggregators} aggregators, {self.failover_s:g} s to go on at another one")
        if self.behind is not None:
            lines.append(
                f"  {self.shared_slots} slots for all jobs, and behind them {self.behind.rate_bps / 1e6:.3g} Mbit/s, "
                f"{self.behind.delay_s * 1e6:.0f} µs, loss {self.behind.loss:.1%}, duplicate "
                f"{self.behind.duplicate:.1%}, late {self.behind.late:.1%}"
            )
        if self.clocks:
            offsets, gains = ([getattr(each, name) for each in self.clocks] for name in ("offset_ns", "gain_ppm"))
            lines.append(
                f"  clocks {(max(offsets) - min(offsets)) / 1e9:.3g} s apart, and {max(gains) - min(gains):,} ppm"
            )
        for fault in self.faults:
            where = f" of host {fault.host}" if fault.host >= 0 else ""
            is_of_one = self.aggregators > 1 and fault.kind not in ("pause", "suspicion")
            where += f" at aggregator {fault.aggregator}" if is_of_one else ""
            lines.append(f"  {fault.at_s:.4f} s: {fault.kind}{where} for {fault.duration_s:.3f} s")
        return lines


def draw(seed: int) -> FaultPlan:
    """Draw the plan of a seed."""
    chooser = random.Random(f"plan {seed}")
    jobs, hosts = [], 0
    for number in range(chooser.choice([1, 1, 1, 2, 3])):
        workers = chooser.choice([1, 2, 2, 3, 3, 4, 5])
        jobs.append(draw_job(chooser, f"job{number}", tuple(range(hosts, hosts + workers))))
        hosts += workers
    peer_timeout_s = chooser.choice([0.5, 1.0, 2.0])
    is_rough = chooser.random() < 0.75
    link = LinkConfig(
        rate_bps=chooser.choice([5e6, 20e6, 100e6, 1e9]),
        delay_s=chooser.choice([1e-5, 1e-4, 1e-3]),
        queue_bytes=chooser.choice([0, 0, 4000, 30_000]) if is_rough else 0,
        loss=chooser.choice([0.0, 0.01, 0.05, 0.2, 0.4]) if is_rough else 0.0,
        burst_packets=chooser.choice([1.0, 1.0, 8.0]),
        duplicate=chooser.choice([0.0, 0.02, 0.2]) if is_rough else 0.0,
        late=chooser.choice([0.0, 0.02, 0.2]) if is_rough else 0.0,
        late_s=chooser.choice([0.001, 0.02, 0.3]),
    )
    faults = []
    span_s = chooser.choice([0.03, 0.1, 0.4, 1.5])
    for _ in range(chooser.choice([0, 0, 1, 1, 2, 3, 5])):
        kind = chooser.choice(KINDS)
        longest_s = 0.5 if kind in ("crash", "aggregator") else 2.5 * peer_timeout_s
        at_s, host = chooser.uniform(0.0, span_s), -1 if kind == "aggregator" else chooser.randrange(hosts)
        faults.append(Fault(at_s, kind, host, 0.003 * (longest_s / 0.003) ** chooser.random()))
    faults.sort(key=lambda fault: fault.at_s)
    return FaultPlan(
        seed=seed,
        jobs=tuple(jobs),
        link=link,
        faults=tuple(faults),
        heal_s=max([span_s, *(fault.at_s + fault.duration_s for fault in faults)]),
        peer_timeout_s=peer_timeout_s,
        join_timeout_s=chooser.choice([3.0, 10.0]),
        slot_capacity=chooser.choice([64, 65536]),
        inbox_packets=chooser.choice([16, 200]),
    )


def draw_job(chooser: random.Random, name: str, hosts: tuple[int, ...]) -> JobPlan:
    """Draw a job of the ranks on `hosts`."""
    wire = chooser.choice(["int32", "int32", "int32", *NARROW])
    shapes = [
        (chooser.choice(DTYPES), chooser.choice([1, chooser.randint(1, 64), chooser.randint(1, 600), 1500]))
        for _ in range(chooser.randint(1, 3))
    ]
    count = chooser.randint(1, 6)
    has_timeouts = chooser.random() < 0.15
    calls = []
    for _ in range(count):
        dtype, numel = chooser.choice(shapes)
        special = chooser.choice(SPECIALS)
        if special in (("nan", "inf", "infs") if dtype.startswith("int") else ("overflow",)):
            special = ""
        calls.append(
            PlannedCall(
                dtype,
                numel,
                chooser.choice(["sum", "sum", "mean"]),
                chooser.choice([0.05, 0.5, 3.0]) if has_timeouts else None,
                chooser.choice([0.0, 0.0, chooser.expovariate(1 / 0.01)]),
                0 if dtype == "float16" else chooser.choice([0, 0, -20, 40]),
                special,
            )
        )
    misfit = chooser.choice(["dtype", "leaves"]) if len(hosts) > 1 and chooser.random() < 0.12 else ""
    start_s = chooser.uniform(0, 0.03)
    if wire == "int32" and random.Random(start_s).random() < _EXACT_SHARE:  # own generator: other draws are unaffected
        wire = EXACT
    kinds = random.Random(f"kinds {start_s}")  # likewise
    if not misfit and kinds.random() < _MIXED_SHARE:
        calls = [call.mixed(kinds, len(hosts)) for call in calls]
        is_misfit = len(hosts) > 1 and kinds.random() < _MISFIT_SHARE
        misfit = "kind" if is_misfit else ""
    drawn = kinds if misfit == "kind" else chooser
    return JobPlan(
        name=name,
        hosts=hosts,
        slots=chooser.choice([2, 4, 4, 16, 64]),
        payload_bytes=chooser.choice([256, 256, 1024]),
        wire=wire,
        calls=tuple(calls),
        starts_s=tuple(start_s + chooser.choice([0.0, chooser.expovariate(1 / 0.02)]) for _ in hosts),
        at_once=tuple(chooser.random() < 0.5 for _ in hosts),
        keeps_port=chooser.random() < 0.7,
        misfit=misfit,
        misfit_rank=drawn.randrange(len(hosts)) if misfit else -1,
        misfit_call=drawn.randrange(count) if misfit else -1,
    )
