"""`switchml validate peers`: one real rank among emulated ones, beside the same script with all ranks real.

All-real: DDP in network namespaces around a switch (emulator/testbed/star.py), over links of limited rate, with Gloo
and with the aggregator in the switch's place. Emulated: the same script once, in wall-clock time, on a cluster that
says what the links are; all other ranks are absent.

What an all-reduce takes on the cluster is measured before each run, without training, as one would with nccl-tests: its
fixed time, and what share of the links' rate it gets. Ranks that share cores compute more slowly than one alone: they
take turns, W ranks on C cores W/C times as long, and disturb each other, which their CPU time says when all of them
train and none communicates. The emulated run is told (`compute_scale`). What is put to the test is the rest: meetings,
overlap, and a script that does not notice.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median

from emulator.bench.allreduce import Team
from emulator.bench.network.measure import SwitchAggregator
from emulator.peers.settings import Settings
from emulator.testbed import star as stars
from emulator.testbed.namespaces import Lab
from emulator.testbed.star import LinkOptions
from emulator.validation.peers.worker import BUCKETS, Join, Place, Reduce, Steps, Times
from emulator.validation.peers.worker import main as rank_main
from emulator.validation.rows import Row
from host_agent.forking import fork_server
from switchml.errors import ConfigError

BACKENDS = {"gloo": "ring", "switchml": "switchml"}
"""What the real ranks use → how the emulated world reduces."""
SMALL_BYTES, LARGE_BYTES = 4 << 10, 4 << 20
WARMUP_STEPS = 4
"""DDP's first step broadcasts and its second builds its buckets anew."""
STORE_PORT = 29500
BURST_S = 0.001
"""What a link lets through at once after a pause: the closed forms know no such gift."""


@dataclass(frozen=True)
class Plan:
    """What is measured. `layers` of 512 by 512 units; `batch` vectors for all ranks together, so that a machine of few
    cores has as much to compute, however many ranks."""

    workers: tuple[int, ...] = (2, 4)
    rates_bps: tuple[float, ...] = (50e6, 100e6, 200e6)
    backends: tuple[str, ...] = tuple(BACKENDS)
    steps: int = 15
    layers: int = 4
    batch: int = 256
    clock: str = "wall"

    def __post_init__(self) -> None:
        if min(self.workers) < 2:
            raise ConfigError("1 worker has no peers: expected 2 or more")
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
class Found:
    rows: list[Row]
    calibration: Calibration
    gradient_bytes: int
    reports: dict[str, dict]
    """What the emulated rank said, by row."""

    def as_json(self) -> dict:
        """Further keys for --json; times in seconds."""
        return {
            "calibration": asdict(self.calibration),
            "gradient_bytes": self.gradient_bytes,
            "parts": {name: report["parts"] for name, report in self.reports.items()},
        }


def validate(plan: Plan, say: Callable[[str], None] = lambda line: None) -> Found:
    """Measure, then emulate. `say` gets a line now and then. Raises ConfigError without root, iproute2 or torch."""
    context = fork_server("host_agent.training.preload", "emulator.validation.peers.worker")
    measured: dict[tuple[str, int, float], tuple[float, Link]] = {}
    alone: dict[int, float] = {}
    gradient_bytes = 0
    for workers in plan.workers:
        with _RealTeam(plan, workers, context, say) as team:
            for backend in plan.backends:
                team.join(backend)
                for rate_bps in plan.rates_bps:
                    team.star.set_rate(rate_bps)
                    name = f"{workers} ranks, {backend}, {rate_bps / 1e6:g} Mbit/s"
                    team.time(Steps(WARMUP_STEPS, False))  # transports learn the new rate
                    link = _link(name, team, backend, workers, rate_bps)
                    seconds = team.time(Steps(plan.steps, False))
                    measured[backend, workers, rate_bps] = seconds, link
                    say(f"{name}, all of them real: {seconds * 1e3:.1f} ms a step")
            team.time(Steps(plan.steps, True))
            alone[workers] = team.cpu_s
            gradient_bytes = team.gradient_bytes
    cores = len(os.sched_getaffinity(0))
    scale, rows, reports = {}, [], {}
    with tempfile.TemporaryDirectory(prefix="switchml-peers-") as folder, _EmulatedTeam(plan, context) as team:
        for workers, together_s in alone.items():
            team.join(Settings(world=workers, clock=plan.clock, quiet=True))
            team.time(Steps(WARMUP_STEPS, True))
            team.time(Steps(plan.steps, True))
            scale[workers] = max(1.0, together_s / team.cpu_s) * max(1.0, workers / cores)
        for (backend, workers, rate_bps), (seconds, link) in measured.items():
            path = Path(folder) / f"star-{len(rows)}.toml"
            path.write_text(star_cluster(rate_bps, link.fixed_s, link.share))
            settings = Settings(
                world=workers,
                cluster=str(path),
                network=BACKENDS[backend],
                clock=plan.clock,
                compute_scale=scale[workers],
                quiet=True,
            )
            team.join(settings)
            team.time(Steps(WARMUP_STEPS, False))
            predicted_s = team.time(Steps(plan.steps, False))
            rows.append(Row(link.name, seconds, predicted_s, "s"))
            reports[link.name] = team.report
            say(f"{link.name}, all but one emulated: {predicted_s * 1e3:.1f} ms a step")
    links = [link for _, link in measured.values()]
    return Found(rows, Calibration(links, scale, cores), gradient_bytes, reports)


