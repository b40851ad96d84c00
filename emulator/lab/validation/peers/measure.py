"""`switchml validate peers`: one real rank among emulated ones, compared with the same script with all ranks real.

All-real: DDP in network namespaces around a switch (emulator/networks/testbed/star.py), over links of limited rate,
with Gloo and with the aggregator in the switch's place. Emulated: the same script once, in wall-clock time, on a
cluster file that describes the links; all other ranks are absent.

The cluster's all-reduce constants are measured without training, as with nccl-tests: the fixed time, and the share of
the link rate that all-reduces reach. That share depends on concurrency (Gloo reduces two buckets at a time, and leaves
its links idle between the two halves of the last one), so the sizes are those of DDP's buckets; and as it varies over
time, all-reduces and steps alternate. Ranks that share cores compute more slowly than a single rank: W ranks on C cores
take W/C times as long, and interfere with each other, which is measured by their CPU time when all of them train
without communicating. The emulated run is scaled by that factor (`compute_scale`). The rest is under test: collectives,
overlap, and an unmodified script.
"""

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

from emulator.lab.bench.ranks.team import TrainingTeam, local_places, step_seconds, training_context, training_on_star
from emulator.lab.bench.ranks.training import AllReduces, LayerStack, Steps
from emulator.lab.validation.rows import Row
from emulator.networks.testbed.star import LinkOptions
from emulator.peers.settings import PeerSettings
from switchml.errors import ConfigError
from switchml.runtime.folders import TemporaryFolder

BACKENDS = {"gloo": "ring", "switchml": "switchml"}
"""Backend of the real ranks → all-reduce algorithm of the emulated world."""
SMALL_BYTES = 4 << 10
WARMUP_STEPS = 4
"""DDP's first step broadcasts and its second rebuilds its buckets."""
BUCKETS = 4
"""Number of buckets that DDP is configured for; it builds fewer, as layers are not split."""
TURN_STEPS = 5
"""Rounds of all-reduces, and steps, in each turn, after one that does not count: ranks receive a turn's request at
different times, TCP starts slowly after a pause, and the aggregator's ranks guess the exponents of the turn before,
whose values were others, so that a step repeats two fifths of its packets."""
BURST_S = 0.001
"""Burst of the links' rate limiters, in seconds at the link rate: kept short, as the closed forms
don't model bursts."""


