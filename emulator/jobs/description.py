"""The input of an emulation: the tables of a job file, and the model and cluster that they name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emulator import datafile
from emulator.cluster import cluster as clusters
from emulator.cluster import codecs
from emulator.cluster.cluster import Cluster
from emulator.cluster.codecs import Codec
from emulator.cluster.innetwork import Streaming
from emulator.jobs import defaults
from emulator.jobs.candidates import OpenJob
from emulator.jobs.choice import CandidateEvaluator, Choice, choose
from emulator.jobs.costed import CostedJob
from emulator.jobs.costing import plan
from emulator.jobs.memory_options import MemoryOptions
from emulator.jobs.training import Run
from emulator.jobs.workload import memory, models
from emulator.jobs.workload.job import Job
from emulator.jobs.workload.models import Model
from emulator.ranges import SEED, SHARE, Range, Ranged, number
from switchml.errors import ConfigError


@dataclass(frozen=True)
class Noise(Ranged):
    """Stragglers, jitter and interference. (Failures are in `training.Run`.)"""

    stragglers: float = number(SHARE, 0.0)
    """Share of ranks that are stragglers; `seed` determines which."""
    slowness: float = number(Range(1, 1e6), 1.5)
    """Factor on the duration of a straggler's kernels."""
    jitter: float = number(Range(0, 100), 0.0)
    """Standard deviation of kernel durations, relative to the mean."""
    interference: bool = True
    """Whether a collective slows concurrent compute."""
    seed: int = number(SEED, 0)

    @property
    def differ(self) -> bool:
        """Whether ranks differ from each other, so that data-parallel ranks can't be folded."""
        return self.stragglers > 0 or self.jitter > 0


@dataclass(frozen=True)
class Data(Ranged):
    """The input pipeline. All fields are optional; without a loader, data never stalls training."""

    loader: str = ""
    """pytorch, lru, nopfs or solar."""
    samples: int = number(Range(1, 1_000_000_000), 1_281_167)
    """Size of the data set; default: ImageNet's."""
    sample_bytes: float = number(Range(1, 1e12), 110e3)
    """Default: ImageNet's average."""
    epochs: int = number(Range(1, 1000), 3)
    """Number of simulated epochs; caches take effect from the second on."""
    buffer_bytes: float = number(Range(0, 1e15), 0.0)
    """Host memory for each data-parallel rank's cache."""
    workers: int = number(Range(1, 10_000), 8)
    """Concurrent reads of a rank."""
    prefetch: int = number(Range(1, 1_000_000), 16)
    """Batches that a rank loads ahead of training (DataLoader: 2 for each of 8 workers)."""
    read_window: int = number(Range(1, 1_000_000), 1)
    """solar: number of steps whose reads are coalesced (PlannedLoader: 8)."""
    read_gap_bytes: float = number(Range(-1, 1e15), -1.0)
    """solar: largest gap between coalesced reads (PlannedLoader: 32768). Below 0: the largest gap that is faster to
    read than to seek over."""


@dataclass(frozen=True)
class Request:
    """The complete input of an emulation. Sections of a job file are named like the fields."""

    model: str
    cluster: str = "a100-dgx"
    accelerator: str = ""
    """A built-in one or a .toml file, in place of the cluster's."""
    job: Job = field(default_factory=Job)
    network: Streaming = field(default_factory=Streaming)
    codec: str = ""
    noise: Noise = field(default_factory=Noise)
    run: Run = field(default_factory=Run)
    data: Data = field(default_factory=Data)
    memory: MemoryOptions = field(default_factory=MemoryOptions)
    switch: dict[str, float] = field(default_factory=dict)
    """Overrides of the cluster's `emulator.cluster.cluster.Switch` fields."""
    nccl_tables: str = ""
    """Folder of nccl-tests tables with the costs of all-reduces, replacing the cluster's formula."""
    input_shape: str = ""
    """Input shape of a torch module: 3x224x224; separate several inputs by semicolons."""
    fold: str = ""
    """"all", "tensor" or "none"; empty: as much as possible."""
    ignore_memory: bool = False
    split: str = ""
    """"auto": search all values of unspecified split options; empty: choose a split only where none is given or the
    given one does not fit, and then the simplest that is fast."""
    assumed: tuple[str, ...] = ()
    """Names of job and cluster options that the description omits; set by `request`."""
    choice: Choice = Choice()
    """How the omitted job fields were chosen; set by `request`."""

    def __post_init__(self) -> None:
        if self.split not in ("", "auto"):
            raise ConfigError(f"split is {self.split!r}; expected auto, or --tp, --pp and --zero in its place")


