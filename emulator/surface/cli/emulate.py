"""`switchml emulate`: iteration time, memory and cost of a training job on machines you don't have."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from emulator.cluster.algorithms import ALGORITHMS
from emulator.surface.cli.emulate_script import SCRIPT, WithScript, emulate_script
from emulator.surface.cli.options import REPORT, ROWS_FILE, TIMELINE, json_option, output, time_limit_option
from emulator.surface.job_options import KEYS, job_options, with_options
from switchml import tables
from switchml.cli.options import Count, option
from switchml.errors import ConfigError, OutOfMemory
from switchml.terminal import progress, say
from switchml.units import GIB, memory_text

if TYPE_CHECKING:
    from emulator.jobs.sweep import Axis


RESULTS, SWEEPS, TOGETHER = "Results", "Sweeps", "Several jobs"
"""Groups of options, besides those that describe a job."""


@click.command(cls=WithScript)
@click.argument("what", nargs=-1, metavar="[JOB.toml... | list [KIND] | -- SCRIPT...]")
@job_options
@option(
    "--timeline",
    "timeline_file",
    group=RESULTS,
    type=TIMELINE,
    metavar="FILE",
    help="Write a timeline for Perfetto (.json or .json.gz).",
)
@option(
    "--report",
    "report_file",
    group=RESULTS,
    type=REPORT,
    metavar="FILE",
    help="Write a self-contained page (.html): time breakdown, timeline, scaling; or a picture of the "
    "first and the last (.png, .svg, .pdf).",
)
@option(
    "--sweep",
    "sweeps",
    group=SWEEPS,
    multiple=True,
    metavar="NAME=VALUES",
    help="Emulate every combination: gpus=64:8192:2x, allreduce=ring,switchml. May be repeated.",
)
@option(
    "--out",
    "out_file",
    group=SWEEPS,
    type=ROWS_FILE,
    metavar="FILE",
    help="Write the sweep's rows (.csv or .parquet); an interrupted sweep resumes from the file.",
)
@option(
    "--share",
    group=TOGETHER,
    type=click.Choice(["all", "fabric", "slots"]),
    help="Resources shared by several jobs; default: all.",
)
@option(
    "--placement",
    group=TOGETHER,
    type=click.Choice(["spread", "packed"]),
    help="Placement of several jobs on nodes; default: spread.",
)
@option("--engine", group=SWEEPS, metavar="tcp://HOST:PORT", help="Run the sweep on this Dask scheduler.")
@option(
    "--processes", group=SWEEPS, type=Count(1), help="Processes of the sweep on this machine; default: one per core."
)
@time_limit_option
@json_option
@click.option("--trust", is_flag=True, help="Import and run the torch module that a job file names as its model.")
def emulate(
    what: tuple[str, ...],
    timeline_file: Path | None,
    report_file: Path | None,
    sweeps: tuple[str, ...],
    out_file: Path | None,
    engine: str | None,
    processes: int | None,
    share: str | None,
    placement: str | None,
    time_budget_s: float,
    trust: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Emulate a training job: iteration time and its breakdown, memory, throughput, cost.

    After `--`: a PyTorch script with its usual command line (torchrun, python), unchanged and without a GPU.

    Options override JOB.toml. Several job files, or one with several [[jobs]], are emulated together on one cluster.
    `switchml emulate list` names models, clusters, schedules, codecs and constants.
    """
    if SCRIPT in click.get_current_context().meta:
        emulate_script(as_json)
        return
    if what[:1] == ("list",):
        _list(what[1:], as_json)
        return
    from emulator.surface.cli.emulate_jobs import job_tables, show_together

    chosen = {key: value for key, value in options.items() if value is not None}
    if len(tables := job_tables(what, trust or "model" in chosen)) > 1:
        if sweeps or report_file or out_file or engine or processes:
            raise click.UsageError("--sweep and --report are for one job")
        tables = {name: with_options(table, chosen) for name, table in tables.items()}
        show_together(tables, share, placement, timeline_file, time_budget_s, as_json)
        return
    if share or placement:
        raise click.UsageError("--share and --placement are for several jobs: give several job files")
    if not sweeps and (out_file or engine or processes):
        raise click.UsageError("--out, --engine and --processes are for sweeps; give --sweep")
    if what:
        chosen |= {"job_file": what[0], "trust": trust}
    chosen["time_budget_s"] = time_budget_s
    rows = _sweep(sweeps, chosen, out_file, engine, processes, as_json) if sweeps else []
    if sweeps and not (timeline_file or report_file):
        if as_json:
            click.echo(json.dumps({"rows": rows}))
        return
    with progress("replaying") as task:
        emulation = _run(chosen, task.ops)
    if timeline_file is not None:
        from emulator.jobs.replay.perfetto import write_timeline

        write_timeline(emulation.played, timeline_file)
    if report_file is not None:
        from emulator.surface.api.page import page_of
        from emulator.surface.report.page import write_report

        with progress("writing the report"):
            write_report(page_of(emulation, rows, _axis_names(sweeps)), report_file)
    if as_json:
        click.echo(json.dumps(emulation.to_json() | ({"rows": rows} if rows else {})))
        return
    show(emulation)


