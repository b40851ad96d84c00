"""`switchml bench switch`: packets a second through the P4 switch's compiled engine, beside the reference
interpreter."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command()
@click.option(
    "--program",
    "programs",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="BMv2 JSON to measure, instead of L3 forwarding and aggregation of 64 and 256 lanes; may be repeated.",
)
@click.option("--seconds", type=click.FloatRange(min=0.1), default=1.0, show_default=True, help="For each figure.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
def switch(programs: tuple[Path, ...], seconds: float, as_json: bool) -> None:
    """Measure the P4 switch: packets a second on one core."""
    from emulator.bmv2.bench import default_programs, measure

    if not as_json:
        click.echo(f"{'program':<20} {'engine':>12} {'reference':>12} {'ratio':>8}   packets/s")
    for path in programs or default_programs():
        found = measure(path, seconds=seconds).to_json()
        if as_json:
            click.echo(json.dumps(found))
        else:
            engine, reference = found["engine_pps"], found["reference_pps"]
            click.echo(f"{found['program']:<20} {engine:>12,.0f} {reference:>12,.0f} {found['ratio']:>8}")
