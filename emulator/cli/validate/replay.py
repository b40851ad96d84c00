"""`switchml validate replay`: traced runs replayed, as they were and changed, beside the runs that were changed so."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import click

from emulator.cli.bench.network import RATE, TIME, Counts

TITLES = {
    "self-replay": "replayed as traced",
    "what-if": "with a change",
    "emulated peers": "all ranks but one emulated",
}


@click.command()
@click.option("--workers", type=Counts(), default="2,4", show_default=True)
@click.option("--rate", type=RATE, default="200mbit", show_default=True, help="Of each host's link.")
@click.option("--steps", type=click.IntRange(3), default=12, show_default=True, help="Of each run.")
@click.option("--layers", type=click.IntRange(1), default=6, show_default=True)
@click.option("--width", type=click.IntRange(16), default=512, show_default=True, help="Each layer is that square.")
@click.option("--batch-size", type=click.IntRange(1), default=32, show_default=True, help="Of each worker.")
@click.option(
    "--device-time",
    type=TIME,
    default="5ms",
    show_default=True,
    help="What an accelerator would take for a layer forward; twice that backward. 0s: this machine computes.",
)
@click.option("--peers/--no-peers", default=True, show_default=True, help="Also emulate all ranks but one.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Predicted against measured: FILE.png.")
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path), help="Keep the traces in this directory.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object in place of the table.")
def replay(
    workers: tuple[int, ...],
    rate: float,
    steps: int,
    layers: int,
    width: int,
    batch_size: int,
    device_time: float,
    peers: bool,
    plot: Path | None,
    keep: Path | None,
    as_json: bool,
) -> None:
    """Trace training here over links of limited rate, and predict from the traces what half the bandwidth, other
    buckets, the aggregator in Gloo's place or a slow rank would do; then do it.

    Besides, shift the clocks of the traces by 50 ms and find them again, and train with one real rank among emulated
    ones, beside all-real runs (`switchml validate peers` does so at more rates).

    Needs root, iproute2 and torch. Run it on a machine that has nothing else to do: what others compute is measured
    too, and not predicted.
    """
    from emulator.netsim.report import require_plotting
    from emulator.testbed.namespaces import check_rights
    from emulator.validation.replay import measure as replayed

    def say(line: str) -> None:
        click.echo(line, err=True)

    check_rights()
    if plot is not None:
        require_plotting(plot)
    plan = replayed.Plan(
        workers=workers,
        rate_bps=rate,
        steps=steps,
        layers=layers,
        width=width,
        batch=batch_size,
        device_s=device_time,
    )
    found = replayed.validate(plan, say, keep)
    if peers:
        from emulator.validation.peers import measure as validation

        emulated = validation.validate(validation.Plan(workers=workers, rates_bps=(rate,)), say)
        found = dataclasses.replace(found, peers=emulated.rows)
    if plot is not None:
        from emulator.validation.scatter import draw

        draw(list(found.groups.items()), plot, "iteration")
    if as_json:
        click.echo(json.dumps(found.as_json()))
    else:
        _show(found)


def _show(found) -> None:
    from rich.console import Console
    from rich.table import Table

    from emulator.cli.validate.clocks import show as show_clocks
    from emulator.validation.rows import mape, worst

    console = Console(highlight=False)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("")
    for heading in ("measured ms", "predicted ms", "error"):
        table.add_column(heading, justify="right", no_wrap=True)
    for kind, rows in found.groups.items():
        table.add_row(TITLES[kind], style="bold")
        for row in rows:
            table.add_row(
                f"  {row.name}", f"{row.measured * 1e3:.1f}", f"{row.predicted * 1e3:.1f}", f"{row.error:+.1%}"
            )
    console.print(table)
    for kind, rows in found.groups.items():
        far = worst(rows)
        console.print(f"{kind.capitalize()}: MAPE {mape(rows):.1%}, worst {far.error:+.1%} ({far.name})")
    show_clocks(found.clocks)