def _run(settings: dict[str, Any], progress: Any = None) -> Any:
    """Emulate the job that options describe (named as in KEYS; also `job_file`, `time_budget_s`)."""
    from emulator.jobs.description import request
    from emulator.jobs.emulate import emulate as run

    options = dict(settings)
    file, budget = options.pop("job_file", None), options.pop("time_budget_s", None)
    job = request(described(file, options, options.pop("trust", False)), file or "the options")
    return run(job, progress=progress, time_budget_s=budget)


def emulate_point(options: dict[str, Any]) -> dict[str, Any]:
    """Figures of one point of a sweep: options named as above, with dashes or underscores."""
    settings = {name.replace("-", "_"): value for name, value in options.items()}
    for name, value in settings.items():
        if isinstance(value, str) and value.lower() in ("true", "false"):
            settings[name] = value.lower() == "true"
    from emulator.surface.api.emulating import without_notes

    try:
        figures = _run(settings).to_json()
    except OutOfMemory as error:
        return {"error": str(error), "memory_bytes": error.needed_bytes}
    return without_notes(figures)


def _sweep(sweeps, base, out_file, engine, processes, as_json) -> list[dict[str, Any]]:
    """Run a sweep; returns its rows, each printed as soon as all earlier rows are complete."""
    from emulator import datafile
    from emulator.jobs.sweep import parse_axis, sweep

    axes = [parse_axis(text) for text in sweeps]
    for axis in axes:
        if axis.name.replace("-", "_") not in KEYS:
            known = [name.replace("_", "-") for name in KEYS]
            raise ConfigError("sweep: " + datafile.unknown("option", axis.name, known))
    swept = {axis.name.replace("-", "_") for axis in axes}
    base = {name: value for name, value in base.items() if name not in swept}
    stream = None if as_json else tables.Stream(row_columns(axes))
    names = [axis.name for axis in axes]
    failed: dict[str, list[str]] = {}

    def on_row(row: dict[str, Any]) -> None:
        if stream is not None:
            stream.add(*row_cells(row, names))
        if "error" in row:
            failed.setdefault(row["error"], []).append(" ".join(f"{name} {row[name]}" for name in names))

    options = {"out": out_file, "engine": engine, "processes": processes, "on_row": on_row}
    rows = sweep(emulate_point, axes, base=base, **options)
    if stream is not None:
        stream.close(*(f"{', '.join(points)}: {message}" for message, points in failed.items()))
    return rows


def row_columns(axes: Sequence[Axis]) -> list[tables.Column]:
    """Columns of the table of a sweep over `axes`."""
    return [
        *(tables.text(axis.name, least=max(len(str(value)) for value in axis.values)) for axis in axes),
        tables.number("iteration", "ms", least=11),
        tables.number("throughput", "samples/s", least=9),
        tables.number("MFU", "%", least=5),
        tables.number("memory", "GiB", least=6),
        tables.number("exposed comm.", "%", drop=1, least=5),
        tables.number("bubble", "%", drop=2, least=5),
    ]


def row_cells(row: dict[str, Any], names: Sequence[str]) -> list[str]:
    """Cells of a point of a sweep, in the order of `row_columns`; a failed point has at most its required memory."""
    point = [str(row[name]) for name in names]
    if "error" in row:
        return [*point, "-", "-", "-", f"{row['memory_bytes'] / GIB:.1f}" if "memory_bytes" in row else "-", "-", "-"]
    parts, whole = row["parts"], row["iteration_s"]
    return [
        *point,
        f"{whole * 1e3:,.1f}",
        f"{row['samples_per_s']:,.1f}",
        f"{100 * row['mfu']:.1f}",
        f"{row['memory_bytes'] / GIB:.1f}",
        *(f"{100 * parts.get(name, 0.0) / whole:.1f}" for name in ("exposed_communication", "bubble")),
    ]


def _axis_names(sweeps: tuple[str, ...]) -> list[str]:
    return [text.partition("=")[0].strip() for text in sweeps]


def described(file: str | None, options: dict[str, Any], is_trusted: bool) -> dict[str, Any]:
    """The tables of a job file, overridden by options (named as in KEYS)."""
    from emulator.jobs.description import read_tables

    return with_options(read_tables(Path(file), is_trusted or "model" in options) if file else {}, options)