def request(table: Mapping[str, Any], where: str = "the job") -> Request:
    """Build a request from the tables of a job file. Unspecified job options are chosen (`choice.py`). Raises
    ConfigError for unknown keys and names."""
    for key in ("assumed", "choice"):
        if key in table:
            raise ConfigError(f"{where}: " + datafile.unknown("key", key, ["model", "cluster", "job"]))
    spec, batch, refusal = _built(table, where)
    model, cluster, codec = load_model(spec), load_cluster(spec), load_codec(spec)
    defaulting = ("batch", "implementation")  # 0 and "" mean unspecified for these
    given = frozenset(name for name, value in table.get("job", {}).items() if value or name not in defaulting)

    def costed(job: Job) -> CostedJob:
        planned = plan(model, job, cluster, spec.network, codec)
        is_plain = spec.memory == MemoryOptions()
        return planned if is_plain else spec.memory.apply(planned, memory.memory(model, job))

    reduces = (
        codec is not None or spec.job.allreduce != "auto" or bool(spec.memory.offload_bucket or spec.memory.pruned)
    )
    open_job = OpenJob(spec.job.replace(batch=0), batch, given, model, cluster, reduces)
    evaluator = CandidateEvaluator(lambda job: _needed(spec, model, job, cluster), costed, cluster.device.memory_bytes)
    job, choice = choose(open_job, evaluator, wide=spec.split == "auto")
    if job is None:
        if refusal is not None:
            raise refusal
        job = open_job.default()  # costing it reports what is wrong
    assumed = defaults.assumed(given, job, model, "cluster" in table)
    return dataclasses.replace(spec, job=job, assumed=assumed, choice=choice)


def _needed(spec: Request, model: Model, job: Job, cluster: Cluster) -> memory.Memory:
    """Return the memory use of `job`, with the request's memory options."""
    needed = memory.memory(model, job)
    if spec.memory == MemoryOptions():
        return needed
    return spec.memory.memory(needed, plan(model, job, cluster, spec.network, load_codec(spec)))


def _built(table: Mapping[str, Any], where: str) -> tuple[Request, int, ConfigError | None]:
    """Return the request, its batch, and the error about the batch that another split may avoid."""
    try:
        spec = datafile.build(Request, table, where)
        return spec, spec.job.batch, None
    except ConfigError as error:
        job = table.get("job")
        batch = job.get("batch") if isinstance(job, Mapping) else None
        if type(batch) is not int or batch < 1 or {"tp", "pp"} <= set(job or ()):
            raise
        spec = datafile.build(Request, {**table, "job": {**job, "batch": 0}}, where)  # type: ignore[dict-item]
        return spec, batch, error


def read_tables(path: Path, is_trusted: bool = False) -> dict[str, Any]:
    """Read the tables of a job file. Raises ConfigError where it can't be read, or where its model, or that of one of
    its `[[jobs]]`, is a torch module, whose code would run here, unless the file `is_trusted`."""
    tables = datafile.load(path)
    jobs = tables.get("jobs")
    for table in (tables, *(jobs if isinstance(jobs, list) else ())):
        model = table.get("model") if isinstance(table, Mapping) else None
        if isinstance(model, str) and ":" in model and not is_trusted:
            raise ConfigError(
                f"{path}: model = {model!r} imports and runs code of that name: give --trust if you trust this file, "
                "or name the model yourself with --model"
            )
    return tables


def load_model(spec: Request) -> Model:
    """Load a built-in model, a model file, or a torch module (package.module:callable) with its input shape."""
    if ":" not in spec.model:
        if spec.input_shape:
            raise ConfigError("input-shape is for torch modules (package.module:callable)")
        return models.load(spec.model)
    from emulator.jobs.workload import torch_modules

    if not spec.input_shape:
        raise ConfigError(
            f"{spec.model} is a torch module: give its input's shape without the batch, such as 3x224x224"
        )
    shapes = [torch_modules.shape(one) for one in spec.input_shape.split(";")]
    return torch_modules.count(torch_modules.load(spec.model), shapes, name=spec.model.rpartition(":")[2])


def load_cluster(spec: Request) -> Cluster:
    """Load the cluster and apply the request's overrides."""
    cluster = clusters.equipped(spec.cluster, spec.accelerator)
    if spec.nccl_tables:
        folder = str(Path(spec.nccl_tables).resolve())
        cluster = dataclasses.replace(cluster, inside=dataclasses.replace(cluster.inside, tables=folder))
    if spec.switch:
        table = dataclasses.asdict(cluster.switch) | spec.switch
        whole = {item.name for item in dataclasses.fields(clusters.Switch) if item.type == "int"}
        table = {key: int(value) if key in whole else value for key, value in table.items()}
        cluster = dataclasses.replace(cluster, switch=datafile.build(clusters.Switch, table, "switch"))
    return cluster


def load_codec(spec: Request) -> Codec | None:
    """Load the gradient codec, if any."""
    return codecs.load(spec.codec) if spec.codec else None
