"""Loading over a slow link: torch's DataLoader beside PlannedLoader, and what the emulator predicts.

    sudo python scripts/experiments/loading.py [--rate 200mbit] [--latency 10ms] [--samples 4000] [--json]

An HTTP server in one network namespace has the samples as one .npy file; all ranks are in another, behind a link of
`--rate`. The server waits `--latency` before each answer, as object stores do. Ranks only load: nothing trains. The
plain loader keeps nothing, so each of its epochs is like the first, and one is measured.
"""

from __future__ import annotations

import json
from typing import Any

import click

from emulator.testbed.namespaces import check_rights
from emulator.validation.real.loading import compare
from switchml.cli.options import RATE, SECONDS, Count
from switchml.tables import Table, number, show, text


@click.command(help=__doc__)
@click.option("--ranks", type=Count(1), default=4)
@click.option("--rate", type=RATE, default="200mbit", help="Of the link to the storage.")
@click.option("--latency", type=SECONDS, default="10ms", help="Until the storage answers.")
@click.option("--samples", type=Count(1), default=4000)
@click.option("--sample-bytes", type=Count(1), default=4096)
@click.option("--micro-batch", "batch", type=Count(1), default=16, help="Of each rank.")
@click.option("--epochs", type=Count(1), default=5, help="Of the planned loader.")
@click.option("--times", type=click.FloatRange(1), default=5.0, help="The data set's size over all ranks' buffers.")
@click.option("--json", "as_json", is_flag=True)
def main(rate: float, latency: float, times: float, as_json: bool, **plan: Any) -> None:
    check_rights()
    rows = compare(plan, rate, latency, times)
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    columns = [text("loader"), *map(number, ("samples/s", "seconds", "samples", "reads", "MB"))]
    table = Table(columns, title=f"{plan['ranks']} ranks, {rate / 1e6:g} Mbit/s, {latency * 1e3:g} ms")
    for row in rows:
        table.add(
            row["loader"],
            f"{row['samples_per_s']:,.0f}",
            f"{row['seconds']:.1f}",
            *(f"{row[name]:,}" for name in ("samples", "reads")),
            f"{row['bytes'] / 1e6:.1f}",
        )
    show(table)


if __name__ == "__main__":
    main()
