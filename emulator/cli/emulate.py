"""`switchml emulate`: what a training job would take on machines one does not have."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import click

from emulator.cli.options import FILE, json_option, output
from emulator.cluster.algorithms import ALGORITHMS, ALGORITHMS_HELP, HIERARCHY_HELP
from switchml import units
from switchml.cli.options import BUCKET, Named, Quantity, note, option
from switchml.errors import ConfigError

# option, section.key in a job file, type, help
OPTIONS: list[tuple[str, str, Any, str]] = [
    ("--model", "model", str, "Built-in model, .toml or .csv file, or torch module (package.module:callable)."),
    ("--input-shape", "input_shape", str, "Shape of a torch module's input without the batch, such as 3x224x224."),
    ("--cluster", "cluster", str, "Built-in cluster or .toml file."),
    ("--nccl-tables", "nccl_tables", str, "Folder of nccl-tests tables: costs of all-reduces inside a node."),
    ("--gpus", "job.gpus", int, "Number of accelerators."),
    ("--tp", "job.tp", int, "Number of tensor-parallel ranks."),
    ("--pp", "job.pp", int, "Number of pipeline stages."),
    ("--ep", "job.ep", int, "Number of expert-parallel ranks."),
    ("--cp", "job.cp", int, "Number of context-parallel ranks, which share each sequence."),
    ("--cp-exchange", "job.cp_exchange", str, "How they share keys and values: ring or all-to-all."),
    ("--zero", "job.zero", int, "ZeRO stage, 0 to 3 (3: FSDP)."),
    ("--unit-layers", "job.fsdp.unit_layers", int, "FSDP: layers in a unit, which is gathered as a whole."),
    ("--unit-parameters", "job.fsdp.unit_parameters", float, "FSDP: parameters that close a unit, in place of layers."),
    ("--gather-ahead", "job.fsdp.prefetch", int, "FSDP: units gathered ahead of the one that runs."),
    (
        "--reshard-after-forward/--keep-after-forward",
        "job.fsdp.reshard_after_forward",
        bool,
        "FSDP: free weights after forward (FULL_SHARD) or keep them (SHARD_GRAD_OP).",
    ),
    ("--shard-group", "job.fsdp.group", int, "FSDP: ranks that hold one copy together (HYBRID_SHARD)."),
    ("--gather-bytes", "job.fsdp.gather_bytes", float, "FSDP: bytes of a gathered weight on the wire."),
    (
        "--reduce-each/--reduce-last",
        "job.fsdp.reduce_each",
        bool,
        "FSDP: reduce gradients after each micro-batch, or after the last.",
    ),
    (
        "--sequence-parallel/--no-sequence-parallel",
        "job.sequence_parallel",
        bool,
        "Split norms and dropout over tp ranks.",
    ),
    ("--async-tp/--no-async-tp", "job.async_tp", bool, "Hide tensor-parallel exchanges behind products, in pieces."),
    ("--batch", "job.batch", int, "Global batch: samples of all ranks in an iteration."),
    ("--micro-batch", "job.micro_batch", int, "Samples in a micro-batch."),
    ("--sequence", "job.sequence", int, "Tokens in a sample."),
    ("--schedule", "job.schedule", str, "Pipeline schedule: 1f1b, gpipe, interleaved or axonn."),
    ("--virtual-stages", "job.virtual_stages", int, "Model chunks on each stage (interleaved)."),
    ("--recompute", "job.recompute", str, "Activation recomputation: none, selective, operators or full."),
    ("--precision", "job.precision", str, "Precision of compute: fp16, bf16, fp32, tf32 or fp8."),
    ("--optimizer", "job.optimizer", str, "Optimizer: adam or sgd."),
    ("--attention", "job.attention", str, "Attention's kernel: unfused, flash, fa1, triton, fa2, fa3 or sdpa."),
    (
        "--implementation",
        "job.implementation",
        str,
        "Code that runs the model (switchml emulate list implementations).",
    ),
    ("--cross-entropy", "job.cross_entropy", str, "Loss: megatron, eager, compiled, fused or composer."),
    ("--gradient-bytes", "job.gradient_bytes", int, "Bytes of a gradient on the wire."),
    ("--allreduce", "job.allreduce", str, ALGORITHMS_HELP),
    ("--hierarchy", "job.hierarchy", str, HIERARCHY_HELP),
    ("--bucket-cap", "job.bucket_bytes", float, "Bytes of gradients in a bucket."),
    ("--overlap/--no-overlap", "job.overlap", bool, "Reduce gradients during the backward pass."),
    ("--codec", "codec", str, "Gradient compression (see switchml emulate list codecs)."),
    ("--loss", "network.loss", float, "Share of packets lost on each link (switchml)."),
    ("--switch-jobs", "network.jobs", int, "Jobs that share the switch's slots."),
    ("--sparse/--dense", "network.sparse", bool, "Send only blocks that are not zero to the switch."),
    ("--density", "network.density", float, "Share of blocks that are not zero."),
    ("--wire-bytes", "network.wire_bytes", float, "Bytes of an element on the way to the switch: 4, 2 or 1."),
    ("--slots", "switch.slots", float, "Slots of the switch."),
    ("--payload", "switch.payload_bytes", float, "Payload of an aggregation packet."),
    ("--timeout-s", "switch.timeout_s", float, "Retransmission timeout."),
    ("--stragglers", "noise.stragglers", float, "Share of ranks that are slow."),
    ("--slowness", "noise.slowness", float, "How many times longer slow ranks compute."),
    ("--jitter", "noise.jitter", float, "Standard deviation of kernel durations over their mean."),
    ("--seed", "noise.seed", int, "Seed of the choice of slow ranks and of the jitter."),
    ("--loader", "data.loader", str, "Data loader: pytorch, lru, nopfs or solar; default: data is always in memory."),
    ("--samples", "data.samples", int, "Samples in the data set."),
    ("--sample-bytes", "data.sample_bytes", float, "Bytes of a sample."),
    ("--epochs", "data.epochs", int, "Epochs to play, which shows what caches save."),
    ("--buffer-bytes", "data.buffer_bytes", float, "Host memory for the cache of each data-parallel rank."),
    ("--loader-workers", "data.workers", int, "Reads that a rank has in flight (DataLoader's workers)."),
    ("--prefetch", "data.prefetch", int, "Batches that a rank prefetches."),
    ("--offload-bucket", "memory.offload_bucket", float, "Optimizer states on the host: parameters in a bucket."),
    ("--pruned", "memory.pruned", float, "Share of weights that are pruned."),
    ("--activation-ratio", "memory.activation_ratio", float, "Compression ratio of saved activations."),
    ("--activation-bytes-per-s", "memory.activation_bytes_per_s", float, "Rate at which activations are compressed."),
    ("--steps", "run.steps", float, "Iterations of the whole training run."),
    ("--tokens", "run.tokens", float, "Tokens of the whole training run, in place of --steps."),
    ("--mtbf-hours", "run.mtbf_hours", float, "Mean time between failures of one accelerator."),
    ("--checkpoint-s", "run.checkpoint_s", float, "Time that a checkpoint takes."),
    ("--checkpoint-steps", "run.checkpoint_steps", int, "Iterations between checkpoints."),
    ("--restart-s", "run.restart_s", float, "Time from a failure until training resumes."),
    ("--fold", "fold", str, "Equal ranks to fold into one: all, tensor or none."),
    ("--ignore-memory/--check-memory", "ignore_memory", bool, "Emulate jobs that do not fit into memory, too."),
]
MOST_REPLAYED_OPS = 2_000_000
"""Jobs up to this size are replayed with one thing faster, for the report."""
WAS = {
    "payload": "payload-bytes",
    "bucket-cap": "bucket-bytes",
    "loader-workers": "workers",
    "loss": "loss-rate",
    "allreduce": "network",
    "batch": "batch-size",
    "gpus": "world-size",
}
"""Old names, and those that other commands once had for the same."""
KEYS = {flags.split("/")[0].lstrip("-").replace("-", "_"): tuple(path.split(".")) for flags, path, _, _ in OPTIONS}


def _options(command: Any) -> Any:
    for flags, path, kind, text in reversed(OPTIONS):
        settings = {"is_flag": True} if kind is bool else {"type": _type(flags, path, kind)}
        was = [f"--{old}" for name, old in WAS.items() if flags == f"--{name}"]
        command = option(flags, was=was, default=None, help=text, **settings)(command)
    return command


def _type(flags: str, path: str, kind: Any) -> Any:
    """Of the values of an option: a number in the unit that its key says."""
    if kind is str:
        return str
    if flags == "--bucket-cap":
        return BUCKET
    key = path.rpartition(".")[2]
    quantity, unit = units.of_name(key)
    if units.of_name(flags)[0] is quantity:
        return Named(key, is_whole=kind is int)
    return Quantity(quantity, unit=unit)


@click.command()
@click.argument("what", nargs=-1, metavar="[JOB.toml... | list [KIND]]")
@_options
@click.option(
    "--timeline", "timeline_file", type=FILE, metavar="FILE", help="Write a timeline for Perfetto (.json or .json.gz)."
)
@click.option(
    "--report",
    "report_file",
    type=FILE,
    metavar="FILE.html",
    help="Write a self-contained page: where the time goes, timeline, scaling.",
)
@click.option(
    "--sweep",
    "sweeps",
    multiple=True,
    metavar="NAME=VALUES",
    help="Emulate every combination: gpus=64:8192:2x, allreduce=ring,switchml. May be repeated.",
)
@click.option(
    "--out",
    "out_file",
    type=FILE,
    metavar="FILE",
    help="Write the sweep's rows (.csv or .parquet); an interrupted sweep goes on there.",
)
@click.option(
    "--share", type=click.Choice(["all", "fabric", "slots"]), help="Resources that several jobs share; default: all."
)
@click.option(
    "--placement", type=click.Choice(["spread", "packed"]), help="Placement of several jobs on nodes; default: spread."
)
@click.option("--engine", metavar="tcp://HOST:PORT", help="Run the sweep on this Dask scheduler.")
@click.option(
    "--processes", type=click.IntRange(min=1), help="Processes of the sweep on this machine; default: one per core."
)
@click.option(
    "--time-budget-s", type=click.FloatRange(0, min_open=True), default=600.0, help="Give up after so many seconds."
)
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
    """Emulate a training job: iteration time and where it goes, memory, throughput, cost.

    Options override JOB.toml. Several job files, or one with several [[jobs]], are emulated together on one cluster.
    `switchml emulate list` names models, clusters, schedules, codecs and constants.
    """
    if what[:1] == ("list",):
        _list(what[1:], as_json)
        return
    from emulator.cli.emulate_jobs import job_tables, show_together

    chosen = {key: value for key, value in options.items() if value is not None}
    if len(tables := job_tables(what, trust or "model" in chosen)) > 1:
        if sweeps or report_file or out_file or engine or processes:
            raise click.UsageError("--sweep and --report are for one job")
        tables = {name: with_options(table, chosen) for name, table in tables.items()}
        show_together(tables, share, placement, timeline_file, time_budget_s, _progress(as_json), as_json)
        return
    if share or placement:
        raise click.UsageError("--share and --placement are for several jobs: give several job files")
    if not sweeps and (out_file or engine or processes):
        raise click.UsageError("--out, --engine and --processes are for sweeps; give --sweep")
    for path in (timeline_file, report_file):
        if path is not None and not path.resolve().parent.is_dir():
            raise ConfigError(f"there is no directory {path.parent} to write {path.name} to")
    if report_file is not None:
        import jinja2  # noqa: F401  # that it is not installed is to be known before time is spent
    if what:
        chosen |= {"job_file": what[0], "trust": trust}
    chosen["time_budget_s"] = time_budget_s
    rows = _sweep(sweeps, chosen, out_file, engine, processes) if sweeps else []
    if sweeps and not (timeline_file or report_file):
        click.echo(json.dumps({"rows": rows})) if as_json else _show_rows(rows, sweeps)
        return
    emulation = _run(chosen, _progress(as_json))
    if timeline_file is not None:
        from emulator.report.perfetto import write_timeline

        write_timeline(emulation.played, timeline_file)
    if report_file is not None:
        from emulator.api.page import page_of
        from emulator.report.page import write_page

        write_page(page_of(emulation, rows, _axis_names(sweeps)), report_file)
    if as_json:
        click.echo(json.dumps(emulation.to_json() | ({"rows": rows} if rows else {})))
        return
    _show(emulation)
    if rows:
        _show_rows(rows, sweeps)


def _run(settings: dict[str, Any], progress: Any = None) -> Any:
    """Emulate what options describe (named as in KEYS; `job_file`, `time_budget_s`)."""
    from emulator.jobs.emulate import emulate as run
    from emulator.jobs.emulate import request

    options = dict(settings)
    file, budget = options.pop("job_file", None), options.pop("time_budget_s", None)
    job = request(described(file, options, options.pop("trust", False)), file or "the options")
    return run(job, progress=progress, time_budget_s=budget)


def emulate_point(options: dict[str, Any]) -> dict[str, Any]:
    """One point of a sweep: options as above, with dashes or underscores; its figures."""
    settings = {name.replace("-", "_"): value for name, value in options.items()}
    for name, value in settings.items():
        if isinstance(value, str) and value.lower() in ("true", "false"):
            settings[name] = value.lower() == "true"
    figures = _run(settings).to_json()
    return {name: value for name, value in figures.items() if name != "assumptions"}


def _sweep(sweeps, base, out_file, engine, processes) -> list[dict[str, Any]]:
    from emulator import datafile
    from emulator.jobs.sweep import parse_axis, sweep

    axes = [_renamed(parse_axis(text)) for text in sweeps]
    for axis in axes:
        if axis.name.replace("-", "_") not in KEYS:
            known = [name.replace("_", "-") for name in KEYS]
            raise ConfigError("sweep: " + datafile.unknown("option", axis.name, known))
    swept = {axis.name.replace("-", "_") for axis in axes}
    base = {name: value for name, value in base.items() if name not in swept}
    return sweep(emulate_point, axes, base=base, out=out_file, engine=engine, processes=processes)


def _renamed(axis: Any) -> Any:
    """The axis by today's name of its option."""
    for new, old in WAS.items():
        if axis.name.replace("_", "-") == old:
            note(f"{old} is called {new} now")
            return dataclasses.replace(axis, name=new)
    return axis


