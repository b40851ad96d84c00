"""`switchml validate peers`: one real rank among emulated ones, beside the same script with all ranks real.

All-real: DDP in network namespaces around a switch (emulator/star.py), over links of limited rate, with Gloo and with
the aggregator in the switch's place. Emulated: the same script once, in wall-clock time, on a cluster that says what
the links are; all other ranks are absent.

What the cluster says beyond the links' rate is measured before, on two hosts at one rate, with all-reduces of two sizes
and no training: the fixed time of an all-reduce, and what it costs a byte beyond the wire. Ranks that share cores
compute more slowly than one alone: how much, is measured with all of them training and none communicating, and the
emulated run is told (`compute_scale`).
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing import connection, forkserver, get_context
from pathlib import Path
from statistics import mean, median

from emulator import star as stars
from emulator.cluster import cluster as clusters
from emulator.cluster.collectives import price
from emulator.cluster.topology import Place as Location
from emulator.namespaces import Lab
from emulator.peers.settings import Settings
from emulator.peers.validation_rank import Join, Place, Reduce, Steps, Times
from emulator.peers.validation_rank import main as rank_main
from emulator.star import LinkOptions
from emulator.validation.rows import Row
from host_agent.bench.allreduce import Team
from host_agent.bench.network import SwitchAggregator
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
    rates_bps: tuple[float, ...] = (100e6, 200e6, 400e6)
    backends: tuple[str, ...] = tuple(BACKENDS)
    steps: int = 15
    layers: int = 4
    batch: int = 512
    clock: str = "wall"

    def __post_init__(self) -> None:
        if min(self.workers) < 2:
            raise ConfigError("1 worker has no peers: expected 2 or more")
        if self.steps < 3:
            raise ConfigError(f"{self.steps} steps: expected 3 or more, of which the median counts")


@dataclass(frozen=True)
class Calibration:
    """How a backend's all-reduce differs from bytes on a wire, and how much longer ranks that share cores compute."""

    fixed_s: dict[str, float]
    bytes_per_s: dict[str, float]
    """float inf: nothing beyond the wire."""
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
    context = get_context("forkserver")
    context.set_forkserver_preload(["host_agent.training.preload", "emulator.peers.validation_rank"])
    forkserver.ensure_running()
    measured: dict[tuple[str, int, float], float] = {}
    alone: dict[int, float] = {}
    reduced: dict[tuple[str, int], float] = {}
    gradient_bytes = 0
    middle_bps = sorted(plan.rates_bps)[len(plan.rates_bps) // 2]
    for workers in sorted({2, *plan.workers}):
        with _RealTeam(plan, workers, context, say) as team:
            for backend in plan.backends:
                team.join(backend)
                if workers == 2:
                    team.star.set_rate(middle_bps)
                    for size_bytes in (SMALL_BYTES, LARGE_BYTES):
                        reduced[backend, size_bytes] = team.time(Reduce(size_bytes, 9))
                for rate_bps in plan.rates_bps if workers in plan.workers else ():
                    team.star.set_rate(rate_bps)
                    team.time(Steps(WARMUP_STEPS, False))
                    measured[backend, workers, rate_bps] = seconds = team.time(Steps(plan.steps, False))
                    say(f"{workers} real ranks, {backend}, {rate_bps / 1e6:g} Mbit/s: {seconds * 1e3:.1f} ms a step")
            alone[workers] = team.time(Steps(plan.steps, True))
            gradient_bytes = team.gradient_bytes
    calibration, rows, reports = None, [], {}
    with tempfile.TemporaryDirectory(prefix="switchml-peers-") as folder, _EmulatedTeam(plan, context) as team:
        scale = {}
        for workers, together_s in alone.items():
            team.join(Settings(world=workers, clock=plan.clock, quiet=True))
            team.time(Steps(WARMUP_STEPS, True))
            scale[workers] = together_s / team.time(Steps(plan.steps, True))
        calibration = _calibrate(plan, reduced, middle_bps, scale)
        for (backend, workers, rate_bps), seconds in measured.items():
            path = Path(folder) / f"{backend}-{rate_bps:.0f}.toml"
            path.write_text(star_cluster(rate_bps, calibration.fixed_s[backend], calibration.bytes_per_s[backend]))
            settings = Settings(
                world=workers,
                cluster=str(path),
                network=BACKENDS[backend],
                clock=plan.clock,
                compute_scale=max(1.0, calibration.compute_scale[workers]),
                quiet=True,
            )
            team.join(settings)
            team.time(Steps(WARMUP_STEPS, False))
            predicted_s = team.time(Steps(plan.steps, False))
            name = f"{workers} ranks, {backend}, {rate_bps / 1e6:g} Mbit/s"
            rows.append(Row(name, seconds, predicted_s, "s"))
            reports[name] = team.report
            say(f"{name}, emulated: {predicted_s * 1e3:.1f} ms a step")
    return Found(rows, calibration, gradient_bytes, reports)


def star_cluster(rate_bps: float, fixed_s: float, bytes_per_s: float) -> str:
    """A cluster file: hosts of one rank around a switch, links as those of emulator/star.py. `fixed_s`, `bytes_per_s`:
    what an all-reduce takes beyond the wire."""
    # TCP: 1448 bytes in a frame of 1514 as tbf counts. Aggregation: payload of 1024 in 1076.
    return f"""title = "a star of namespaces, {rate_bps / 1e6:g} Mbit/s"
accelerator = "xeon-8380"
accelerators_per_node = 1

[inside]
title = "memory"
source = "all-reduces of {SMALL_BYTES} and {LARGE_BYTES} bytes between two hosts"
bytes_per_s = 1e12
local_bytes_per_s = {bytes_per_s:.6g}
latency_s = {fixed_s:.6g}
latency_per_rank_s = 0.0

[between]
kind = "single-switch"
title = "links limited by tbf"
source = "TCP: 1448 bytes in each frame of 1514"
ports_per_node = 1
port_bps = {rate_bps:.6g}
efficiency = {1448 / 1514:.6f}
hop_s = 0.0

[switch]
payload_bytes = 1024
framing_bytes = 5
convert_bytes_per_s = {min(bytes_per_s, 1e12):.6g}
"""


def _calibrate(plan: Plan, reduced: dict, rate_bps: float, scale: dict[int, float]) -> Calibration:
    """What is left of the measured all-reduces when the wire's part is taken off."""
    fixed_s, bytes_per_s = {}, {}
    with tempfile.TemporaryDirectory(prefix="switchml-peers-") as folder:
        for backend in plan.backends:
            path = Path(folder) / f"{backend}.toml"
            path.write_text(star_cluster(rate_bps, 0.0, 1e12))
            ideal = clusters.load(str(path))
            where = Location(2, 2, 1, 2)
            left = {
                size: reduced[backend, size] - price(ideal, "all_reduce", size, where, BACKENDS[backend]).seconds
                for size in (SMALL_BYTES, LARGE_BYTES)
            }
            fixed_s[backend] = max(left[SMALL_BYTES], 0.0)
            per_byte = (left[LARGE_BYTES] - fixed_s[backend]) / LARGE_BYTES
            bytes_per_s[backend] = 1.0 / per_byte if per_byte > 1e-12 else 1e12
    return Calibration(fixed_s, bytes_per_s, scale, len(os.sched_getaffinity(0)))


class _Ranks(Team):
    """Processes of `validation_rank`; `time` tells them what to do and returns the median of their means in seconds."""

    def __init__(self, places: list[Place], plan: Plan, context):
        self._plan = plan
        self._pipes: list[connection.Connection] = []
        self._processes = []
        self._joined = 0
        self.gradient_bytes = 0
        self.report: dict = {}
        for place in places:
            ours, theirs = context.Pipe()
            process = context.Process(target=rank_main, args=(place, theirs), name=f"rank {place.rank}", daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def _join(self, backend: str, port: int, workers: int, variables: dict[str, str]) -> None:
        batch = max(1, self._plan.batch // workers)
        self.tell(Join(backend, port, self._plan.layers, batch, variables))
        self.replies(Join)

    def time(self, message: Steps | Reduce) -> float:
        """Ranks finish each step together; one that is late now and then is no reason to count its wait twice."""
        self.tell(message)
        times = self.replies(Times)
        self.gradient_bytes, self.report = times[0].gradient_bytes, times[0].report
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
