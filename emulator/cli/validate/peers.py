"""`switchml validate peers`: one real rank among emulated ones, beside all ranks real."""

from __future__ import annotations

from pathlib import Path

import click

from emulator.cli.bench.network import Counts
from emulator.cli.validate.real import Rates


@click.command()
@click.option("--workers", type=Counts(), default="2,4", show_default=True)
@click.option("--rates", type=Rates(), default="50mbit,100mbit,200mbit", show_default=True, help="Of each host's link.")
@click.option("--steps", type=click.IntRange(3), default=15, show_default=True, help="Of each run; the median counts.")
@click.option("--layers", type=click.IntRange(1), default=4, show_default=True, help="Of 512 by 512 weights.")
@click.option(
    "--batch-size", type=click.IntRange(1), default=256, show_default=True, help="Vectors a step, of all ranks."
)
@click.option(
    "--clock",
    type=click.Choice(["wall", "virtual"]),
    default="wall",
    show_default=True,
    help="Of the emulated world: as if the cluster were there, or as fast as it goes.",
)
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw predicted against measured: FILE.png."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object in place of the table.")
def peers(
    workers: tuple[int, ...],
    rates: tuple[float, ...],
    steps: int,
    layers: int,
    batch_size: int,
    clock: str,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Train here over links of limited rate with all ranks real, and again with one real and the others emulated.

    Needs root, iproute2 and torch: each real rank is in a network namespace with one link to a switch. Run it on a
    machine that has nothing else to do: what others compute is measured too, and not predicted.
    """
    from emulator.cli.validate.tables import _finish
    from emulator.testbed.namespaces import check_rights
    from emulator.validation.peers import measure as validation
    from emulator.validation.rows import summary

    check_rights()
    plan = validation.Plan(workers=workers, rates_bps=rates, steps=steps, layers=layers, batch=batch_size, clock=clock)
    found = validation.validate(plan, lambda line: click.echo(line, err=True))
    groups = [(backend, [row for row in found.rows if f", {backend}," in row.name]) for backend in validation.BACKENDS]
    result = summary(found.rows) | found.as_json()
    _finish(found.rows, result, groups, plot, as_json, "emulated peers", show=found.rows)
    if not as_json:
        known = found.calibration
        scales = ", ".join(f"{count} of them {scale:.2f} times as long" for count, scale in known.compute_scale.items())
        click.echo(f"{found.gradient_bytes / 1e6:.1f} MB of gradients; on {known.cores} cores compute {scales} as one")