def _show_rows(rows: list[dict[str, Any]], sweeps: tuple[str, ...]) -> None:
    """A sweep as a table."""
    from emulator.bench.tables import print_table

    names = _axis_names(sweeps)
    lines = []
    for row in rows:
        lines.append([str(row[name]) for name in names])
        if "error" in row:
            lines[-1].append(row["error"])
            continue
        parts, whole = row["parts"], row["iteration_s"]
        lines[-1] += [f"{whole:.3g} s", f"{row['samples_per_s']:,.1f}", f"{row['mfu']:.1%}"]
        lines[-1].append(f"{row['memory_bytes'] / 1e9:.1f} GB")
        lines[-1] += [f"{parts.get(name, 0.0) / whole:.1%}" for name in ("exposed_communication", "bubble")]
    headings = ("iteration", "samples/s", "MFU", "memory", "exposed comm.", "bubble")
    print_table((*names, *headings), lines, left=len(names))


def _axis_names(sweeps: tuple[str, ...]) -> list[str]:
    return [text.partition("=")[0].strip() for text in sweeps]


def described(file: str | None, options: dict[str, Any], is_trusted: bool) -> dict[str, Any]:
    """The tables of a job file, with options (named as in KEYS) in place of what it says."""
    from emulator.jobs.emulate import read_tables

    return with_options(read_tables(Path(file), is_trusted or "model" in options) if file else {}, options)


