"""`switchml.emulate` and `switchml.sweep`: emulation of jobs on clusters from keyword arguments, named as in a job
file."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from emulator import datafile
from emulator.jobs import sweep as sweeps
from emulator.jobs.description import Request, read_tables, request
from emulator.jobs.emulate import emulate as run
from emulator.jobs.emulation import Emulation
from emulator.jobs.workload.job import Job
from emulator.surface.api.summarized import Library, Summarized, frame
from switchml.errors import ConfigError
from switchml.units import memory_text, time_text

if TYPE_CHECKING:
    import pandas
    from typing_extensions import Unpack

Table = Mapping[str, Any]
_JOB = {field.name for field in dataclasses.fields(Job)}


class Options(TypedDict, total=False):
    """Options of a job file. Those of its `[job]` section are on the same level as `model`; other sections are
    dictionaries. `emulator.jobs.workload.job.Job` and `emulator.jobs.description.Request` document them, with their
    defaults."""

    model: str
    cluster: str
    accelerator: str
    gpus: int
    batch: int
    micro_batch: int
    sequence: int
    tp: int
    pp: int
    ep: int
    etp: int
    dispatcher: str
    overlap_experts: bool
    cuda_graphs: bool
    cp: int
    cp_exchange: str
    sequence_parallel: bool
    async_tp: bool
    zero: int
    schedule: str
    virtual_stages: int
    counts_embedding: bool
    counts_loss: bool
    recompute: str
    recompute_every: int
    document: int
    lora: int
    lora_targets: str
    precision: str
    optimizer: str
    optimizer_kernels: str
    master_weights: bool
    gradient_bytes: int
    allreduce: str
    hierarchy: str
    bucket_bytes: float | None
    overlap: bool
    fuse: bool
    attention: str
    implementation: str
    cross_entropy: str
    fsdp: Table
    name: str
    codec: str
    network: Table
    noise: Table
    run: Table
    data: Table
    memory: Table
    switch: Table
    nccl_tables: str
    input_shape: str
    split: str
    fold: str
    ignore_memory: bool


class Result(Summarized):
    """An emulated job. Times in seconds, sizes in bytes; `emulation` has all intermediate results."""

    def __init__(self, emulation: Emulation) -> None:
        self.emulation = emulation

    @property
    def iteration_s(self) -> float:
        """Seconds of one iteration."""
        return self.emulation.iteration_s

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of an iteration on an average rank by cause: compute, exposed communication, …"""
        return dict(self.emulation.parts)

    @property
    def samples_per_s(self) -> float:
        """Samples per second over all accelerators."""
        return self.emulation.samples_per_s

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization: model FLOPs, without recomputation, as a share of all accelerators' peak."""
        return self.emulation.mfu

    @property
    def memory_bytes(self) -> float:
        """Memory in bytes on the fullest accelerator."""
        return self.emulation.memory.total

    @property
    def assumptions(self) -> list[str]:
        """Assumptions of the emulation."""
        return self.emulation.assumptions()

    @property
    def title(self) -> str:
        """Model, accelerators and cluster."""
        plan = self.emulation.plan
        return f"{plan.model.title} on {plan.job.gpus} x {plan.cluster.device.title} ({plan.cluster.name})"

    def facts(self) -> Iterable[tuple[str, str]]:
        """Iteration, throughput, memory, parallelism."""
        one = self.emulation
        job, whole_s = one.plan.job, one.iteration_s
        largest = sorted(one.parts.items(), key=lambda part: -part[1])[:3]
        yield "iteration", f"{time_text(whole_s)}: " + ", ".join(f"{s / whole_s:.1%} {name}" for name, s in largest)
        yield "throughput", f"{one.samples_per_s:,.1f} samples/s, {one.mfu:.1%} of peak (MFU)"
        yield "memory", f"{memory_text(one.memory.total)} of {memory_text(one.plan.cluster.device.memory_bytes)}"
        for line in one.request.choice.lines(job):
            yield tuple(line.split(": ", 1))  # type: ignore[misc]
        for line in one.warnings():
            yield "warning", line
        yield "split", f"tp {job.tp} x pp {job.pp} x dp {job.dp}, batch {job.global_batch}, all-reduce {job.allreduce}"

    def to_json(self) -> dict[str, Any]:
        """The same JSON object as `switchml emulate --json`."""
        return self.emulation.to_json()

    def to_frame(self, library: Library | None = None) -> pandas.DataFrame:
        """One row with all figures, named as in `to_json`. `library`: pandas or polars."""
        return frame([without_notes(self.to_json())], library)

    def report(self, path: str | Path) -> None:
        """Write the same HTML page as `switchml emulate --report`."""
        from emulator.surface.api.page import page_of
        from emulator.surface.report.page import write_page

        write_page(page_of(self.emulation), path)

    def timeline(self, path: str | Path) -> None:
        """Write a timeline for ui.perfetto.dev: .json or .json.gz."""
        from emulator.jobs.replay.perfetto import write_timeline

        write_timeline(self.emulation.played, path)


