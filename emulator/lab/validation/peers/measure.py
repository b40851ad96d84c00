"""`switchml validate peers`: one real rank among emulated ones, beside the same script with all ranks real.

All-real: DDP in network namespaces around a switch (emulator/networks/testbed/star.py), over links of limited rate,
with Gloo and with the aggregator in the switch's place. Emulated: the same script once, in wall-clock time, on a
cluster that says what the links are; all other ranks are absent.

What all-reduces take on the cluster is measured without training, as one would with nccl-tests: their fixed time, and
what share of the links' rate they get. That share depends on what is under way at once (Gloo reduces two buckets at a
time, and leaves its links idle between the two halves of the last one), so the sizes are those of DDP's buckets; and as
it changes from one second to the next, all-reduces and steps take turns. Ranks that share cores compute more slowly
than one alone: they take turns, W ranks on C cores W/C times as long, and disturb each other, which their CPU time says
when all of them train and none communicates. The emulated run is scaled by that (`compute_scale`). What is put to the
test is the rest: collectives, overlap, and a script that does not notice.
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
"""What the real ranks use → how the emulated world reduces."""
SMALL_BYTES = 4 << 10
WARMUP_STEPS = 4
"""DDP's first step broadcasts and its second builds its buckets anew."""
BUCKETS = 4
"""How many DDP should make of the gradients; it makes fewer, as layers stay whole."""
TURN_STEPS = 3
"""So many all-reduces of all buckets, then so many steps."""
BURST_S = 0.001
"""What a link lets through at once after a pause: the closed forms know no such gift."""


@dataclass(frozen=True)
class PeersPlan:
    """What is measured. `layers` of `width` by `width` units; `batch` vectors for all ranks together, so that a machine
    of few cores has as much to compute, however many ranks."""

    workers: tuple[int, ...] = (2, 4)
    rates_bps: tuple[float, ...] = (50e6, 100e6, 200e6)
    backends: tuple[str, ...] = tuple(BACKENDS)
    steps: int = 15
    layers: int = 4
    width: int = 512
    batch: int = 256
    clock: str = "wall"

    def model(self, workers: int) -> LayerStack:
        """What each of so many ranks trains."""
        stack = LayerStack(self.layers, self.width, max(1, self.batch // workers), inputs=self.width, momentum=0.0)
        return replace(stack, bucket_cap_mb=stack.gradient_bytes / BUCKETS / 2**20)

    def __post_init__(self) -> None:
        if min(self.workers) < 2:
            raise ConfigError("1 rank has no peers: expected 2 or more")
        if self.steps < 3:
            raise ConfigError(f"{self.steps} steps: expected 3 or more, of which the median counts")


@dataclass(frozen=True)
class Link:
    """What all-reduces were seen to take in one place. `share`: of the links' rate that they get."""

    name: str
    fixed_s: float
    share: float


@dataclass(frozen=True)
class Calibration:
    """Of each row's all-reduces; and how many times as long as one alone ranks take to compute, by their number."""

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
    """Measure, then emulate. `progress` gets a line now and then. Raises ConfigError without root, iproute2
    or torch."""
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
                    warm, *_ = team.run(Steps(WARMUP_STEPS))  # transports learn the new rate
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
    """A new world and model for the only real rank."""
    team.join("switchml-emulated", plan.model(settings.world), **settings.environment())


def star_cluster(rate_bps: float, fixed_s: float = 0.0, share: float = 1.0) -> str:
    """A cluster file: hosts of one rank around a switch, links as those of emulator/networks/testbed/star.py.
    `fixed_s`: what an all-reduce takes besides its bytes; `share` of the rate that these get."""
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
    """What all-reduces of `buckets` bytes take, and the seconds of a step. The cluster has all-reduces one after the
    other, where Gloo does two at once: what it hides of their fixed times counts for the rate."""
    fixed_s = median(step_seconds(team.run(AllReduces((SMALL_BYTES,), 9))))
    reducing_s: list[float] = []
    training_s: list[float] = []
    for done in range(0, steps, TURN_STEPS):
        count = min(TURN_STEPS, steps - done)
        reducing_s += step_seconds(team.run(AllReduces(buckets, count)))
        training_s += step_seconds(team.run(Steps(count)))
    all_s = median(reducing_s)
    moved = sum(buckets) * (1.0 if backend == "switchml" else 2.0 * (workers - 1) / workers)
    fixed_s = min(fixed_s, all_s / 2 / len(buckets))
    return Link(name, fixed_s, moved * 8 / rate_bps / (all_s - len(buckets) * fixed_s)), median(training_s)
