"""`switchml validate real`: training on this machine over links of limited rate, measured and predicted."""

from __future__ import annotations

from pathlib import Path

import click

from emulator.cli.options import COUNTS, RATES, json_option, output, plot_option, progress


@click.command()
@click.option("--workers", type=COUNTS, default="2,4,8", help="Numbers of workers to measure.")
@click.option("--rates", type=RATES, default="10mbit,20mbit,40mbit", help="Rates of each host's link.")
@click.option("--steps", type=click.IntRange(3), default=15, help="Steps of each run; the median counts.")
@click.option("--batch-size", type=click.IntRange(1), default=16, help="Images of each worker in a step.")
@click.option(
    "--ranks-per-host",
    type=click.IntRange(1),
    default=2,
    help="Also measure so many workers in each host, with and without hierarchy; 1 leaves that out.",
)
@plot_option
@json_option
def real(
    workers: tuple[int, ...],
    rates: tuple[float, ...],
    steps: int,
    batch_size: int,
    ranks_per_host: int,
    plot_file: Path | None,
    as_json: bool,
) -> None:
    """Train here over links of limited rate, with Gloo and with the aggregator, and predict each run from one of them.

    Needs root, iproute2 and torch: each worker is in a network namespace with one link to a switch. Run it on a machine
    that has nothing else to do: what others compute is measured too, and not predicted.
    """
    from emulator.testbed.namespaces import check_rights
    from emulator.validation.real import measure, report

    check_rights()
    plan = measure.RealPlan(
        workers=workers, rates_bps=rates, steps=steps, batch_size=batch_size, ranks_per_host=ranks_per_host
    )
    validation = measure.validate(plan, progress)
    if plot_file is not None:
        report.plot(validation, plot_file)
    output(as_json, lambda: report.as_json(validation), lambda: report.print_table(validation))