class Sweep(Summarized):
    """All combinations of several options, one row each: the options, then the figures, or `error`."""

    def __init__(self, axes: list[str], rows: list[dict[str, Any]]) -> None:
        self.axes = axes
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def title(self) -> str:
        """Number of jobs, and the swept options."""
        failed = sum("error" in row for row in self.rows)
        return f"{len(self.rows)} jobs over {', '.join(self.axes)}" + (f", {failed} refused" if failed else "")

    def facts(self) -> Iterable[tuple[str, str]]:
        """Each job's iteration time, or its error; only the first jobs of a long sweep."""
        for row in self.rows[:_LINES]:
            point = ", ".join(f"{name} {row[name]}" for name in self.axes)
            yield point, row["error"] if "error" in row else f"{time_text(row['iteration_s'])}, MFU {row['mfu']:.1%}"
        if len(self.rows) > _LINES:
            yield "…", f"and {len(self.rows) - _LINES} more: to_frame() has all"

    def to_frame(self, library: Library | None = None) -> pandas.DataFrame:
        """One row per job. `library`: pandas or polars."""
        return frame(self.rows, library)


_LINES = 10


NOTES = ("assumptions", "assumed", "warnings", "choice")
"""Keys of `to_json` that are not figures."""


def without_notes(figures: dict[str, Any]) -> dict[str, Any]:
    """The figures without notes."""
    return {name: value for name, value in figures.items() if name not in NOTES}


def tables_of(job_file: str | Path | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of a job file, overridden by `options`. Raises ConfigError."""
    known = {field.name for field in dataclasses.fields(Request)} - {"job", "assumed", "choice"} | _JOB
    for name in options:
        datafile.check_name("option", name, sorted(known))
    tables = read_tables(Path(job_file), "model" in options) if job_file else {}
    job = {name: value for name, value in options.items() if name in _JOB}
    others = {name: value for name, value in options.items() if name not in _JOB}
    tables = datafile.merge(tables, others | ({"job": job} if job else {}))
    if "model" not in tables:
        raise ConfigError("no model: give model='resnet50' or a job file (switchml emulate list models)")
    return tables


def emulate(job_file: str | Path | None = None, **options: Unpack[Options]) -> Result:
    """Emulate a training job: `switchml.emulate(model="gpt3-175b", cluster="a100-dgx", gpus=1024, tp=8, pp=8)`.

    Options are named as in a job file (docs/emulator.md), and override `job_file`. Raises ConfigError for invalid
    options, OutOfMemory for a job that does not fit.
    """
    return Result(run(request(tables_of(job_file, options), str(job_file or "the options"))))


def sweep(
    job_file: str | Path | None = None, *, processes: int | None = 1, show_progress: bool = False, **options: Any
) -> Sweep:
    """Emulate every combination of the options that are lists:
    `switchml.sweep(model="resnet50", gpus=[8, 16, 32], allreduce=["ring", "switchml"]).to_frame()`.

    Other options as in `emulate`. `processes`: None uses one per core. A job that fails is a row with `error`. Raises
    ConfigError if no option is a list, or an option is unknown.
    """
    axes = [sweeps.Axis(name, list(values)) for name, values in options.items() if isinstance(values, list | tuple)]
    if not axes:
        raise ConfigError("nothing to sweep: give an option a list, such as gpus=[8, 16, 32]")
    for axis in axes:
        if not axis.values:
            raise ConfigError(f"{axis.name} has no values to sweep")
    fixed = {name: value for name, value in options.items() if not isinstance(value, list | tuple)}
    tables_of(job_file, fixed | {axis.name: axis.values[0] for axis in axes})
    base = fixed | ({"job_file": str(job_file)} if job_file else {})
    rows = sweeps.sweep(point, axes, base=base, processes=processes, show_progress=show_progress)
    return Sweep([axis.name for axis in axes], rows)


def point(options: dict[str, Any]) -> dict[str, Any]:
    """Figures of one job of a sweep; may be called in another process."""
    return without_notes(emulate(**options).to_json())