@dataclass(frozen=True)
class PeersPlan:
    """Measurement plan. `layers` of `width` by `width` units; `batch`: vectors for all ranks together, so that the
    compute of a step doesn't depend on the number of ranks on a machine with few cores."""

    workers: tuple[int, ...] = (2, 4)
    rates_bps: tuple[float, ...] = (50e6, 100e6, 200e6)
    backends: tuple[str, ...] = tuple(BACKENDS)
    steps: int = 15
    layers: int = 4
    width: int = 512
    batch: int = 256
    clock: str = "wall"

    def model(self, workers: int) -> LayerStack:
        """Model that each of `workers` ranks trains."""
        stack = LayerStack(self.layers, self.width, max(1, self.batch // workers), inputs=self.width, momentum=0.0)
        return replace(stack, bucket_cap_mb=stack.gradient_bytes / BUCKETS / 2**20)

    def __post_init__(self) -> None:
        if min(self.workers) < 2:
            raise ConfigError("1 rank: expected 2 or more")
        if self.steps < 3:
            raise ConfigError(f"{self.steps} steps: expected 3 or more, of which the median counts")


@dataclass(frozen=True)
class Link:
    """All-reduce constants measured for one row. `share`: of the link rate that all-reduces reach."""

    name: str
    fixed_s: float
    share: float


@dataclass(frozen=True)
class Calibration:
    """All-reduce constants of each row; and, by number of ranks, the ratio of their compute time to that of a single
    rank."""

    links: list[Link]
    compute_scale: dict[int, float]
    cores: int


@dataclass(frozen=True)
class PeersValidation:
    rows: list[Row]
    calibration: Calibration
    gradient_bytes: int
    reports: dict[str, dict[str, Any]]
    """Reports of the emulated rank, by row."""

    def as_json(self) -> dict[str, Any]:
        """Further keys for --json; times in seconds."""
        return {
            "calibration": asdict(self.calibration),
            "gradient_bytes": self.gradient_bytes,
            "parts": {name: report["parts"] for name, report in self.reports.items()},
        }


def validate(plan: PeersPlan, progress: Callable[[str], None] = lambda line: None) -> PeersValidation:
    """Measure, then emulate. `progress` is called with status lines. Raises ConfigError without root, iproute2 or
    torch."""
    measured: dict[tuple[str, int, float], tuple[float, Link]] = {}
    alone_s: dict[int, float] = {}
    for workers in plan.workers:
        progress(f"{workers} real ranks: building the network")
        with training_on_star(workers, LinkOptions(rate_bps=max(plan.rates_bps), burst_s=BURST_S)) as (star, team):
            for backend in plan.backends:
                team.join(backend, plan.model(workers))
                for rate_bps in plan.rates_bps:
                    star.set_rate(rate_bps)
                    name = f"{workers} ranks, {backend}, {rate_bps / 1e6:g} Mbit/s"
                    warm, *_ = team.run(Steps(WARMUP_STEPS))  # transports adapt to the new rate
                    link, seconds = _in_turns(name, team, warm.bucket_bytes, plan.steps, backend, workers, rate_bps)
                    measured[backend, workers, rate_bps] = seconds, link
                    progress(f"{name}, all of them real: {seconds * 1e3:.1f} ms a step")
            alone_s[workers] = mean(one.thread_cpu_s for one in team.run(Steps(plan.steps, is_alone=True)))
    cores = len(os.sched_getaffinity(0))
    scale: dict[int, float] = {}
    rows: list[Row] = []
    reports: dict[str, dict[str, Any]] = {}
    with TemporaryFolder("peers") as folder, TrainingTeam(training_context(), local_places(1)) as team:
        for workers, together_s in alone_s.items():
            _emulate(team, plan, PeerSettings(world=workers, clock=plan.clock, quiet=True))
            team.run(Steps(WARMUP_STEPS, is_alone=True))
            (one,) = team.run(Steps(plan.steps, is_alone=True))
            scale[workers] = max(1.0, together_s / one.thread_cpu_s) * max(1.0, workers / cores)
        for (backend, workers, rate_bps), (seconds, link) in measured.items():
            path = Path(folder) / f"star-{len(rows)}.toml"
            path.write_text(star_cluster(rate_bps, link.fixed_s, link.share))
            settings = PeerSettings(
                world=workers,
                cluster=str(path),
                network=BACKENDS[backend],
                clock=plan.clock,
                compute_scale=scale[workers],
                quiet=True,
            )
            _emulate(team, plan, settings)
            team.run(Steps(WARMUP_STEPS))
            (one,) = team.run(Steps(plan.steps))
            predicted_s = median(one.report["iteration_seconds"] or one.seconds)
            rows.append(Row(link.name, seconds, predicted_s, "s"))
            reports[link.name] = one.report
            progress(f"{link.name}, all but one emulated: {predicted_s * 1e3:.1f} ms a step")
    links = [link for _, link in measured.values()]
    return PeersValidation(rows, Calibration(links, scale, cores), plan.model(1).gradient_bytes, reports)


def _emulate(team: TrainingTeam, plan: PeersPlan, settings: PeerSettings) -> None:
    """Create a new emulated world and a model for the only real rank."""
    team.join("switchml-emulated", plan.model(settings.world), **settings.environment())


def star_cluster(rate_bps: float, fixed_s: float = 0.0, share: float = 1.0) -> str:
    """A cluster file: hosts with one rank each around a switch, links as in emulator/networks/testbed/star.py.
    `fixed_s`: fixed time of an all-reduce; `share`: of the rate that its bytes reach."""
    return f"""title = "a star of namespaces, {rate_bps / 1e6:g} Mbit/s"
accelerator = "xeon-8380"
accelerators_per_node = 1

[inside]
title = "one rank a host"
source = "fixed time of an all-reduce, measured"
bytes_per_s = 1e12
local_bytes_per_s = 1e12
latency_s = {fixed_s:.6g}
latency_per_rank_s = 0.0

[between]
kind = "single-switch"
title = "links limited by tbf"
source = "share of the rate that all-reduces get, measured"
ports_per_node = 1
port_bps = {rate_bps:.6g}
efficiency = {share:.6g}
hop_s = 0.0

[switch]
framing_bytes = 0    # in the efficiency
convert_bytes_per_s = 1e12
"""


def _in_turns(
    name: str, team: TrainingTeam, buckets: tuple[int, ...], steps: int, backend: str, workers: int, rate_bps: float
) -> tuple[Link, float]:
    """All-reduce constants for buckets of `buckets` bytes, and the seconds of a step. The cluster model runs
    all-reduces sequentially where Gloo runs two concurrently: fixed time that Gloo hides is attributed to the rate."""
    fixed_s = median(step_seconds(team.run(AllReduces((SMALL_BYTES,), 9))))
    reducing_s: list[float] = []
    training_s: list[float] = []
    for done in range(0, steps, TURN_STEPS):
        count = min(TURN_STEPS, steps - done)
        reducing_s += step_seconds(team.run(AllReduces(buckets, 1 + count)))[1:]
        training_s += step_seconds(team.run(Steps(1 + count)))[1:]
    all_s = median(reducing_s)
    moved = sum(buckets) * (1.0 if backend == "switchml" else 2.0 * (workers - 1) / workers)
    fixed_s = min(fixed_s, all_s / 2 / len(buckets))
    return Link(name, fixed_s, moved * 8 / rate_bps / (all_s - len(buckets) * fixed_s)), median(training_s)
