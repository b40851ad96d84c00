"""`switchml validate peers`: one real rank among emulated ones, beside all ranks real."""

from __future__ import annotations

from pathlib import Path

import click

from emulator.cli.options import COUNTS, RATES, json_option, plot_option, progress


@click.command()
@click.option("--workers", type=COUNTS, default="2,4", help="Numbers of ranks to measure.")
@click.option("--rates", type=RATES, default="50mbit,100mbit,200mbit", help="Rates of each host's link.")
@click.option("--steps", type=click.IntRange(3), default=15, help="Steps of each run; the median counts.")
@click.option("--layers", type=click.IntRange(1), default=4, help="Layers of the model, of 512 by 512 weights.")
@click.option("--batch-size", type=click.IntRange(1), default=256, help="Vectors of all ranks in a step.")
@click.option(
    "--clock",
    type=click.Choice(["wall", "virtual"]),
    default="wall",
    help="Clock of the emulated ranks: as if the cluster were there, or as fast as possible.",
)
@plot_option
@json_option
def peers(
    workers: tuple[int, ...],
    rates: tuple[float, ...],
    steps: int,
    layers: int,
    batch_size: int,
    clock: str,
    plot_file: Path | None,
    as_json: bool,
) -> None:
    """Train here over links of limited rate with all ranks real, then with one real and the others emulated.

    Needs root, iproute2 and torch: each real rank is in a network namespace with one link to a switch. Run it on a
    machine that has nothing else to do: what others compute is measured too, and not predicted.
    """
    from emulator.testbed.namespaces import check_rights
    from emulator.validation.peers import measure
    from emulator.validation.report import show
    from emulator.validation.rows import summary

    check_rights()
    plan = measure.PeersPlan(
        workers=workers, rates_bps=rates, steps=steps, layers=layers, batch=batch_size, clock=clock
    )
    result = measure.validate(plan, progress)
    groups = [(backend, [row for row in result.rows if f", {backend}," in row.name]) for backend in measure.BACKENDS]
    as_object = summary(result.rows) | result.as_json()
    show("emulated peers", result.rows, groups, as_object, plot_file, as_json, shown=result.rows)
    if not as_json:
        known = result.calibration
        scales = ", ".join(
            f"{count} ranks compute {scale:.2f} times as long" for count, scale in known.compute_scale.items()
        )
        click.echo(f"{result.gradient_bytes / 1e6:.1f} MB of gradients; on {known.cores} cores, {scales} as one alone")
