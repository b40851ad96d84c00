"""`switchml validate real`: real training on this machine over links of limited rate, compared with the network model's
prediction.

Real: DDP on the digits in network namespaces around a switch (emulator/networks/testbed/star.py), with Gloo and with
the aggregator in the switch's place. Predicted: emulator/networks/netsim simulates the same all-reduces packet by
packet over links with the same token buckets, with a step's computation as a pause between them.

One run, two ranks at the middle rate, sets the constants: the CPU time of a step's computation `compute_s`; the number
of packets that an agent sends for each chunk of gradients (`packets_per_chunk`: gradients that grow or shrink by a
binade cause rounds to be repeated with another exponent, which the model, whose tensors don't change, omits); and each
backend's overhead per step (`overhead_s`: copies, system calls, wake-ups). Ranks that share cores compute in turns:
with W ranks on C cores `compute_s` counts max(1, W/C) times. Nothing else is fitted, and the calibration run's rows are
excluded from averages.

Besides one rank in each host, the aggregator is measured with several, with both hierarchies: with "none" they share
their host's link, its queue and its token bucket, both measured and simulated; with "node" one of them sends for all.
"""

import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import NamedTuple

from emulator.lab.bench.ranks.team import step_seconds, training_on_star
from emulator.lab.bench.ranks.training import WARMUP_STEPS, DigitsModel, Steps, Times
from emulator.lab.validation.rows import mape, within_5_percent, worst
from emulator.networks.netsim import experiment
from emulator.networks.netsim.config import JobConfig, LinkConfig, NetworkConfig
from emulator.networks.testbed.star import LinkOptions
from host_agent.training import data
from switchml.errors import ConfigError
from switchml.net.trains import MAX_JOINED
from switchml.protocol import sizes
from switchml.runtime.folders import TemporaryFolder

BACKENDS = ("gloo", "switchml")
HIERARCHIES = ("none", "node")
CALIBRATION_WORKERS = 2
_PLAYED_STEPS = 15
"""Steps that the model simulates, with as many warm-up steps as the real runs: the first starts with full token buckets
and untrained timers."""


class Layout(NamedTuple):
    """A job of `workers` ranks, `ranks_per_host` in each host. `hierarchy`: "node" if the ranks of a host sum first."""

    backend: str
    workers: int
    ranks_per_host: int = 1
    hierarchy: str = "none"

    @property
    def hosts(self) -> int:
        return self.workers // self.ranks_per_host

    @property
    def senders(self) -> int:
        """Ranks that send to the network."""
        return self.hosts if self.hierarchy == "node" else self.workers

    def __str__(self) -> str:
        return self.backend if self.ranks_per_host == 1 else f"{self.backend}/{self.hierarchy}"


