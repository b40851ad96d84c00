"""Emulates a job: a description (tables as in a TOML job file) becomes a costed plan, its graph is
replayed, and the result is an iteration's time, its parts, and what the whole training costs.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from emulator import datafile
from emulator.cluster import cluster as clusters
from emulator.cluster import codecs
from emulator.cluster.cluster import Cluster
from emulator.cluster.innetwork import Streaming
from emulator.jobs import defaults, iteration, replicas, training
from emulator.jobs.costing import Plan, plan
from emulator.jobs.interval import Interval, interval
from emulator.jobs.memory_options import MemoryOptions
from emulator.jobs.training import Progress, Run
from emulator.replay.conditions import Conditions
from emulator.replay.engine import Replayed, competition, replay
from emulator.replay.parts import parts
from emulator.workload import memory, models
from emulator.workload.builder import GraphBuilder
from emulator.workload.combine import delayed
from emulator.workload.costs import Costs
from emulator.workload.graph import Graph, Kind
from emulator.workload.job import Job
from emulator.workload.loading.loading import Dataset, Loading, Storage, loading
from emulator.workload.models import LayerTable, Model, Transformer
from switchml.errors import ConfigError, OutOfMemory


@dataclass(frozen=True)
class Noise:
    """What machines have of stragglers, jitter and interference. (Failures are in `training.Run`.)"""

    stragglers: float = 0.0
    """Share of ranks that are slow throughout; which ones follows from `seed`."""
    slowness: float = 1.5
    """How many times longer their kernels take."""
    jitter: float = 0.0
    """Standard deviation of every kernel's duration, as a share of it."""
    interference: bool = True
    """Whether a collective slows the compute that goes on behind it."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.stragglers <= 1:
            raise ConfigError(f"stragglers is {self.stragglers}; expected the share of slow ranks, from 0 to 1")
        if not self.slowness >= 1:
            raise ConfigError(f"slowness is {self.slowness}; expected a factor of at least 1")

    @property
    def differ(self) -> bool:
        """Whether ranks differ from each other, so that data-parallel ones can't be folded."""
        return self.stragglers > 0 or self.jitter > 0


@dataclass(frozen=True)
class Data:
    """Where training data comes from; all of it optional: without a loader, data is always there in time."""

    loader: str = ""
    """pytorch, lru, nopfs or solar."""
    samples: int = 1_281_167
    """Of the data set; default: ImageNet's."""
    sample_bytes: float = 110e3
    """Default: ImageNet's average."""
    epochs: int = 3
    """Played, to see what caches give from the second one on."""
    buffer_bytes: float = 0.0
    """Of host memory for each data-parallel rank's cache."""
    workers: int = 8
    """Reads that a rank has in flight."""
    prefetch: int = 16
    """Batches that a rank loads ahead of training (DataLoader: 2 for each of 8 workers)."""
    read_window: int = 1
    """Of solar: steps whose reads are joined (PlannedLoader: 8)."""
    read_gap_bytes: float = -1.0
    """Of solar: what may lie between reads that are joined (PlannedLoader: 32768). Below 0: as much as is
    quicker to read along than to seek over."""


@dataclass(frozen=True)
class Request:
    """Everything that an emulation starts from. Sections of a job file are called like the fields."""

    ALIASES: ClassVar[dict[str, str]] = {"hindrances": "noise", "savings": "memory"}

    model: str
    cluster: str = "a100-dgx"
    job: Job = field(default_factory=Job)
    network: Streaming = field(default_factory=Streaming)
    codec: str = ""
    noise: Noise = field(default_factory=Noise)
    run: Run = field(default_factory=Run)
    data: Data = field(default_factory=Data)
    memory: MemoryOptions = field(default_factory=MemoryOptions)
    switch: dict[str, float] = field(default_factory=dict)
    """Fields of `emulator.cluster.cluster.Switch` in place of the cluster's own."""
    nccl_tables: str = ""
    """A folder of nccl-tests tables with the costs of all-reduces inside a node, in place of the cluster's formula."""
    input_shape: str = ""
    """Of a torch module: 3x224x224; several inputs with semicolons."""
    fold: str = ""
    """"all", "tensor" or "none"; empty: as much as can be."""
    ignore_memory: bool = False
    assumed: tuple[str, ...] = ()
    """Of a job's and a cluster's fields, those that the description did not give; `request` writes it."""