def show(emulation: Any) -> None:
    """Print the results of a job."""
    from emulator.jobs.defaults import batch_text
    from emulator.surface.cli.emulate_jobs import show_assumptions
    from emulator.surface.report.ranking import show_choice

    job, cluster = emulation.plan.job, emulation.plan.cluster
    say((emulation.plan.model.title, "bold"), f" on {job.gpus} x {cluster.device.title} ({cluster.name})")
    show_choice(emulation)
    say(
        f"tp {job.tp} x pp {job.pp} x dp {job.dp}, batch {batch_text(job, emulation.assumed)}, "
        f"{job.schedule}, recompute {job.recomputation}, all-reduce {job.allreduce}\n"
    )
    table = tables.Table([tables.text(""), tables.number("")])
    whole_s = emulation.iteration_s
    unit, each_s, digits = ("ms", 1e3, 1) if whole_s < 1 else ("s", 1.0, 2)
    spread = _between(emulation.interval, lambda seconds: f"{seconds * each_s:,.{digits}f}")
    table.add("iteration", f"{whole_s * each_s:,.{digits}f} {unit}{spread}")
    for name, seconds in emulation.parts.items():
        table.add(f"  {name}", f"{seconds / whole_s:.1%}")
    table.add()
    table.add("throughput", f"{emulation.samples_per_s:,.1f} samples/s")
    if emulation.tokens_per_s is not None:
        table.add("", f"{emulation.tokens_per_s:,.0f} tokens/s")
        table.add("  of each accelerator", f"{emulation.tokens_per_s / job.gpus:,.0f} tokens/s")
    table.add("  of each accelerator", f"{emulation.flops_per_gpu / 1e12:,.0f} TFLOP/s")
    table.add("model FLOPs utilization", f"{emulation.mfu:.1%}")
    used, available = memory_text(emulation.memory.total), memory_text(cluster.device.memory_bytes)
    table.add("memory, fullest accelerator", f"{used} of {available}")
    for name, size in emulation.memory.parts().items():
        table.add(f"  {name}", memory_text(size))
    if emulation.steps:
        table.add()
        table.add("steps", f"{emulation.steps:,.0f}")
        hours = emulation.hours
        table.add("duration", f"{hours / 24:,.1f} days" if hours > 48 else f"{hours:,.1f} h")
        table.add("accelerator hours", f"{emulation.gpu_hours:,.0f}")
        table.add("cost", f"${emulation.cost:,.0f}" if emulation.cost else "no price known")
        table.add("energy", f"{emulation.energy_kwh / 1000:,.1f} MWh")
        if emulation.goodput < 1:
            spread = emulation.progress.quantiles()
            between = f" ({spread['p5']:.1%} to {spread['p95']:.1%} in 90 % of trainings)" if spread else ""
            table.add("goodput", f"{emulation.goodput:.1%}{between}")
    tables.show(table)
    for line in emulation.warnings():
        say(("warning: ", "bold yellow"), line)
    show_assumptions(emulation.played, emulation.wall_s, emulation.assumptions())


def _between(interval: Any, text: Any) -> str:
    """An interval formatted with `text`, as a suffix; empty if there is none."""
    return f" ({text(interval.low_s)} - {text(interval.high_s)})" if interval else ""


def _list(kinds: tuple[str, ...], as_json: bool) -> None:
    """List the names of models, clusters and other built-in objects."""
    from emulator import datafile
    from emulator.cluster import cluster, codecs
    from emulator.cluster.accelerator import accelerators, notes
    from emulator.jobs.workload import implementations, job, models
    from emulator.jobs.workload.loading.loading import LOADERS

    known = {
        "models": {name: models.load(name).title for name in models.models()},
        "clusters": {name: cluster.load(name).title for name in cluster.clusters()},
        "accelerators": {name: one.title for name, one in accelerators().items()},
        "schedules": dict.fromkeys(job.SCHEDULES, ""),
        "loaders": dict.fromkeys(LOADERS, ""),
        "allreduces": ALGORITHMS,
        "implementations": {name: one.title for name, one in implementations.implementations().items()},
        "attention": {name: one.title for name, one in implementations.attention_kernels().items()},
        "cross entropies": {name: one.title for name, one in implementations.cross_entropies().items()},
        "codecs": {name: one.title for name, one in codecs.codecs().items()},
        "constants": {
            name: f"{note.value:g} ({note.unit}): {note.meaning}. {note.source}" for name, note in notes().items()
        },
    }
    for kind in kinds:
        if kind not in known:
            raise ConfigError(datafile.unknown("kind", kind, known))
    chosen = {kind: known[kind] for kind in kinds or [kind for kind in known if kind != "constants"]}
    output(as_json, lambda: chosen, lambda: show_names(chosen))


def show_names(kinds: Mapping[str, Mapping[str, str]]) -> None:
    """Print names by kind."""
    for kind, entries in kinds.items():
        table = tables.Table(
            [tables.text(""), tables.text("")], [(f"  {name}", title) for name, title in entries.items()]
        )
        table.title = f"{kind}:"
        tables.show(table)