@dataclass(frozen=True)
class RealPlan:
    """Measurement plan. `batch_size`: per rank. `ranks_per_host`: also measure that many ranks in
    each host; 1: don't."""

    workers: tuple[int, ...] = (2, 4, 8)
    rates_bps: tuple[float, ...] = (10e6, 20e6, 40e6)
    steps: int = 15
    batch_size: int = 16
    ranks_per_host: int = 2

    def __post_init__(self) -> None:
        if len(set(self.rates_bps)) != len(self.rates_bps) or len(set(self.workers)) != len(self.workers):
            raise ConfigError("a rate or a number of ranks is given twice")
        if min(self.workers) < 2:
            raise ConfigError("1 rank can't all-reduce: expected 2 or more")
        if self.steps < 3:
            raise ConfigError(f"{self.steps} steps: expected 3 or more, of which the median counts")

    @property
    def calibration_rate_bps(self) -> float:
        return sorted(self.rates_bps)[len(self.rates_bps) // 2]

    def layouts(self) -> Iterator[Layout]:
        """All layouts, grouped by number of hosts."""
        for workers in sorted({CALIBRATION_WORKERS, *self.workers}):
            yield from (Layout(backend, workers) for backend in BACKENDS)
        for workers in sorted(self.workers):
            if self.ranks_per_host > 1 and workers % self.ranks_per_host == 0 and workers > self.ranks_per_host:
                yield from (Layout("switchml", workers, self.ranks_per_host, name) for name in HIERARCHIES)


@dataclass(frozen=True)
class Calibration:
    """Seconds of one step: a rank's CPU time without all-reduces, and each backend's overhead over the model.
    `packets_per_chunk`: packets that an agent sent for each chunk, by backend; 1 with Gloo."""

    compute_s: float
    overhead_s: dict[str, float]
    packets_per_chunk: dict[str, float]
    cores: int

    def turns(self, workers: int) -> float:
        """Factor on compute time of ranks that share cores."""
        return max(1.0, workers / self.cores)


@dataclass(frozen=True)
class Row:
    """One run; seconds of the median step."""

    layout: Layout
    rate_bps: float
    measured_s: float
    predicted_s: float
    is_calibration: bool
    packets_per_chunk: float = 1.0
    """Packets per chunk that an agent sent in this run, for comparison; predictions use the calibration run's."""

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted_s / self.measured_s - 1


@dataclass(frozen=True)
class RealValidation:
    rows: list[Row]
    calibration: Calibration
    gradient_bytes: int

    @property
    def counted(self) -> list[Row]:
        return [row for row in self.rows if not row.is_calibration]

    @property
    def mape(self) -> float:
        """Mean absolute error as a share, over all rows but the calibration's."""
        return mape(self.counted)

    @property
    def worst(self) -> Row:
        return worst(self.counted)

    @property
    def within_5_percent(self) -> float:
        """Share of the counted rows with at most 5 % error."""
        return within_5_percent(self.counted)


Run = tuple[Layout, float]
"""A layout, and the links' rate in bits/s."""


@dataclass
class _Measured:
    """Measurements so far: by run, seconds of the median step, and packets that each sender sent in a step; CPU seconds
    of a step without all-reduces, for the calibration run's ranks."""

    step_s: dict[Run, float] = field(default_factory=dict)
    sent: dict[Run, float] = field(default_factory=dict)
    compute_s: float = 0.0
    gradient_bytes: int = 0


def validate(plan: RealPlan, progress: Callable[[str], None] = lambda line: None) -> RealValidation:
    """Measure, then predict. `progress` is called with status lines. Raises ConfigError without root, iproute2 or
    torch, PeerLost or JobError if a process dies."""
    measured = _Measured()
    with TemporaryFolder("validate") as folder:
        digits = Path(folder) / "digits.npz"
        data.load().save(digits)
        model = DigitsModel(str(digits), plan.batch_size)
        for _, layouts in itertools.groupby(plan.layouts(), lambda one: (one.hosts, one.ranks_per_host)):
            _measure(plan, list(layouts), model, measured, progress)
    progress("simulating the same packet by packet")
    return _predict(plan, measured)


def _measure(
    plan: RealPlan, layouts: Sequence[Layout], model: DigitsModel, measured: _Measured, progress: Callable[[str], None]
) -> None:
    """Measure layouts with the same hosts and ranks, and add the runs to `measured`."""
    workers, hosts, ranks_per_host = layouts[0].workers, layouts[0].hosts, layouts[0].ranks_per_host
    rates = plan.rates_bps if workers in plan.workers else (plan.calibration_rate_bps,)
    data.BatchOrder(rank=0, workers=workers, batch_size=plan.batch_size, seed=1)  # raises for sizes that cannot work
    progress(f"{workers} ranks on {hosts} hosts: building the network")
    with training_on_star(hosts, LinkOptions(rate_bps=max(rates)), ranks_per_host) as (star, team):
        alone: list[Times] = []
        for layout in layouts:
            progress(f"{workers} ranks: {layout}: starting")
            team.join(layout.backend, model, SWITCHML_HIERARCHY=layout.hierarchy)
            for rate_bps in rates:
                star.set_rate(rate_bps)
                team.run(Steps(WARMUP_STEPS, is_first=True))
                times = team.run(Steps(plan.steps))
                step_s = measured.step_s[layout, rate_bps] = median(step_seconds(times))
                packets = sum(one.packets_sent for one in times) / plan.steps
                measured.sent[layout, rate_bps] = packets / layout.senders
                progress(f"{workers} ranks, {rate_bps / 1e6:g} Mbit/s, {layout}: {step_s * 1e3:.1f} ms a step")
            alone += team.run(Steps(plan.steps, is_alone=True))
    if workers == CALIBRATION_WORKERS:
        measured.compute_s = median(one.process_cpu_s / plan.steps for one in alone)
        measured.gradient_bytes = alone[0].gradient_bytes


def _predict(plan: RealPlan, measured: _Measured) -> RealValidation:
    chunks = math.ceil(measured.gradient_bytes / JobConfig.payload_bytes)
    per_chunk = {run: packets / chunks or 1.0 for run, packets in measured.sent.items()}
    calibrated = {backend: (Layout(backend, CALIBRATION_WORKERS), plan.calibration_rate_bps) for backend in BACKENDS}
    calibration = Calibration(
        compute_s=measured.compute_s,
        overhead_s=dict.fromkeys(BACKENDS, 0.0),
        packets_per_chunk={backend: per_chunk[run] for backend, run in calibrated.items()},
        cores=len(os.sched_getaffinity(0)),
    )

    def predicted_s(layout: Layout, rate_bps: float) -> float:
        size_bytes = 4 * round(measured.gradient_bytes * calibration.packets_per_chunk[layout.backend] / 4)
        pause_s = calibration.compute_s * calibration.turns(layout.workers) + calibration.overhead_s[layout.backend]
        senders_per_host = layout.senders // layout.hosts
        return play(layout.backend, layout.senders, rate_bps, size_bytes, pause_s, senders_per_host)

    overheads = {backend: max(measured.step_s[run] - predicted_s(*run), 0.0) for backend, run in calibrated.items()}
    calibration.overhead_s.update(overheads)
    rows = [
        Row(*run, seconds, predicted_s(*run), run in calibrated.values(), per_chunk[run])
        for run, seconds in measured.step_s.items()
    ]
    return RealValidation(rows, calibration, measured.gradient_bytes)


def play(
    backend: str, workers: int, rate_bps: float, size_bytes: int, pause_s: float, workers_per_host: int = 1
) -> float:
    """Seconds of one step in the network model: a pause, then an all-reduce over links like those of star.py."""
    network = NetworkConfig(
        jobs=(
            JobConfig(
                workers=workers,
                size_bytes=size_bytes,
                backend="ring" if backend == "gloo" else backend,
                repeats=_PLAYED_STEPS,
                pause_s=pause_s,
                hosts=tuple(rank // workers_per_host for rank in range(workers)),
                train_packets=MAX_JOINED,
            ),
        ),
        link=links(rate_bps),
    )
    return pause_s + median(experiment.run(network).jobs[0].seconds[WARMUP_STEPS:])


def links(rate_bps: float) -> LinkConfig:
    """The links of star.py as a configuration of the network model."""
    options = LinkOptions(rate_bps=rate_bps)
    return LinkConfig(
        rate_bps=rate_bps,
        delay_s=0.0,
        queue_bytes=options.queue_limit_bytes,
        burst_bytes=options.burst_bytes,
        framing_bytes=sizes.UDP_BYTES + sizes.IP_BYTES + sizes.ETHERNET_BYTES,
    )