def request(table: Mapping[str, Any], where: str = "the job") -> Request:
    """From tables as a job file has them, with a micro-batch that fits where they give none. Raises ConfigError for
    anything unknown."""
    if "assumed" in table:
        raise ConfigError(f"{where}: " + datafile.unknown("key", "assumed", ["model", "cluster", "job"]))
    spec = datafile.build(Request, table, where)
    model, cluster = load_model(spec), load_cluster(spec)
    job, assumed = defaults.settled(spec.job, table, model, cluster, lambda job: _needed(spec, model, job, cluster))
    return dataclasses.replace(spec, job=job, assumed=assumed)


def _needed(spec: Request, model: Model, job: Job, cluster: Cluster) -> memory.Memory:
    """Of `job` in place of the request's own."""
    needed = memory.memory(model, job)
    if spec.memory == MemoryOptions():
        return needed
    codec = codecs.load(spec.codec) if spec.codec else None
    return spec.memory.memory(needed, plan(model, job, cluster, spec.network, codec))


def read_tables(path: Path, is_trusted: bool = False) -> dict[str, Any]:
    """The tables of a job file. Raises ConfigError where it can't be read; also where its model, or that of one of its
    `[[jobs]]`, is a torch module, whose code would run here, unless the file `is_trusted`."""
    tables = datafile.renamed(Request, datafile.load(path), str(path))
    jobs = tables.get("jobs")
    for table in (tables, *(jobs if isinstance(jobs, list) else ())):
        model = table.get("model") if isinstance(table, Mapping) else None
        if isinstance(model, str) and ":" in model and not is_trusted:
            raise ConfigError(
                f"{path}: model = {model!r} imports and runs code of that name: give --trust if you trust this file, "
                "or name the model yourself with --model"
            )
    return tables


