"""`switchml validate real`: training on this machine over links of limited rate, measured and predicted."""

from __future__ import annotations

import json
from pathlib import Path

import click

from emulator.cli.bench.network import RATE, Counts


class Rates(click.ParamType):
    """A list of rates, "10mbit,20mbit"."""

    name = "rate[,rate…]"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        return tuple(RATE.convert(part, param, ctx) for part in str(value).split(","))


@click.command()
@click.option("--workers", type=Counts(), default="2,4,8", show_default=True)
@click.option("--rates", type=Rates(), default="10mbit,20mbit,40mbit", show_default=True, help="Of each host's link.")
@click.option("--steps", type=click.IntRange(3), default=15, show_default=True, help="Of each run; the median counts.")
@click.option("--batch-size", type=click.IntRange(1), default=16, show_default=True, help="Images a worker and step.")
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw predicted against measured: FILE.png."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object in place of the table.")
def real(
    workers: tuple[int, ...],
    rates: tuple[float, ...],
    steps: int,
    batch_size: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Train here over links of limited rate, with Gloo and with the aggregator, and predict each run from one of them.

    Needs root, iproute2 and torch: each worker is in a network namespace with one link to a switch. Run it on a machine
    that has nothing else to do: what others compute is measured too, and not predicted.
    """
    from emulator.netsim.report import require_plotting
    from emulator.testbed.namespaces import check_rights
    from emulator.validation.real import measure as validation
    from emulator.validation.real import report

    check_rights()
    if plot is not None:
        require_plotting(plot)
    plan = validation.Plan(workers=workers, rates_bps=rates, steps=steps, batch_size=batch_size)
    found = validation.validate(plan, lambda line: click.echo(line, err=True))
    if plot is not None:
        report.plot(found, plot)
    if as_json:
        click.echo(json.dumps(report.as_json(found)))
    else:
        report.print_table(found)