def with_options(table: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """The same tables, with options in place of what they say."""
    for name, value in options.items():
        *sections, key = KEYS[name]
        inner = table
        for section in sections:
            inner = inner.setdefault(section, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"{section}: expected a table, under [{section}]")
        inner[key] = value
    if "model" not in table:
        raise ConfigError("no model: give --model NAME or a job file (switchml emulate list models)")
    return table


def _progress(as_json: bool) -> Any:
    """Ops done of all, on stderr, once a replay takes longer than one slice."""
    if as_json or not sys.stderr.isatty():
        return None

    def say(done: int, ops: int) -> None:
        click.echo(f"\r{done:,} of {ops:,} ops\033[K" if done < ops else "\r\033[K", nl=False, err=True)

    return say


def _show(emulation: Any) -> None:
    from rich.table import Table
    from rich.text import Text

    from emulator.cli.emulate_jobs import show_assumptions
    from switchml.terminal import Console

    console = Console()
    job, cluster = emulation.plan.job, emulation.plan.cluster
    machines = f" on {job.gpus} x {cluster.device.title} ({cluster.name})"
    console.print(Text.assemble((emulation.plan.model.title, "bold"), machines))
    console.print(
        f"tp {job.tp} x pp {job.pp} x dp {job.dp}, batch {job.global_batch} in micro-batches of {job.micro_batch}, "
        f"{job.schedule}, recompute {job.recompute}, all-reduce {job.allreduce}"
    )
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    whole_s = emulation.iteration_s
    table.add_row("iteration", f"{whole_s * 1e3:,.1f} ms" if whole_s < 1 else f"{whole_s:,.2f} s")
    for name, seconds in emulation.parts.items():
        table.add_row(f"  {name}", f"{seconds / whole_s:.1%}")
    table.add_section()
    table.add_row("throughput", f"{emulation.samples_per_s:,.1f} samples/s")
    table.add_row("model FLOPs utilization", f"{emulation.mfu:.1%}")
    used, available = emulation.memory.total / 1e9, cluster.device.memory_bytes / 1e9
    table.add_row("memory, fullest accelerator", f"{used:.1f} of {available:.0f} GB")
    for name, size in emulation.memory.parts().items():
        table.add_row(f"  {name}", f"{size / 1e9:.1f} GB")
    if emulation.steps:
        table.add_section()
        table.add_row("steps", f"{emulation.steps:,.0f}")
        hours = emulation.hours
        table.add_row("duration", f"{hours / 24:,.1f} days" if hours > 48 else f"{hours:,.1f} h")
        table.add_row("accelerator hours", f"{emulation.gpu_hours:,.0f}")
        table.add_row("cost", f"${emulation.cost:,.0f}" if emulation.cost else "no price known")
        table.add_row("energy", f"{emulation.energy_kwh / 1000:,.1f} MWh")
        if emulation.goodput < 1:
            spread = emulation.progress.quantiles()
            between = f" ({spread['p5']:.1%} to {spread['p95']:.1%} in nine of ten)" if spread else ""
            table.add_row("goodput", f"{emulation.goodput:.1%}{between}")
    console.print(table)
    show_assumptions(emulation.played, emulation.wall_s, emulation.assumptions())


def _list(kinds: tuple[str, ...], as_json: bool) -> None:
    """Names of everything that has one."""
    from emulator import datafile
    from emulator.cluster import cluster, codecs
    from emulator.cluster.accelerator import accelerators, notes
    from emulator.workload import implementations, job, models
    from emulator.workload.loading.loading import LOADERS

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
    lines = []
    for kind, entries in chosen.items():
        lines += [f"{kind}:", *(f"  {name:<22} {title}".rstrip() for name, title in entries.items())]
    output(as_json, lambda: chosen, lambda: click.echo("\n".join(lines)))