@dataclass(frozen=True)
class Emulation:
    """An emulated job. Seconds, bytes, dollars."""

    request: Request
    plan: Plan
    memory: memory.Memory
    played: Replayed
    parts: dict[str, float]
    wall_s: float
    fold: str
    loading: Loading | None = None

    def __repr__(self) -> str:
        job = self.plan.job
        return f"<Emulation of {self.plan.model.name} on {job.gpus} {self.plan.cluster.name}: {self.iteration_s:.4g} s>"

    @property
    def iteration_s(self) -> float:
        return self.played.makespan_s

    @cached_property
    def interval(self) -> Interval:
        """What four in five of similar jobs took; nothing where none was measured."""
        spec = self.request
        unlike = {
            "stragglers or jitter": spec.noise.differ,
            "a data loader": bool(spec.data.loader),
            "compressed gradients": bool(spec.codec),
            "memory options": spec.memory != MemoryOptions(),
        }
        besides = ", ".join(name for name, is_so in unlike.items() if is_so)
        return interval(self.iteration_s, self.plan.model, self.plan.job, self.plan.cluster, besides)

    @property
    def samples_per_s(self) -> float:
        return self.plan.job.global_batch / self.iteration_s

    @property
    def mfu(self) -> float:
        """Model FLOPs, nothing recomputed, as a share of what all accelerators could do at peak."""
        job, model = self.plan.job, self.plan.model
        flops = model.flops_per_sample(job.sample_tokens(model)) * job.global_batch
        return flops / self.iteration_s / (job.gpus * self.plan.cluster.device.peak(job.precision))

    @property
    def tokens_per_s(self) -> float | None:
        """Of language models, all accelerators together."""
        model = self.plan.model
        return self.samples_per_s * self.plan.job.sample_tokens(model) if isinstance(model, Transformer) else None

    @property
    def flops_per_gpu(self) -> float:
        """Model FLOP/s of one accelerator."""
        return self.mfu * self.plan.cluster.device.peak(self.plan.job.precision)

    @property
    def steps(self) -> float:
        """Iterations of the whole training; 0: not asked for."""
        job, run = self.plan.job, self.request.run
        return run.tokens / (job.global_batch * job.sample_tokens(self.plan.model)) if run.tokens else run.steps

    @cached_property
    def progress(self) -> Progress:
        """What failures and checkpoints leave of the training's time."""
        run, gpus, seed = self.request.run, self.plan.job.gpus, self.request.noise.seed
        return training.progress(run, self.steps, self.iteration_s, self.checkpoint_s, gpus, seed)

    @property
    def goodput(self) -> float:
        """Share of time that is training, on average."""
        return self.progress.goodput

    @property
    def checkpoint_s(self) -> float:
        """Writing weights and optimizer states of one replica to shared storage."""
        if self.request.run.checkpoint_s:
            return self.request.run.checkpoint_s
        storage, job = self.plan.cluster.storage, self.plan.job
        size = 14.0 * self.plan.model.parameters
        writers = self.plan.cluster.nodes(job.tp * job.pp)
        return storage.latency_s + size / min(storage.total_bytes_per_s, writers * storage.node_bytes_per_s)

    @property
    def hours(self) -> float:
        """Wall-clock hours of the whole training."""
        return self.steps * self.iteration_s / self.goodput / 3600

    @property
    def gpu_hours(self) -> float:
        return self.hours * self.plan.job.gpus

    @property
    def cost(self) -> float:
        """Dollars of rent."""
        return self.gpu_hours * self.plan.cluster.hourly_price

    @property
    def energy_kwh(self) -> float:
        """Accelerators at their design power, hosts at theirs: an upper bound that ignores idling, and cooling."""
        cluster = self.plan.cluster
        watts = self.plan.job.gpus * cluster.device.watts + cluster.nodes(self.plan.job.gpus) * cluster.host_watts
        return self.hours * watts / 1000

    @property
    def assumed(self) -> dict[str, Any]:
        """Name → value of what the description left open."""
        return defaults.values_of(self.request.assumed, self.plan)

    def warnings(self) -> list[str]:
        """Figures that are hard to believe."""
        return defaults.warnings(self.plan, self.mfu, self.parts)

    def assumptions(self) -> list[str]:
        """Everything that a reader should know was assumed."""
        folded = {"all": "tensor- and data-parallel ranks", "tensor": "tensor-parallel ranks", "none": "nothing"}
        lines = [*self.plan.assumptions, f"folded: {folded[self.fold]}"]
        if self.request.noise.stragglers and self.fold == "all":
            played, dp = len(self.played.graph.ranks) // self.plan.job.pp, self.plan.job.dp
            lines.append(
                f"stragglers: {played:,} data-parallel ranks stand for {dp:,}, by which of their stages are slow"
            )
        if self.request.nccl_tables:
            lines.append(f"all-reduces inside a node: curves fitted to the tables in {self.request.nccl_tables}")
        if self.request.job.schedule == "axonn":
            lines.append("message-driven: a pass computes first, then exchanges with tensor- and expert-parallel ranks")
        if (codec := self.plan.codec) is not None:
            lines.append(f"codec: {codec.title}: {codec.source}; relative error {codec.error:g} a step")
        lines += self.request.memory.assumptions()
        if self.loading:
            data = self.request.data
            lines.append(
                f"data: {data.samples:,} samples of {data.sample_bytes / 1e3:g} kB, loader {data.loader}, "
                f"{data.buffer_bytes / 1e9:g} GB of cache a rank, {data.epochs} epochs played: "
                f"{self.loading.hit_rate:.1%} hits"
            )
        else:
            lines.append("data is always there in time (no loader given)")
        if self.request.ignore_memory:
            lines.append("memory was not checked")
        if self.request.run.mtbf_hours:
            lines.append(self.progress.assumption(self.checkpoint_s))
        if given := ", ".join(f"{name.replace('_', '-')} {value}" for name, value in self.assumed.items()):
            lines.insert(0, f"not given: {given}")
        lines.append(self.interval.basis)
        price = self.plan.cluster.price_source or "no price known: no cost"
        lines.append(f"price: {price}; energy at design power")
        return lines

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        job = self.plan.job

        def own(*names: str) -> dict[str, Any]:
            return {name: getattr(self, name) for name in names}

        figures = {
            "model": self.plan.model.name,
            "cluster": self.plan.cluster.name,
            **{name: getattr(job, name) for name in ("gpus", "tp", "pp", "dp")},
            "batch": job.global_batch,
            **{name: getattr(job, name) for name in ("micro_batch", "schedule", "recompute", "allreduce")},
            "iteration_s": self.iteration_s,
            "interval": self.interval.to_json(),
            "parts": {name.replace(" ", "_"): seconds for name, seconds in self.parts.items()},
            "memory_bytes": self.memory.total,
            "memory": self.memory.parts(),
            **own("samples_per_s", "mfu"),
            "tflops_per_gpu": self.flops_per_gpu / 1e12,
            **self._of_training(),
            "ops": len(self.played.graph.ops),
            "events": self.played.events,
            "wall_s": self.wall_s,
            "assumed": self.assumed,
            "assumptions": self.assumptions(),
            "warnings": self.warnings(),
        }
        if self.loading:
            figures["loading"] = self.loading.to_json()
        if self.tokens_per_s is not None:
            figures |= {"tokens_per_s": self.tokens_per_s, "tokens_per_s_per_gpu": self.tokens_per_s / job.gpus}
        return figures

    def _of_training(self) -> dict[str, Any]:
        """Figures of the whole training; None for those that nobody asked for, and for a cost without a price."""
        names = ("steps", "hours", "gpu_hours", "cost", "energy_kwh")
        figures: dict[str, Any] = {name: getattr(self, name) if self.steps else None for name in names}
        figures["cost"] = figures["cost"] or None
        return figures | (self.progress.to_json() if self.request.run.mtbf_hours else {"goodput": None})


