"""`switchml bench switch`: packets a second through the P4 switch's compiled engine, beside the reference
interpreter."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from switchml.cli.options import option


@click.command()
@click.option(
    "--program",
    "programs",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="BMv2 JSON to measure, in place of L3 forwarding and aggregation of 64 and 256 lanes; may be repeated.",
)
@click.option("--seconds", type=click.FloatRange(min=0.1), default=1.0, help="Seconds for each figure.")
@option("--veth", "wire", was="--wire", is_flag=True, help="Also measure a switch process between veth pairs (root).")
@click.option("--against", metavar="SIMPLE_SWITCH", help="Also measure this simple_switch between veth pairs (root).")
@click.option("--start", is_flag=True, help="Measure instead how long a switch takes to start.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def switch(
    programs: tuple[Path, ...], seconds: float, wire: bool, against: str | None, start: bool, as_json: bool
) -> None:
    """Measure the P4 switch: packets a second on one core; or, with --start, seconds from the start of a process to its
    first packet (by default of the largest program)."""
    if start:
        from emulator.bench.switch.start import largest, measure

        columns = ("warm_first_packet_s", "warm_full_s", "cold_first_packet_s", "cold_full_s")
        _print((measure(path) for path in programs or [largest()]), columns, ".2f", as_json)
    else:
        from emulator.bench.switch import engines

        columns = ("engine_pps", "reference_pps", "wire_pps", "simple_switch_pps", "ratio")
        paths = programs or engines.default_programs()
        results = (engines.measure(path, seconds=seconds, wire=wire, against=against) for path in paths)
        _print(results, columns, ",.1f", as_json)


def _print(results: Iterable, columns: Sequence[str], form: str, as_json: bool) -> None:
    """A line for each result, as soon as it is measured."""
    if not as_json:
        click.echo(f"{'program':<20}" + "".join(f"{name:>21}" for name in columns))
    for result in results:
        row = result.to_json()
        cells = ("-" if row[name] is None else format(row[name], form) for name in columns)
        click.echo(json.dumps(row) if as_json else f"{row['program']:<20}" + "".join(f"{cell:>21}" for cell in cells))
