"""`switchml trace optimize`: search for settings that shorten the iterations of a traced job or a `switchml emulate`
job."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from emulator.cluster.algorithms import HIERARCHIES, HIERARCHY_HELP
from emulator.surface.cli.options import ANY_PATH, FILE, SETTINGS_FILE, json_option, output, trace_options
from switchml import tables
from switchml.cli.options import RATE, SIZE, TIME, Count, option
from switchml.errors import ConfigError
from switchml.terminal import progress, say

INTERRUPTED = 130


class Names(click.ParamType):
    """A comma-separated list, such as "buckets,codec"."""

    name = "name[,name…]"

    def convert(self, value, param, ctx) -> tuple[str, ...]:
        return value if isinstance(value, tuple) else tuple(part.strip() for part in value.split(",") if part.strip())


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("path", type=ANY_PATH)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--out",
    type=SETTINGS_FILE,
    default=Path("settings.toml"),
    show_default=True,
    help="Settings file to write; an existing one is kept unless --overwrite is given.",
)
@click.option("--overwrite", is_flag=True, help="Overwrite the file of --out.")
@click.option("--trials", type=Count(1), default=1000, show_default=True, help="Maximum number of settings to try.")
@option("--time-limit", "seconds", type=TIME, show_default="none", help="Time limit of the search.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the search.")
@click.option(
    "--allow",
    type=Names(),
    help="Passes to use: buckets, allreduce, codec; and those that a settings file can only advise: precision, batch, "
    "fuse, recompute, accumulate, priority. Of a job: split, schedule, micro-batch, recompute, zero, allreduce, "
    "buckets, fuse, codec. [default: buckets,allreduce; of a job all but fuse and codec]",
)
@click.option("--uniform", is_flag=True, help="Use one cap for all buckets, for torch before 2.13.")
@option("--rate", "link", type=RATE, help="Rate of each host's link.  [default: as the trace uses it]")
@option(
    "--allreduce",
    "allreduces",
    type=Names(),
    default="switchml",
    show_default=True,
    help="All-reduces to try besides the traced one: switchml, ring, ps.",
)
@click.option(
    "--hierarchy", type=click.Choice(list(HIERARCHIES)), default="auto", show_default=True, help=HIERARCHY_HELP
)
@click.option(
    "--codec", "codecs", multiple=True, help="Codec to try; may be repeated.  [default: fp16, thc, topk 10 % and 1 %]"
)
@click.option(
    "--codec-costs", type=FILE, help="Output of `switchml bench codecs --json`, in place of a measurement here."
)
@option("--memory-limit", "memory", type=SIZE, help="Memory of a rank; lets the search grow the batch and recompute.")
@click.option("--activations", type=SIZE, help="Memory of a rank's activations with the traced batch.")
@click.option("--half-speed", type=float, default=0.0, help="Speed-up of this host in half precision.")
@click.option("--check", is_flag=True, help="Run COMMAND as it is and with the settings, and compare.")
@option("--repeats", "rounds", type=Count(1), default=3, show_default=True, help="Repeats of --check.")
@click.option("--trust", is_flag=True, help="Import and run the torch module that a job file names as its model.")
@trace_options
@json_option
def optimize(path: Path, command: tuple[str, ...], check: bool, overwrite: bool, **options: Any) -> None:
    """Find the best settings for the job traced in PATH: sizes of DistributedDataParallel's buckets, the all-reduce
    algorithm, compression. Writes a settings file; with --check -- torchrun … script.py, also runs it.

    PATH may also be a job for `switchml emulate` (.toml): then its schedule, micro-batches and split are searched.
    """
    if check != bool(command):
        raise click.UsageError("--check needs a command after --, and a command needs --check")
    if options["out"].exists() and not overwrite:
        raise ConfigError(f"{options['out']} exists: give --overwrite to replace it, or another file with --out")
    if path.suffix != ".toml":
        interrupted = _optimize_trace(path, command, **options)
    elif check:
        raise click.UsageError(f"--check runs a traced script, but {path} is a job for `switchml emulate`")
    else:
        interrupted = _optimize_job(path, **options)
    if interrupted:
        click.get_current_context().exit(INTERRUPTED)


def _optimize_trace(
    path: Path,
    command: tuple[str, ...],
    *,
    out: Path,
    trials: int,
    seconds: float | None,
    seed: int,
    allow: tuple[str, ...] | None,
    uniform: bool,
    link: float | None,
    allreduces: tuple[str, ...],
    hierarchy: str,
    codecs: tuple[str, ...],
    codec_costs: Path | None,
    memory: float | None,
    activations: float | None,
    half_speed: float,
    rounds: int,
    rank: int | None,
    salvage: bool,
    as_json: bool,
    **_: Any,
) -> bool:
    """Search, print the result, write `out`, and run `command` if one is given. Returns whether Ctrl-C ended the
    search."""
    from emulator.traces.join import join
    from emulator.traces.optimizer import file, report
    from emulator.traces.optimizer.machine import Machine, Memory
    from emulator.traces.optimizer.objective import Objective
    from emulator.traces.optimizer.passes import ALLREDUCES
    from emulator.traces.optimizer.search import DEFAULT_ALLOW, Allowed, search
    from emulator.traces.readers.read import read
    from emulator.traces.whatif import codec_costs as costs
    from emulator.traces.whatif.serial import prepared

    for allreduce in allreduces:
        if allreduce not in ALLREDUCES[1:]:
            raise click.UsageError(f"--allreduce {allreduce}: expected {', '.join(ALLREDUCES[1:])}")
    specs = codecs or costs.CHOICES
    joined = prepared(join(read(path, rank=rank, salvage=salvage)))
    with progress("measuring codecs"):
        known = costs.load(codec_costs) if codec_costs else costs.measure(specs, len(joined.graph.ranks))
    allowed = Allowed(
        passes=allow or DEFAULT_ALLOW,
        lists=not uniform,
        allreduces=allreduces,
        codecs=tuple(known) if codec_costs else specs,
    )
    machine = Machine.of(
        joined,
        link_bps=link,
        hierarchy=hierarchy,
        codecs=known,
        memory=Memory(limit=memory or 0.0, activations=activations or 0.0),
        half_speed=half_speed,
    )
    objective = Objective(joined, machine)
    with _progress(trials) as step:
        result = search(
            objective, allowed, trials=trials, seed=seed, time_budget_s=seconds or float("inf"), progress=step
        )
    file.write(out, result, machine, str(path))
    summary = report.as_json(result, objective, file.tables(result, machine, str(path)))
    if not as_json:
        report.print_table(result, objective, allowed)
        for text in file.advice(result.best.setting).values():
            say(f"not in the file, but in the script: {text}")
    if command and file.is_empty(result):
        click.echo("nothing was found that a settings file can change: there is nothing to check", err=True)
    elif command:
        summary["check"] = _check(command, out, rounds, result, as_json)
    if as_json:
        click.echo(json.dumps(summary))
    return result.interrupted


@contextmanager
def _progress(trials: int) -> Iterator[Callable[[int, float], None]]:
    """A progress bar with the number of settings tried and the best time so far."""
    with progress("searching", trials) as task:
        yield lambda evaluated, best_s: task.update(evaluated, f"{evaluated:,} tried, best {best_s * 1e3:.1f} ms")


def _check(command: tuple[str, ...], settings: Path, rounds: int, result, as_json: bool) -> dict:
    """Run the command with and without the settings, and compare the predicted with the measured speed-up."""
    from emulator.traces.optimizer.measured import SpeedUp, compare

    with progress("running") as task:
        measured = compare(command, settings, rounds, task.step)
    speedup = SpeedUp.of(result, *measured)
    if not as_json:
        say(str(speedup))
    return speedup.to_json()


def _optimize_job(
    path: Path,
    *,
    out: Path,
    allow: tuple[str, ...] | None,
    trials: int,
    seed: int,
    seconds: float | None,
    memory: float | None,
    trust: bool,
    as_json: bool,
    **_: Any,
) -> bool:
    """Search, print the result, and write `out`. Returns whether Ctrl-C ended the search."""
    from emulator.jobs.description import read_tables, request
    from emulator.traces.optimizer import jobs
    from emulator.traces.optimizer.file import write_toml

    job_file = read_tables(path, trust)
    requested = request(job_file, str(path))
    with _progress(trials) as step:
        result = jobs.search(
            requested,
            allow or jobs.ONES,
            trials=trials,
            seed=seed,
            memory_bytes=memory or 0.0,
            time_budget_s=seconds or float("inf"),
            progress=step,
        )
    assert result.best is not None
    write_toml(out, jobs.tables(job_file, requested, result.best.change), "`switchml emulate` takes it.")
    output(as_json, lambda: _as_json(result), lambda: show(result))
    return result.interrupted


def _as_json(result: Any) -> dict[str, Any]:
    return {
        "asked_s": result.requested.emulation.iteration_s if result.requested else None,
        "iteration_s": result.best.emulation.iteration_s,
        "gain": result.gain if result.requested else None,
        "change": result.best.change,
        "memory_bytes": result.best.emulation.memory.total,
        "alone": {name: {"change": one.change, "sample_s": one.sample_s} for name, one in result.alone.items()},
        "how": result.how,
        "evaluated": result.evaluated,
        "refused": result.refused,
        "wall_s": result.wall_s,
        "settings_per_minute": result.evaluated / result.wall_s * 60,
        "interrupted": result.interrupted,
        "assumptions": result.best.emulation.assumptions(),
    }


def show(result: Any) -> None:
    """Print the result of a search for a job's settings."""
    from switchml.units import memory_text, time_text

    alone = tables.Table(
        [tables.text("change"), tables.text("best"), tables.number("gain", "%")],
        title="What each change gains alone, in time for a sample",
    )
    for name, one in sorted(result.alone.items(), key=lambda item: item[1].sample_s):
        gain = f"{100 * max(0.0, 1 - one.sample_s / result.requested.sample_s):.1f}" if result.requested else "–"
        alone.add(name, _words(one.change), gain)
    tables.show(alone)
    rate = result.evaluated / result.wall_s * 60
    say(
        f"\n{result.evaluated:,} jobs in {result.wall_s:.1f} s ({rate:,.0f} a minute), "
        f"{result.refused:,} of them refused; {result.how}"
    )
    before = time_text(result.requested.emulation.iteration_s) if result.requested else "the job does not run as it is"
    best, changed = result.best.emulation, _words(result.best.change) or "nothing changed"
    saved: tuple[Any, ...] = (": ", (f"{result.gain:.1%}", "bold"), " less") if result.requested else ()
    memory = f" with {changed}, {memory_text(best.memory.total)} of memory"
    say(f"an iteration: {before}; ", (time_text(best.iteration_s), "bold"), memory, *saved)


def _words(change: dict[str, Any]) -> str:
    return ", ".join(f"{key.replace('_', '-')} {value if value != '' else 'none'}" for key, value in change.items())