def emulate(
    spec: Request,
    *,
    cluster: Cluster | None = None,
    progress: Callable[[int, int], None] | None = None,
    event_budget: int | None = None,
    time_budget_s: float | None = None,
) -> Emulation:
    """Cost, check memory, build, replay; on `cluster` in place of the one that is asked for. Raises ConfigError,
    OutOfMemory, BudgetSpent. Its `wall_s` leaves loading the compiled kernels out."""
    began = time.perf_counter()
    model = load_model(spec)
    cluster = cluster or load_cluster(spec)
    is_measured = isinstance(model, LayerTable) and model.forward_s is not None
    if is_measured and spec.job.micro_batches > 1 and spec.job.pp == 1:
        raise ConfigError(
            f"{model.name} has measured times for one batch a rank; take batch 0 or as many as data-parallel ranks"
        )
    costed = plan(model, spec.job, cluster, spec.network, codecs.load(spec.codec) if spec.codec else None)
    needed = memory.memory(model, spec.job)
    costed, needed = spec.memory.apply(costed, needed), spec.memory.memory(needed, costed)
    if not spec.ignore_memory:
        check_memory(model, spec.job, cluster, needed)
    noise, slow, stand_ins = spec.noise, None, None
    fold = spec.fold or ("tensor" if noise.differ else "all")
    if noise.stragglers:
        slow = replicas.slow_ranks(spec.job, noise.stragglers, noise.seed)
        is_large = spec.job.dp * replicas.ops_about(costed) > replicas.PLAYED_OPS
        fold = "all" if is_large and not (spec.fold or noise.jitter) else fold
        stand_ins = replicas.sampled(costed, slow, noise.slowness) if fold == "all" else None
    graph, costs = iteration.build(costed, fold, stand_ins)
    conditions = _conditions(spec, costed, graph, slow)
    began += load_kernels(competition(graph, conditions, costs.transfer_route) != "")
    budgets = {"progress": progress, "event_budget": event_budget, "time_budget_s": time_budget_s}
    played = replay(graph, costs, conditions, **budgets)
    loads = _load(spec, costed, played) if spec.data.loader else None
    if loads:
        played = replay(*delayed(graph, costs, "samples", Kind.LOAD, loads.stall_s), conditions, **budgets)
    where = parts(played).mean()
    emulation = Emulation(spec, costed, needed, played, where, time.perf_counter() - began, fold, loads)
    _ = emulation.progress  # a training that never ends is to be refused here
    return emulation


