"""`switchml validate real|replay|peers|clocks`: predictions compared with measurements on this machine."""

import dataclasses
import importlib
from pathlib import Path
from typing import Any

import click

from emulator.surface.cli.options import COUNTS, OUTPUT_FOLDER, RATES, json_option, output, plot_option
from switchml.cli.extras import require
from switchml.cli.options import RATE, TIME, Count, option
from switchml.tables import show as show_tables
from switchml.terminal import progress, say

REAL_PARTS = ("links", "collectives", "loading", "activations", "pipelines", "states")


@click.command()
@option("--ranks", "workers", type=COUNTS, default="2,4,8", help="Numbers of ranks to measure.")
@click.option("--rates", "rates_bps", type=RATES, default="10mbit,20mbit,40mbit", help="Rates of each host's link.")
@click.option("--steps", type=Count(3), default=15, help="Steps of each run; the median counts.")
@option("--micro-batch", "batch_size", type=Count(1), default=16, help="Images of each rank in a step.")
@click.option(
    "--ranks-per-host",
    type=Count(1),
    default=2,
    help="Also measure so many ranks in each host, with and without hierarchy; 1 leaves that out.",
)
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice(REAL_PARTS),
    default=REAL_PARTS,
    show_default="all",
    help="What to measure: all-reduces over links, the other collectives; a planned loader, compressed activations, a "
    "pipeline, states on the host and of pruned weights.",
)
@plot_option
@json_option
def real(parts: tuple[str, ...], plot_file: Path | None, as_json: bool, **plan: Any) -> None:
    """Train here over rate-limited links, with Gloo and with the aggregator, and predict all runs from one of them.
    Then compare other collectives, loading, memory and pipelines with what the emulator predicts.

    Needs root, iproute2 and torch: each worker is in a network namespace with one link to a switch. Run it on an
    otherwise idle machine: the load of other processes is measured too, and not predicted.
    """
    from emulator.lab.validation.real import measure, report
    from emulator.networks.testbed.namespaces import check_rights

    require("torch")
    check_rights()
    validation, rows = None, []
    with progress("measuring") as task:
        if "links" in parts:
            validation = measure.validate(measure.RealPlan(**plan), task.step)
        for part in REAL_PARTS[1:]:
            if part in parts:
                rows += importlib.import_module(f"emulator.lab.validation.real.{part}").rows(task.step)
    if plot_file is not None:
        report.plot(validation, plot_file, rows)
    output(as_json, lambda: report.as_json(validation, rows), lambda: report.print_table(validation, rows))


@click.command()
@option("--ranks", "workers", type=COUNTS, default="2,4", help="Numbers of ranks to measure.")
@click.option("--rate", "rate_bps", type=RATE, default="200mbit", help="Rate of each host's link.")
@click.option("--steps", type=Count(3), default=12, help="Steps of each run.")
@click.option("--layers", type=Count(1), default=6, help="Layers of the model.")
@click.option("--width", type=Count(16), default=512, help="Rows and columns of each layer.")
@option("--micro-batch", "batch", type=Count(1), default=32, help="Vectors of each worker in a step.")
@click.option(
    "--device-time",
    "device_s",
    type=TIME,
    default="5ms",
    help="Time that an accelerator would take for a layer's forward pass, and half of its backward pass. 0s: this "
    "machine computes.",
)
@click.option(
    "--peers/--no-peers",
    default=True,
    help="Also emulate all ranks but one, for a model of the same layers.",
)
@plot_option
@click.option("--keep", type=OUTPUT_FOLDER, help="Keep the traces in this directory.")
@json_option
def replay(peers: bool, plot_file: Path | None, keep: Path | None, as_json: bool, **options: Any) -> None:
    """Trace training here over rate-limited links, and predict from the traces the effect of half the bandwidth, other
    buckets, the aggregator in place of Gloo, and a slow rank; then measure each.

    Also shift the clocks of the traces by 50 ms and recover them, and train with one real rank among emulated ones,
    compared with runs of real ranks only (`switchml validate peers` does so at more rates).

    Needs root, iproute2 and torch. Run it on an otherwise idle machine: the load of other processes is measured too,
    and not predicted.
    """
    from emulator.lab.validation.peers import measure as emulated
    from emulator.lab.validation.replay import measure, report
    from emulator.lab.validation.report import draw
    from emulator.networks.testbed.namespaces import check_rights

    require("torch", "msgspec", "scipy")
    check_rights()
    plan = measure.ReplayPlan(**options)
    with progress("measuring") as task:
        validation = measure.validate(plan, task.step, keep)
    if peers:
        peers_plan = emulated.PeersPlan(
            plan.workers, (plan.rate_bps,), steps=plan.steps, layers=plan.layers, width=plan.width
        )
        with progress("emulating") as task:
            rows = emulated.validate(peers_plan, task.step).rows
        validation = dataclasses.replace(validation, peers=rows)
    if plot_file is not None:
        draw(list(validation.groups.items()), plot_file, "iteration")
    output(as_json, validation.as_json, lambda: report.print_table(validation))


