"""`switchml validate clocks`: clocks that were moved, found again from traces."""

from __future__ import annotations

import json
from pathlib import Path

import click

from emulator.cli.bench.network import TIME


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path), metavar="DIR…")
@click.option("--shift", type=TIME, default="50ms", show_default=True, help="Of each rank's clock but the first.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object in place of the table.")
def clocks(paths: tuple[Path, ...], shift: float, as_json: bool) -> None:
    """Shift the clocks in each DIR, the traces of a job on one machine, and find them again.

    With all that the traces tell, then without the pings of a capture, then without packets. Off by: the clock that was
    missed most.
    """
    from dataclasses import asdict

    from emulator.traces.readers.read import read
    from emulator.validation.clocks import recovered

    found = [row for path in paths for row in recovered(str(path), read(path), shift)]
    if as_json:
        click.echo(json.dumps({"rows": [asdict(row) for row in found]}))
    else:
        show(found)


def show(found) -> None:
    """A table of `emulator.validation.clocks.Recovered`."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for heading in (f"clocks shifted by {found[0].shift_s * 1e3:g} ms", "told by"):
        table.add_column(heading)
    table.add_column("off by µs", justify="right", no_wrap=True)
    for row in found:
        table.add_row(row.name, row.told_by, f"{row.error_s * 1e6:,.0f}")
    Console(highlight=False).print(table)
