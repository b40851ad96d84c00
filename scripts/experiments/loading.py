"""Loading over a slow link: torch's DataLoader, PlannedLoader, and the emulator's prediction.

    sudo python scripts/experiments/loading.py [--rate 200mbit] [--latency 10ms] [--samples 4000] [--json] [--plot FILE]
    sudo python scripts/experiments/loading.py --against litdata

An HTTP server in one network namespace serves the samples as one .npy file; all ranks are in another, behind a link of
`--rate`. The server waits `--latency` before each response, as object stores do. Ranks only load; they don't train. The
plain loader caches nothing, so all its epochs are alike, and one is measured.

litdata (`pip install litdata`) reads the same samples as chunks from the same server, which serves them like S3: with
one sample per chunk, so that it shuffles as the plain loader does, and with `--chunk-samples`, compared with
PlannedLoader with `order="blocks"`. Its caches may be as large as PlannedLoader's buffers and windows together.
"spread": the number of parts of the data set that a global batch comes from, relative to a full shuffle.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from emulator.lab.validation.real import litdata_loading
from emulator.lab.validation.real.loading import NUMBER_BYTES, compare
from emulator.networks.testbed.namespaces import check_rights
from emulator.surface.cli.options import plot_option
from switchml import plotting
from switchml.cli.options import RATE, SECONDS, Count
from switchml.errors import SwitchMLError
from switchml.pages.panels import Bar, Bars
from switchml.tables import Table, number, show, text


@click.command(help=__doc__)
@click.option("--ranks", type=Count(1), default=4)
@click.option("--rate", type=RATE, default="200mbit", help="Of the link to the storage.")
@click.option("--latency", type=SECONDS, default="10ms", help="Until the storage answers.")
@click.option("--samples", type=Count(1), default=4000)
@click.option("--sample-bytes", type=Count(NUMBER_BYTES), default=4096)
@click.option("--micro-batch", "batch", type=Count(1), default=16, help="Of each rank.")
@click.option("--epochs", type=Count(1), default=5, help="Of the planned loader.")
@click.option("--times", type=click.FloatRange(1), default=5.0, help="The data set's size over all ranks' buffers.")
@click.option("--against", type=click.Choice([litdata_loading.NAME]), help="Another loader, which must be installed.")
@click.option("--chunk-samples", type=Count(1), default=128, help="Of a litdata chunk.")
@plot_option
@click.option("--json", "as_json", is_flag=True)
def main(rate: float, latency: float, times: float, plot_file: Path | None, as_json: bool, **plan: Any) -> None:
    try:
        if plan["against"]:
            litdata_loading.check_installed()
        check_rights()
        rows = compare(plan, rate, latency, times)
    except SwitchMLError as error:
        raise click.ClickException(str(error)) from None
    if plot_file is not None:
        kinds = ["emulated" if row["loader"] == "emulated" else "measured" for row in rows]
        bars = [Bar(row["loader"], kind, row["samples_per_s"]) for row, kind in zip(rows, kinds, strict=True)]
        plotting.draw(plot_file, f"Loading behind {rate / 1e6:g} Mbit/s", [Bars("Loaders", "samples a second", bars)])
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    columns = [text("loader"), *map(number, ("samples/s", "seconds", "samples", "reads", "MB", "spread"))]
    table = Table(columns, title=f"{plan['ranks']} ranks, {rate / 1e6:g} Mbit/s, {latency * 1e3:g} ms")
    for row in rows:
        table.add(
            row["loader"],
            f"{row['samples_per_s']:,.0f}",
            f"{row['seconds']:.1f}",
            *(f"{row[name]:,}" for name in ("samples", "reads")),
            f"{row['bytes'] / 1e6:.1f}",
            f"{row['spread']:.0%}" if "spread" in row else "",
        )
    show(table)


if __name__ == "__main__":
    main()