@click.command()
@option("--ranks", "workers", type=COUNTS, default="2,4", help="Numbers of ranks to measure.")
@click.option("--rates", "rates_bps", type=RATES, default="50mbit,100mbit,200mbit", help="Rates of each host's link.")
@click.option("--steps", type=Count(3), default=15, help="Steps of each run; the median counts.")
@click.option("--layers", type=Count(1), default=4, help="Layers of the model, of 512 by 512 weights.")
@option("--batch", type=Count(1), default=256, help="Vectors of all ranks in a step.")
@click.option(
    "--clock",
    type=click.Choice(["wall", "virtual"]),
    default="wall",
    help="Clock of the emulated ranks: as if the cluster were there, or as fast as possible.",
)
@plot_option
@json_option
def peers(plot_file: Path | None, as_json: bool, **plan: Any) -> None:
    """Train here over rate-limited links with all ranks real, then with one rank real and the others emulated.

    Needs root, iproute2 and torch: each real rank is in a network namespace with one link to a switch. Run it on an
    otherwise idle machine: the load of other processes is measured too, and not predicted.
    """
    from emulator.lab.validation.peers import measure
    from emulator.lab.validation.report import show
    from emulator.lab.validation.rows import summary
    from emulator.networks.testbed.namespaces import check_rights

    require("torch")
    check_rights()
    with progress("measuring") as task:
        result = measure.validate(measure.PeersPlan(**plan), task.step)
    groups = [(backend, [row for row in result.rows if f", {backend}," in row.name]) for backend in measure.BACKENDS]
    as_object = summary(result.rows) | result.as_json()
    show("emulated peers", result.rows, groups, as_object, plot_file, as_json, shown=result.rows)
    if not as_json:
        known = result.calibration
        scales = ", ".join(
            f"{count} ranks compute {scale:.2f} times as long" for count, scale in known.compute_scale.items()
        )
        say(f"\n{result.gradient_bytes / 1e6:.1f} MB of gradients; on {known.cores} cores, {scales} as one alone")


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path), metavar="DIR…")
@click.option("--shift", type=TIME, default="50ms", help="Shift of each rank's clock but the first.")
@json_option
def clocks(paths: tuple[Path, ...], shift: float, as_json: bool) -> None:
    """Shift the clocks in each DIR, the traces of a job on one machine, and recover them.

    First with everything in the traces, then without the pings of a capture, then without packets. "off by" is the
    largest error of any clock.
    """
    from emulator.lab.validation.clocks import recovered, table
    from emulator.traces.readers.read import read

    rows = [row for path in paths for row in recovered(str(path), read(path), shift)]
    output(as_json, lambda: {"rows": [dataclasses.asdict(row) for row in rows]}, lambda: show_tables(table(rows)))