def _load(spec: Request, costed: Plan, played: Replayed) -> Loading:
    """Play the loader on the data set's index lists; each data-parallel rank reads its own samples."""
    data, job, storage = spec.data, costed.job, costed.cluster.storage
    dataset = Dataset(
        samples=data.samples,
        sample_bytes=data.sample_bytes,
        global_batch=job.global_batch,
        ranks=job.replicas,
        epochs=data.epochs,
        buffer_samples=int(data.buffer_bytes / data.sample_bytes),
        seed=spec.noise.seed,
    )
    on_a_node = max(1, min(job.dp, costed.cluster.accelerators_per_node // job.tp))
    shared = Storage(
        bytes_per_s=storage.total_bytes_per_s,
        client_bytes_per_s=storage.node_bytes_per_s / on_a_node,
        seek_s=storage.latency_s,
        reads_at_once=data.workers,
        peer_bytes_per_s=costed.cluster.between.node_bytes_per_s / on_a_node,
    )
    compute_s = parts(played).mean()["compute"]
    return loading(
        data.loader,
        dataset,
        shared,
        played.makespan_s,
        compute_s=compute_s,
        prefetch=data.prefetch,
        window=data.read_window,
        gap_bytes=data.read_gap_bytes if data.read_gap_bytes >= 0 else None,
    )


def replayed_s(costed: Plan) -> float:
    """Seconds of an iteration on perfect machines, everything folded."""
    return replay(*iteration.build(costed)).makespan_s


def load_kernels(competes: bool) -> float:
    """Have the replay's compiled kernels in memory: once a process, seconds when they were never compiled here. Returns
    the seconds that it took. `competes`: those of the engine for ops that compete with each other."""
    began = time.perf_counter()
    builder = GraphBuilder()
    stream = builder.add_stream(builder.add_rank())
    builder.add_op(stream, builder.add_work("warm-up", seconds=1.0))
    graph = builder.build()
    parts(replay(graph, Costs.of(graph, graph.works.seconds), engine="calendar" if competes else "sweep"))
    return time.perf_counter() - began


def load_model(spec: Request) -> Model:
    """A built-in, a file, or a torch module (package.module:callable) with its input's shape."""
    if ":" not in spec.model:
        if spec.input_shape:
            raise ConfigError("input-shape is for torch modules (package.module:callable)")
        return models.load(spec.model)
    from emulator.workload import torch_modules

    if not spec.input_shape:
        raise ConfigError(
            f"{spec.model} is a torch module: give its input's shape without the batch, such as 3x224x224"
        )
    shapes = [torch_modules.shape(one) for one in spec.input_shape.split(";")]
    return torch_modules.count(torch_modules.load(spec.model), shapes, name=spec.model.rpartition(":")[2])


def load_cluster(spec: Request) -> Cluster:
    """The cluster with what the request says in place of its own."""
    cluster = clusters.load(spec.cluster)
    if spec.nccl_tables:
        folder = str(Path(spec.nccl_tables).resolve())
        cluster = dataclasses.replace(cluster, inside=dataclasses.replace(cluster.inside, tables=folder))
    if spec.switch:
        table = dataclasses.asdict(cluster.switch) | spec.switch
        whole = {item.name for item in dataclasses.fields(clusters.Switch) if item.type == "int"}
        table = {key: int(value) if key in whole else value for key, value in table.items()}
        cluster = dataclasses.replace(cluster, switch=datafile.build(clusters.Switch, table, "switch"))
    return cluster


def check_memory(model: Model, job: Job, cluster: Cluster, needed: memory.Memory) -> None:
    """Raise OutOfMemory unless `needed` fits, with the parts and what would help."""
    available = cluster.device.memory_bytes
    if needed.total <= available:
        return
    detail = ", ".join(f"{name} {size / 1e9:.1f} GB" for name, size in needed.parts().items())
    helps = _what_helps(model, job, available)
    raise OutOfMemory(
        f"out of memory: {needed.total / 1e9:.1f} GB on the fullest accelerator, {cluster.device.title} has "
        f"{available / 1e9:.0f} GB ({detail}). {helps}",
        needed.total,
        needed.parts(),
    )


def _what_helps(model: Model, job: Job, available: float) -> str:
    """The least change that makes it fit, tried in order of what it costs."""
    tried: list[tuple[str, dict[str, Any]]] = [
        (f"zero {stage}", {"zero": stage}) for stage in (1, 2, 3) if stage > job.zero and (stage < 3 or job.pp == 1)
    ]
    if isinstance(model, Transformer) and job.recompute == "none":
        tried.insert(0, ("recompute selective", {"recompute": "selective"}))
    if isinstance(model, Transformer) and job.recompute in ("none", "selective"):
        tried.append(("recompute operators", {"recompute": "operators"}))
    if job.recompute != "full":
        tried.append(("recompute full", {"recompute": "full"}))
        tried.append(("recompute full with zero 1", {"recompute": "full", "zero": max(1, job.zero)}))
    for name, change in tried:
        try:
            if memory.memory(model, job.replace(**change)).total <= available:
                return f"It would fit with {name}"
        except ConfigError:
            continue
    return "Split it over more accelerators (tp, pp), or take smaller micro-batches"


def _conditions(spec: Request, costed: Plan, graph: Graph, slow: np.ndarray | None) -> Conditions:
    noise = spec.noise
    slowness = {} if slow is None else replicas.slowness(graph, spec.job, slow, noise.slowness)
    slowdown, software = 0.0, costed.cluster.software
    if noise.interference and spec.job.overlap and spec.job.dp > 1 and spec.job.pp == 1:
        is_inside = costed.data_parallel.nodes == 1
        slowdown = software.interference_inside if is_inside else software.interference_between
    return Conditions(slowness=slowness, jitter=noise.jitter, seed=noise.seed, overlap_slowdown=slowdown)
