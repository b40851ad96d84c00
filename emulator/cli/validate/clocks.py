"""`switchml validate clocks`: shifted clocks, recovered from traces."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from emulator.cli.options import TIME, json_option, output


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path), metavar="DIR…")
@click.option("--shift", type=TIME, default="50ms", help="Shift of each rank's clock but the first.")
@json_option
def clocks(paths: tuple[Path, ...], shift: float, as_json: bool) -> None:
    """Shift the clocks in each DIR, the traces of a job on one machine, and recover them.

    First with everything in the traces, then without the pings of a capture, then without packets. "off by" is the
    error of the clock that was missed most.
    """
    from emulator.traces.readers.read import read
    from emulator.validation.clocks import print_table, recovered

    rows = [row for path in paths for row in recovered(str(path), read(path), shift)]
    output(as_json, lambda: {"rows": [asdict(row) for row in rows]}, lambda: print_table(rows))
