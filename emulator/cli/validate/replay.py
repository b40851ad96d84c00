"""`switchml validate replay`: traced runs replayed, as they were and changed, beside the runs that were changed so."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from emulator.cli.options import COUNTS, FOLDER, RATE, TIME, json_option, output, plot_option, progress


@click.command()
@click.option("--workers", type=COUNTS, default="2,4", help="Numbers of workers to measure.")
@click.option("--rate", type=RATE, default="200mbit", help="Rate of each host's link.")
@click.option("--steps", type=click.IntRange(3), default=12, help="Steps of each run.")
@click.option("--layers", type=click.IntRange(1), default=6, help="Layers of the model.")
@click.option("--width", type=click.IntRange(16), default=512, help="Rows and columns of each layer.")
@click.option("--batch-size", type=click.IntRange(1), default=32, help="Vectors of each worker in a step.")
@click.option(
    "--device-time",
    type=TIME,
    default="5ms",
    help="Time that an accelerator would take for a layer's forward pass, and half of its backward pass. 0s: this "
    "machine computes.",
)
@click.option("--peers/--no-peers", default=True, help="Whether to emulate all ranks but one, too.")
@plot_option
@click.option("--keep", type=FOLDER, help="Keep the traces in this directory.")
@json_option
def replay(
    workers: tuple[int, ...],
    rate: float,
    steps: int,
    layers: int,
    width: int,
    batch_size: int,
    device_time: float,
    peers: bool,
    plot_file: Path | None,
    keep: Path | None,
    as_json: bool,
) -> None:
    """Trace training here over links of limited rate, and predict from the traces what half the bandwidth, other
    buckets, the aggregator in Gloo's place or a slow rank would do; then do it.

    Besides, shift the clocks of the traces by 50 ms and recover them, and train with one real rank among emulated
    ones, beside all-real runs (`switchml validate peers` does so at more rates).

    Needs root, iproute2 and torch. Run it on a machine that has nothing else to do: what others compute is measured
    too, and not predicted.
    """
    from emulator.testbed.namespaces import check_rights
    from emulator.validation import scatter
    from emulator.validation.peers import measure as emulated
    from emulator.validation.replay import measure, report

    check_rights()
    plan = measure.ReplayPlan(
        workers=workers,
        rate_bps=rate,
        steps=steps,
        layers=layers,
        width=width,
        batch=batch_size,
        device_s=device_time,
    )
    validation = measure.validate(plan, progress, keep)
    if peers:
        rows = emulated.validate(emulated.PeersPlan(workers=workers, rates_bps=(rate,)), progress).rows
        validation = dataclasses.replace(validation, peers=rows)
    if plot_file is not None:
        scatter.draw(list(validation.groups.items()), plot_file, "iteration")
    output(as_json, validation.as_json, lambda: report.print_table(validation))
