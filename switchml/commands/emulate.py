"""`switchml emulate`: what a training job would take on machines one does not have."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from switchml.errors import ConfigError

if TYPE_CHECKING:
    from emulator.emulate import Emulation

# option, (section, key) in a job file, type, help
OPTIONS: list[tuple[str, tuple[str, ...], Any, str]] = [
    ("--model", ("model",), str, "Built-in model, .toml or .csv file, or torch module (package.module:callable)."),
    ("--input-shape", ("input_shape",), str, "Of a torch module's input, without the batch: 3x224x224."),
    ("--cluster", ("cluster",), str, "Built-in cluster or .toml file."),
    ("--gpus", ("job", "gpus"), int, "Accelerators."),
    ("--tp", ("job", "tp"), int, "Tensor-parallel ranks."),
    ("--pp", ("job", "pp"), int, "Pipeline stages."),
    ("--ep", ("job", "ep"), int, "Expert-parallel ranks."),
    ("--zero", ("job", "zero"), int, "ZeRO stage, 0 to 3 (3: FSDP)."),
    (
        "--sequence-parallel/--no-sequence-parallel",
        ("job", "sequence_parallel"),
        bool,
        "Split norms and dropout over tp.",
    ),
    ("--batch", ("job", "batch"), int, "Samples of all ranks in an iteration."),
    ("--micro-batch", ("job", "micro_batch"), int, "Samples that a rank takes at once."),
    ("--sequence", ("job", "sequence"), int, "Tokens of a sample."),
    ("--schedule", ("job", "schedule"), str, "1f1b, gpipe, interleaved or axonn."),
    ("--virtual-stages", ("job", "virtual_stages"), int, "Pieces of the model on each stage (interleaved)."),
    ("--recompute", ("job", "recompute"), str, "none, selective or full."),
    ("--precision", ("job", "precision"), str, "fp16, bf16, fp32, tf32 or fp8."),
    ("--optimizer", ("job", "optimizer"), str, "adam or sgd."),
    ("--attention", ("job", "attention"), str, "unfused or flash."),
    ("--gradient-bytes", ("job", "gradient_bytes"), int, "Of a gradient on the wire."),
    ("--allreduce", ("job", "allreduce"), str, "auto, ring, tree, halving-doubling, hierarchical or switchml."),
    ("--bucket-bytes", ("job", "bucket_bytes"), float, "Of gradients reduced together."),
    ("--overlap/--no-overlap", ("job", "overlap"), bool, "Reduce gradients during the backward pass."),
    ("--codec", ("codec",), str, "Compress gradients (switchml emulate list codecs)."),
    ("--loss", ("network", "loss"), float, "Share of packets lost on each link (switchml)."),
    ("--switch-jobs", ("network", "jobs"), int, "Jobs that share the switch's slots."),
    ("--sparse/--dense", ("network", "sparse"), bool, "Leave out zero blocks on the way to the switch."),
    ("--density", ("network", "density"), float, "Share of blocks that are not zero."),
    ("--wire-bytes", ("network", "wire_bytes"), float, "Of an element on the way to the switch: 4, 2 or 1."),
    ("--slots", ("switch", "slots"), float, "Of the switch."),
    ("--payload-bytes", ("switch", "payload_bytes"), float, "Of an aggregation packet."),
    ("--timeout-s", ("switch", "timeout_s"), float, "Until a lost packet is sent again."),
    ("--stragglers", ("hindrances", "stragglers"), float, "Share of ranks that are slow."),
    ("--slowness", ("hindrances", "slowness"), float, "How many times longer they take."),
    ("--jitter", ("hindrances", "jitter"), float, "Spread of kernel durations, as a share."),
    ("--seed", ("hindrances", "seed"), int, "Which ranks are slow, and the jitter."),
    ("--steps", ("run", "steps"), float, "Iterations of the whole training."),
    ("--tokens", ("run", "tokens"), float, "Tokens of the whole training, instead."),
    ("--mtbf-hours", ("run", "mtbf_hours"), float, "Mean time between failures of one accelerator."),
    ("--checkpoint-s", ("run", "checkpoint_s"), float, "What a checkpoint takes."),
    ("--restart-s", ("run", "restart_s"), float, "From a failure to training again."),
    ("--fold", ("fold",), str, "Which equal ranks stand for each other: all, tensor or none."),
    ("--ignore-memory/--check-memory", ("ignore_memory",), bool, "Emulate even what does not fit."),
]
KEYS = {flags.split("/")[0].lstrip("-").replace("-", "_"): path for flags, path, _, _ in OPTIONS}


def _options(command: Any) -> Any:
    for flags, _, kind, text in reversed(OPTIONS):
        settings = {"is_flag": True} if kind is bool else {"type": kind}
        command = click.option(flags, default=None, help=text, **settings)(command)
    return command


@click.command()
@click.argument("what", nargs=-1, metavar="[JOB.toml | list [KIND]]")
@_options
@click.option("--time-budget-s", type=click.FloatRange(min=0, min_open=True), default=600.0, show_default=True,
              help="Give up after so long.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def emulate(what: tuple[str, ...], time_budget_s: float, as_json: bool, **options: Any) -> None:
    """Emulate a training job: iteration time and where it goes, memory, throughput, cost.

    Options override JOB.toml. `switchml emulate list` names models, clusters, schedules, codecs and constants.
    """
    if what[:1] == ("list",):
        _list(what[1:], as_json)
        return
    if len(what) > 1:
        raise click.UsageError(f"expected one job file, not {len(what)}")
    table = described(what[0] if what else None, {key: value for key, value in options.items() if value is not None})
    from emulator.emulate import emulate as run
    from emulator.emulate import request

    found = run(
        request(table, what[0] if what else "the options"), progress=_progress(as_json), time_budget_s=time_budget_s
    )
    if as_json:
        click.echo(json.dumps(found.to_json()))
    else:
        _show(found)


def described(file: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """The tables of a job file, with options (named as in KEYS) in place of what it says."""
    from emulator import datafile

    table: dict[str, Any] = datafile.load(Path(file)) if file else {}
    for name, value in options.items():
        *sections, key = KEYS[name]
        inner = table
        for section in sections:
            inner = inner.setdefault(section, {})
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


def _show(found: Emulation) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    job, cluster = found.plan.job, found.plan.cluster
    console.print(f"[bold]{found.plan.model.title}[/bold] on {job.gpus} x {cluster.device.title} ({cluster.name})")
    console.print(f"tp {job.tp} x pp {job.pp} x dp {job.dp}, batch {job.global_batch} in micro-batches of "
        f"{job.micro_batch}, "
                  f"{job.schedule}, recompute {job.recompute}, all-reduce {job.allreduce}")  # fmt: skip
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row(
        "iteration", f"{found.iteration_s * 1e3:,.1f} ms" if found.iteration_s < 1 else f"{found.iteration_s:,.2f} s"
    )
    for name, seconds in found.parts.items():
        table.add_row(f"  {name}", f"{seconds / found.iteration_s:.1%}")
    table.add_section()
    table.add_row("throughput", f"{found.samples_per_s:,.1f} samples/s")
    table.add_row("model FLOPs utilization", f"{found.mfu:.1%}")
    table.add_row(
        "memory, fullest accelerator", f"{found.memory.total / 1e9:.1f} of {cluster.device.memory_bytes / 1e9:.0f} GB"
    )
    for name, size in found.memory.parts().items():
        table.add_row(f"  {name}", f"{size / 1e9:.1f} GB")
    if found.steps:
        table.add_section()
        table.add_row("steps", f"{found.steps:,.0f}")
        table.add_row("duration", f"{found.hours / 24:,.1f} days" if found.hours > 48 else f"{found.hours:,.1f} h")
        table.add_row("accelerator hours", f"{found.gpu_hours:,.0f}")
        table.add_row("cost", f"${found.cost:,.0f}" if found.cost else "no price known")
        table.add_row("energy", f"{found.energy_kwh / 1000:,.1f} MWh")
        if found.goodput < 1:
            table.add_row("goodput", f"{found.goodput:.1%}")
    console.print(table)
    console.print(f"{len(found.played.graph.ops):,} ops replayed in {found.wall_s:.2f} s. Assumed:")
    for line in found.assumptions():
        console.print(f"  - {line}", highlight=False, markup=False)


def _list(kinds: tuple[str, ...], as_json: bool) -> None:
    """Names of everything that has one."""
    from emulator import datafile
    from emulator.cluster import cluster, codecs, constants
    from emulator.cluster.accelerator import accelerators
    from emulator.workload import job, models

    known = {
        "models": {name: models.load(name).title for name in models.models()},
        "clusters": {name: cluster.load(name).title for name in cluster.clusters()},
        "accelerators": {name: one.title for name, one in accelerators().items()},
        "schedules": dict.fromkeys(job.SCHEDULES, ""),
        "allreduces": dict.fromkeys(job.ALL_REDUCES, ""),
        "codecs": {name: one.title for name, one in codecs.codecs().items()},
        "constants": {
            name: f"{note.value:g} ({note.unit}): {note.meaning}. {note.source}"
            for name, note in constants.notes().items()
        },
    }
    for kind in kinds:
        if kind not in known:
            raise ConfigError(datafile.unknown("kind", kind, known))
    chosen = {kind: known[kind] for kind in kinds or [kind for kind in known if kind != "constants"]}
    if as_json:
        click.echo(json.dumps(chosen))
        return
    for kind, entries in chosen.items():
        click.echo(f"{kind}:")
        for name, title in entries.items():
            click.echo(f"  {name:<22} {title}".rstrip())
