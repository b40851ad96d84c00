"""Reports of the script's time, as text and JSON, and a timeline of the last iteration."""

import json
import sys
from typing import Any

import numpy as np

from emulator.peers.world import World
from switchml.errors import ConfigError, SwitchMLError
from switchml.output_files import whole_file
from switchml.text import plain

WARMUP = 3
"""Iterations excluded as warm-up, if there are more than twice as many: DDP's first two steps build its buckets."""
SHOWN_RANKS = 16
"""Maximum number of ranks in a timeline: this one, the slowest, and others."""


def as_json(world: World) -> dict[str, Any]:
    """Return the report as plain values: seconds of this rank's clock, averaged over the middle half of the iterations
    to exclude outliers."""
    settings = world.settings
    counted = world.iterations[WARMUP:] if len(world.iterations) > 2 * WARMUP else world.iterations
    quarter = len(counted) // 4
    counted = sorted(counted, key=lambda one: one.seconds)[quarter : len(counted) - quarter]

    def middle(name: str) -> float | None:
        return float(np.mean([getattr(one, name) for one in counted])) if counted else None

    return {
        "world_size": settings.world,
        "real_ranks": list(world.real),
        "rank": world.rank,
        "cluster": settings.cluster,
        "network": settings.network,
        "clock": settings.clock,
        "values": settings.values,
        "iterations": len(world.iterations),
        "counted_iterations": len(counted),
        "iteration_s": middle("seconds"),
        "parts": {
            "compute": middle("compute_s"),
            "exposed communication": middle("communication_s"),
            "waiting for peers": middle("waiting_s"),
        }
        | ({} if world.clock.is_virtual else {"late on this machine": middle("late_s")}),
        "iteration_seconds": [one.seconds for one in world.iterations],
        "elapsed_s": world.clock.now_s(),
        "collectives": {name: vars(used) for name, used in world.used.items()},
        "assumptions": assumptions(world),
    }


def assumptions(world: World) -> list[str]:
    """Return the emulation's assumptions, one sentence each."""
    settings = world.settings
    lines = []
    if len(world.real) < settings.world:
        pace = ", ".join(f"rank {rank} takes {factor:g} times as long" for rank, factor in settings.slow.items())
        absent = settings.world - len(world.real)
        lines.append(
            f"{absent} absent ranks run the program of the real ones, and compute as long{pace and ', but '}{pace}"
        )
        values = {
            "own": "what this rank does",
            "noise": f"what this rank does, with noise of {settings.noise:g} of its root mean square",
            "zeros": "zeros",
            "recorded": f"what they did in the run recorded in {settings.recording}",
        }
        lines.append(f"they contribute {values[settings.values]}")
    if settings.jitter:
        lines.append(f"their compute time varies by {settings.jitter:g} of its mean from iteration to iteration")
    if settings.compute_scale != 1:
        lines.append(f"everything computes {settings.compute_scale:g} times as long as here")
    if settings.network == "switchml" and settings.loss:
        lines.append(f"each link loses {settings.loss:g} of the packets to and from the aggregating switch")
    lines.append(
        "collectives cost what the cluster's closed forms say; those of one group follow one another, those of "
        "different groups do not slow each other"
    )
    return lines


def deliver(world: World) -> None:
    """Print the report on stderr, and write the files that the settings name."""
    settings = world.settings
    if not settings.quiet:
        print_report(as_json(world), err=True)
    try:
        if settings.report:
            with whole_file(settings.report) as part:
                part.write_text(json.dumps(as_json(world)) + "\n")
        if settings.timeline:
            write_timeline(world, settings.timeline)
    except (SwitchMLError, OSError) as error:  # the training has succeeded and should not fail here
        print(plain(f"switchml-emulated: {error}"), file=sys.stderr)


def print_report(report: dict[str, Any], err: bool = False) -> None:
    """Print a report returned by `as_json` as tables; `err`: on stderr."""
    from emulator.jobs.replay.report import shares_table
    from switchml.tables import Table, number, show, text
    from switchml.terminal import say
    from switchml.units import bytes_text, time_text

    real = report["real_ranks"]
    say(
        f"\n{report['world_size']} ranks on {report['cluster']}, {len(real)} of them real "
        f"({', '.join(map(str, real))}), {report['clock']} clock\n",
        err=err,
    )
    if report["iteration_s"] is not None:
        rows = [*report["parts"].items(), ("iteration", report["iteration_s"])]
        shares = shares_table("part", rows, report["iteration_s"])
        shares.notes = [f"mean of {report['counted_iterations']} of {report['iterations']} iterations, those in the "
                        "middle"]  # fmt: skip
        show(shares, err=err)
    else:
        say("no optimizer stepped, so there are no iterations to report", err=err)
    if report["collectives"]:
        used = Table([text("collective"), number("calls"), number("bytes"), number("time")])
        for name, each in report["collectives"].items():
            figures = (f"{each['calls']:,}", bytes_text(each["bytes"]), time_text(each["seconds"]))
            used.add(name.replace("_", "-"), *figures)
        say(err=err)
        show(used, err=err)
    say("\nAssumed:", err=err)
    for line in report["assumptions"]:
        say(f"- {line}", err=err)


def write_timeline(world: World, path: str) -> None:
    """Write a timeline of the last complete iteration, replayed: this rank and some others, preferring the slowest."""
    from emulator.jobs.replay import perfetto
    from emulator.jobs.replay.conditions import Conditions
    from emulator.jobs.replay.engine import replay

    if not world.iterations:
        raise ConfigError(f"no timeline in {path}: no optimizer stepped, so there is no iteration to show")
    settings = world.settings
    pace = np.array([settings.scale_of(rank) for rank in range(settings.world)]) / settings.scale_of(world.rank)
    slowest = [rank for rank in np.argsort(-pace, kind="stable").tolist() if rank != world.rank]
    shown = sorted([world.rank, *slowest[: SHOWN_RANKS - 1]])
    graph, costs = world.last_program.graph(shown, pace[shown])
    perfetto.write_timeline(replay(graph, costs, Conditions()), path)
