"""`switchml validate replay`: real training on this machine is traced, replayed, and changed in the model; then the
same changes are made to the real run.

DDP trains in network namespaces around a switch (emulator/networks/testbed/star.py), with links slow enough to be the
bottleneck, and with sleeps in place of accelerator time, so that ranks do not compete for the cores of this machine.
One run with Gloo is captured as by `switchml trace capture`. The predictions use its traces and the link rate only: of
the run itself, of half the bandwidth, of other buckets, of the aggregator in Gloo's place, of a slow rank. Nothing is
fitted to the runs that they are compared with. Each run is measured without capture, the captured one before and after
it; a prediction is that time plus the change in iteration time according to the replay, so that the profiler's overhead
is in neither.

As all ranks run on one machine, their clocks agree, so the captures also show how accurately unsynchronized clocks
would be aligned.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from emulator.lab.bench.ranks.team import TrainingTeam, step_seconds, training_on_star
from emulator.lab.bench.ranks.training import WARMUP_STEPS, LayerStack, Steps
from emulator.lab.validation.clocks import Recovered, recovered
from emulator.lab.validation.rows import Row, summary
from emulator.networks.testbed.star import LinkOptions, Star
from emulator.traces.join import join_each
from emulator.traces.joined import Joined
from emulator.traces.readers.read import read
from emulator.traces.whatif import changes, contention
from emulator.traces.whatif.network import fit
from emulator.traces.whatif.predict import predicted
from switchml.errors import ConfigError
from switchml.runtime.folders import TemporaryFolder

BURST_S = 0.002
"""Burst of the links' rate limiters, in seconds at the link rate. Traffic after a pause, such as an all-reduce, passes
unlimited up to this amount, so it is kept small."""
TRACED = {"gloo": "gloo", "the aggregator": "switchml"}
"""Captured runs, and their backends."""


@dataclass(frozen=True)
class ReplayPlan:
    """Measurement plan. `batch`: per rank; `device_s`: per layer, see `LayerStack`; `slowness`: of the last rank in the
    run with a slow one."""

    workers: tuple[int, ...] = (2, 4)
    rate_bps: float = 200e6
    steps: int = 12
    layers: int = 6
    width: int = 512
    batch: int = 32
    device_s: float = 0.005
    bucket_cap_mb: float = 1.0
    other_cap_mb: float = 25.0
    slowness: float = 1.5

    def __post_init__(self) -> None:
        if min(self.workers) < 2 or len(set(self.workers)) != len(self.workers):
            raise ConfigError(f"ranks {self.workers}: expected different numbers from 2 up")
        if self.steps < 3:
            raise ConfigError(f"{self.steps} steps: expected 3 or more")
        if not self.slowness > 1:
            raise ConfigError(f"a slow rank {self.slowness:g} times as slow: expected more than 1")

    @property
    def model(self) -> LayerStack:
        return LayerStack(self.layers, self.width, self.batch, device_s=self.device_s, bucket_cap_mb=self.bucket_cap_mb)


@dataclass(frozen=True)
class ReplayValidation:
    """Seconds of a mean iteration."""

    self_replays: list[Row]
    what_ifs: list[Row]
    clocks: list[Recovered]
    peers: list[Row] = dataclasses.field(default_factory=list)
    """Runs with one real rank among emulated ones, compared with all-real ones
    (emulator/lab/validation/peers/measure.py)."""

    @property
    def groups(self) -> dict[str, list[Row]]:
        """All rows, by kind."""
        groups = {"self-replay": self.self_replays, "what-if": self.what_ifs, "emulated peers": self.peers}
        return {kind: rows for kind, rows in groups.items() if rows}

    def as_json(self) -> dict[str, Any]:
        """JSON object: all rows, the averages of the what-ifs, and those of the others under their own names."""
        summaries = {kind: summary(rows) for kind, rows in self.groups.items()}
        rows = [row | {"kind": kind} for kind, one in summaries.items() for row in one.pop("rows")]
        clocks = [dataclasses.asdict(row) for row in self.clocks]
        averages = {**summaries.pop("what-if"), "rows": rows, "clocks": clocks}
        return averages | {kind.replace("-", "_").replace(" ", "_"): one for kind, one in summaries.items()}


def validate(
    plan: ReplayPlan, progress: Callable[[str], None] = lambda line: None, keep: Path | None = None
) -> ReplayValidation:
    """Measure and predict. `progress` is called with status lines; traces are saved in `keep`, if given. Raises
    ConfigError without root, iproute2 or torch, PeerLost or JobError if a process dies."""
    own: list[Row] = []
    others: list[Row] = []
    clocks: list[Recovered] = []
    for workers in plan.workers:
        progress(f"{workers} ranks: building the network")
        with (
            TemporaryFolder("replay") as folder,
            training_on_star(workers, LinkOptions(rate_bps=plan.rate_bps, burst_s=BURST_S)) as (star, team),
        ):
            runs = _Runs(plan, star, team, Path(keep or folder) / f"{workers}-workers", progress)
            runs.measure()
            own += runs.self_replays()
            others += runs.what_ifs()
            clocks += runs.clocks()
    return ReplayValidation(own, others, clocks)


class _Runs:
    """The runs with one number of workers."""

    def __init__(
        self, plan: ReplayPlan, star: Star, team: TrainingTeam, folder: Path, progress: Callable[[str], None]
    ) -> None:
        self.plan, self.star, self.team, self.folder, self.progress = plan, star, team, folder, progress
        self.workers = len(star.hosts)
        self.measured: dict[str, float] = {}
        self.while_traced: dict[str, float] = {}

    def measure(self) -> None:
        """Measure all runs."""
        plan, model = self.plan, self.plan.model
        slow = [model] * (self.workers - 1) + [dataclasses.replace(model, slowness=plan.slowness)]
        self._run("gloo", model, trace=True)
        self.star.set_rate(plan.rate_bps / 2)
        self._run("half the bandwidth", model)
        self.star.set_rate(plan.rate_bps)
        self._run("other buckets", dataclasses.replace(model, bucket_cap_mb=plan.other_cap_mb))
        self._run("a slow rank", slow)
        self._run("the aggregator", model, trace=True)

    def _run(self, name: str, models: LayerStack | Sequence[LayerStack], *, trace: bool = False) -> None:
        backend, steps = TRACED.get(name, "gloo"), self.plan.steps
        self.team.join(backend, models)
        self.team.run(Steps(WARMUP_STEPS))
        seconds = step_seconds(self.team.run(Steps(steps)))
        if trace:
            folder = self.folder / backend
            folder.mkdir(parents=True, exist_ok=True)
            # The profiler starts in the first step, and writes its files in the last.
            self.while_traced[name] = mean(step_seconds(self.team.run(Steps(steps + 2, trace=str(folder))))[1:-1])
            seconds += step_seconds(self.team.run(Steps(steps)))
        self.measured[name] = mean(seconds)
        self.progress(f"{self.workers} ranks: {name}: {self.measured[name] * 1e3:.1f} ms a step")

    def self_replays(self) -> list[Row]:
        """Rows of each traced run: the replay, and the same steps by the ranks' own clocks."""
        rows = []
        for name, backend in TRACED.items():
            replayed = predicted(join_each(read(self.folder / backend)))
            rows.append(Row(f"{self.workers} ranks, {name}", self.while_traced[name], replayed.iteration_s, "s"))
        return rows

    def clocks(self) -> list[Recovered]:
        """Accuracy of clock alignment, with each traced run's clocks shifted."""
        return [
            row
            for name, backend in TRACED.items()
            for row in recovered(f"{self.workers} ranks, {name}", read(self.folder / backend))
        ]

    def what_ifs(self) -> list[Row]:
        """Rows of each what-if change to the traced Gloo run, compared with the real run with that change."""
        plan = self.plan
        traces = read(self.folder / "gloo")
        iterations = join_each(traces)
        network = fit(iterations, plan.rate_bps)
        contended = contention.measure(iterations)
        iterations = [dataclasses.replace(one, network=network, contention=contended) for one in iterations]
        cap = plan.other_cap_mb * 2**20
        what_ifs: dict[str, Callable[[Joined], Joined]] = {
            "half the bandwidth": lambda one: changes.bandwidth(one, factor=0.5),
            "other buckets": lambda one: changes.buckets(one, [cap]),
            "a slow rank": lambda one: changes.slow(one, {self.workers - 1: plan.slowness}),
            "the aggregator": lambda one: changes.allreduce(one, "switchml"),
        }
        untraced_s = self.measured["gloo"] - predicted(iterations).iteration_s
        rows = []
        for name, change in what_ifs.items():
            replayed_s = predicted([change(one) for one in iterations]).iteration_s
            rows.append(Row(f"{self.workers} ranks, {name}", self.measured[name], replayed_s + untraced_s, "s"))
        return rows
