"""`switchml simulate`: jobs in virtual time. Without a file, with faults drawn from seeds, and every sum and error
checked; with a file, a packet-level simulation of the network that it describes.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from emulator.surface.cli.options import json_option, output, plot_option
from switchml import tables
from switchml.cli.options import TIME, Count, option
from switchml.terminal import progress, say

if TYPE_CHECKING:
    from emulator.networks.faults.campaign import Tally
    from emulator.networks.faults.world import Outcome


@click.command()
@click.argument("network", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@option("--seeds", type=Count(1), metavar="N", show_default="200", help="Number of fault runs.")
@click.option("--from", "first", type=Count(0), default=0, help="The first seed.")
@click.option("--seed", type=click.IntRange(0), metavar="N", help="Repeat one seed's run, and describe it.")
@click.option("--log", is_flag=True, help="With --seed: print every event.")
@click.option("--stop-after", type=Count(1), default=10, help="Stop after this many failed seeds.")
@option("--processes", type=Count(1), show_default="one per core", help="Parallel runs.")
@click.option(
    "--failover", is_flag=True, help="Kill only aggregators; jobs fail over to standbys, and no call may fail."
)
@click.option("--deadlines", is_flag=True, help="Run only jobs with deadlines, some of whose ranks are slow.")
@click.option("--best-effort", is_flag=True, help="Run only jobs that share a switch's few slots (best effort).")
@click.option("--plant", metavar="BUG", help="Inject a known bug, to check that the seeds find it; 'list' names them.")
@option(
    "--time-limit",
    "time_budget_s",
    type=TIME,
    default="10min",
    show_default=True,
    help="Time limit of a NETWORK's run.",
)
@plot_option
@json_option
def simulate(
    network: Path | None,
    seeds: int | None,
    first: int,
    seed: int | None,
    log: bool,
    stop_after: int,
    processes: int | None,
    failover: bool,
    deadlines: bool,
    best_effort: bool,
    plant: str | None,
    time_budget_s: float,
    plot_file: Path | None,
    as_json: bool,
) -> None:
    """Run jobs in virtual time.

    Without NETWORK: fault runs. The real agents, aggregator and job control are subjected to loss, duplication,
    reordering, partitions, pauses, crashes and restarts drawn from each seed; every sum and every error is checked. A
    failing seed is printed, and --seed reproduces it, identical to the last packet. Exit code 1: some seeds failed.

    With NETWORK (a TOML file, see docs/simulation.md): a packet-level simulation of its jobs; times, goodput,
    retransmitted packets, queues.
    """
    options = (("failover", failover), ("deadlines", deadlines), ("best-effort", best_effort))
    kinds = [name for name, is_set in options if is_set]
    if network is not None:
        if seeds or seed is not None or plant or log or kinds:
            named = f"--{kinds[0] if kinds else 'failover'}"
            raise click.UsageError(
                f"NETWORK is a single run: it does not support --seeds, --seed, {named}, --plant or --log"
            )
        _play_network(network, time_budget_s, plot_file, as_json)
        return
    if plot_file is not None:
        raise click.UsageError("--plot draws the run of a NETWORK: name its file")
    if len(kinds) > 1:
        raise click.UsageError(f"--{' and --'.join(kinds)}: they are exclusive; expected one of them")
    kind = kinds[0] if kinds else ""
    if plant is not None:
        _with_bug(plant, seeds or 200, first, stop_after, processes, kind, as_json)
    elif seed is not None:
        _play_one(seed, log, kind, as_json)
    else:
        chosen = range(first, first + (seeds or 200))
        _play_many(chosen, stop_after, processes or os.cpu_count() or 1, kind, as_json)


def _play_one(seed: int, log: bool, kind: str, as_json: bool) -> None:
    from emulator.networks.faults.campaign import quiet_agents
    from emulator.networks.faults.world import DRAWS, play

    if not as_json:
        say("\n".join(DRAWS[kind](seed).describe()))
    with quiet_agents():
        outcome = play(seed, say if log and not as_json else None, kind)
    if as_json:
        click.echo(json.dumps(asdict(outcome)))
    else:
        show_one(outcome)
    raise SystemExit(bool(outcome.problem))


def show_one(outcome: Outcome) -> None:
    """Print the outcome of a run."""
    say(
        f"{outcome.events} events in {outcome.seconds:.3f} s of virtual time:\n"
        f"{outcome.packets} packets, {outcome.sums} sums and {outcome.errors} errors checked\n"
        f"trace {outcome.trace}"
    )
    say(f"failed: {outcome.problem}" if outcome.problem else "passed")


def _play_many(seeds: range, stop_after: int, processes: int, kind: str, as_json: bool) -> None:
    import time

    from emulator.networks.faults.campaign import campaign

    started = time.perf_counter()
    failures = 0
    with progress("seeds", len(seeds)) as task:

        def on_outcome(outcome: Outcome) -> None:
            nonlocal failures
            failures += bool(outcome.problem)
            task.advance(f"{failures} failed" if failures else None)
            if outcome.problem and not as_json:
                say(f"seed {outcome.seed} failed: {outcome.problem}")

        tally = campaign(seeds, min(processes, len(seeds)), on_outcome, stop_after, kind)
    wall_s = time.perf_counter() - started
    if as_json:
        result = asdict(tally) | {"wall_s": wall_s, "seeds_per_s": tally.seeds / wall_s}
        failed = [{"seed": outcome["seed"], "problem": outcome["problem"]} for outcome in result.pop("failures")]
        click.echo(json.dumps(result | {"failed": failed}))
    else:
        show_many(tally, wall_s, f" --{kind}" if kind else "", seeds)
    raise SystemExit(130 if tally.interrupted else bool(tally.failures))


def show_many(tally: Tally, wall_s: float, options: str, seeds: range) -> None:
    """Print the totals of the runs of `seeds`; `options`: of the command."""
    say(
        f"{tally.seeds} seeds in {wall_s:.1f} s ({tally.seeds / wall_s:.1f} a second), {tally.virtual_s:.0f} s of "
        f"virtual time:\n{tally.packets:,} packets, {tally.sums:,} sums and {tally.errors:,} errors checked\n"
        f"trace {tally.trace}"
    )
    if tally.failures:
        say(f"switchml simulate{options} --seed {tally.failures[0].seed} --log repeats the first of them")
    if tally.interrupted:
        rest = seeds[tally.seeds :]
        say(
            f"interrupted after {tally.seeds:,} of {len(seeds):,} seeds, {len(tally.failures)} of which failed; the "
            f"rest: switchml simulate{options} --from {rest.start} --seeds {len(rest)}"
        )
    elif not tally.failures:
        say("all passed")


def _with_bug(
    name: str, seeds: int, first: int, stop_after: int, processes: int | None, kind: str, as_json: bool
) -> None:
    from emulator.networks.faults.bugs import BUGS
    from emulator.networks.faults.campaign import run_planted

    if name == "list":
        table = tables.Table([tables.text("bug"), tables.text("what"), tables.text("file")])
        for bug, about in BUGS.items():
            table.add(bug, about.what, about.file)
        tables.show(table)
        return
    arguments = ["--seeds", str(seeds), "--from", str(first), "--stop-after", str(stop_after)]
    if processes:
        arguments += ["--processes", str(processes)]
    with progress(f"{seeds} seeds with {name}"):
        arguments += [f"--{kind}"] * bool(kind) + ["--json"] * as_json
        done = run_planted(name, arguments)
    click.echo(done.stdout, nl=False)
    click.echo(done.stderr, nl=False, err=True)
    if not as_json:
        verdict = "found" if done.returncode == 1 and done.stdout else "not found"
        say(f"bug {name} ({BUGS[name].what}): {verdict}")
    raise SystemExit(done.returncode)


def _play_network(path: Path, time_budget_s: float, plot_file: Path | None, as_json: bool) -> None:
    from emulator.networks.netsim import config, experiment, report

    options = config.load(path)
    with progress(path.name, 1.0) as task:
        result = experiment.run(options, lambda done, steps: task.update(done, f"{steps:,} steps"), time_budget_s)
    if plot_file is not None:
        report.plot(result, plot_file)
    output(as_json, lambda: report.as_json(result), lambda: report.print_tables(result))