def star_cluster(rate_bps: float, fixed_s: float = 0.0, share: float = 1.0) -> str:
    """A cluster file: hosts of one rank around a switch, links as those of emulator/testbed/star.py. `fixed_s`: what an
    all-reduce takes besides its bytes; `share` of the rate that these get."""
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


def _link(name: str, team: _RealTeam, backend: str, workers: int, rate_bps: float) -> Link:
    """All-reduces of two sizes. The cluster has them one after the other, where Gloo does two at once: so what it hides
    of their fixed times counts for the rate."""
    fixed_s = team.time(Reduce(SMALL_BYTES, 1, 9))
    large_s = team.time(Reduce(LARGE_BYTES, BUCKETS, 5))
    moved = LARGE_BYTES * (1.0 if backend == "switchml" else 2.0 * (workers - 1) / workers)
    fixed_s = min(fixed_s, large_s / 2 / BUCKETS)
    return Link(name, fixed_s, moved * 8 / rate_bps / (large_s - BUCKETS * fixed_s))


class _Ranks(Team):
    """Processes of `validation_rank`; `time` tells them what to do and returns the median of their means in seconds."""

    def __init__(self, places: list[Place], plan: Plan, context):
        self._plan = plan
        self._joined = 0
        self.gradient_bytes = 0
        self.report: dict = {}
        self.cpu_s = 0.0
        self._start(context, rank_main, [(place,) for place in places])

    def _join(self, backend: str, port: int, workers: int, variables: dict[str, str]) -> None:
        batch = max(1, self._plan.batch // workers)
        self.tell(Join(backend, port, self._plan.layers, batch, variables))
        self.replies(Join)

    def time(self, message: Steps | Reduce) -> float:
        """Ranks finish each step together; one that is late now and then is no reason to count its wait twice."""
        self.tell(message)
        times = self.replies(Times)
        self.gradient_bytes, self.report = times[0].gradient_bytes, times[0].report
        self.cpu_s = mean(one.cpu_s for one in times)
        seconds = [one.report.get("iteration_seconds") or one.seconds for one in times]
        return median(mean(step) for step in zip(*seconds, strict=True))


class _RealTeam(_Ranks):
    """All ranks real, each on a host of a star."""

    def __init__(self, plan: Plan, workers: int, context, say):
        self._stack = contextlib.ExitStack()
        try:
            lab = self._stack.enter_context(Lab())
            say(f"{workers} real ranks: building the network")
            self.star = stars.Star(lab, workers, LinkOptions(rate_bps=max(plan.rates_bps), burst_s=BURST_S))
            self._stack.callback(self.star.close)
            aggregator = SwitchAggregator(self.star)
            self._stack.callback(aggregator.stop)
            places = [
                Place(rank, workers, host.name, stars.INTERFACE, self.star.address(0), aggregator.address)
                for rank, host in enumerate(self.star.hosts)
            ]
            super().__init__(places, plan, context)
        except BaseException:
            self._stack.close()
            raise
        self._stack.callback(self.stop)

    def join(self, backend: str) -> None:
        """A new group and model."""
        self._joined += 1
        self._join(backend, STORE_PORT + self._joined, len(self.star.hosts), {})

    def __enter__(self) -> _RealTeam:
        return self

    def __exit__(self, *error) -> None:
        if error == (None, None, None):
            self.leave()
        self._stack.close()


class _EmulatedTeam(_Ranks):
    """One real rank."""

    def __init__(self, plan: Plan, context):
        super().__init__([Place(0, 1)], plan, context)

    def join(self, settings: Settings) -> None:
        """A new world and model."""
        self._join("switchml-emulated", _free_port(), settings.world, settings.environment())

    def __enter__(self) -> _EmulatedTeam:
        return self

    def __exit__(self, *error) -> None:
        if error == (None, None, None):
            self.leave()
        self.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
