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
@click.option("--wire", is_flag=True, help="Also a switch process between veth pairs (root).")
@click.option("--against", metavar="SIMPLE_SWITCH", help="Also this simple_switch, between veth pairs (root).")
@click.option("--start", is_flag=True, help="Measure how long a switch takes to start, instead.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
def switch(
    programs: tuple[Path, ...], seconds: float, wire: bool, against: str | None, start: bool, as_json: bool
) -> None:
    """Measure the P4 switch: packets a second on one core; or, with --start, seconds from the start of a process to its
    first packet (of the largest program, unless told otherwise)."""
    if start:
        _start(programs, as_json)
        return
    from emulator.bench.switch.engines import default_programs, measure

    columns = ("engine_pps", "reference_pps", "wire_pps", "simple_switch_pps", "ratio")
    if not as_json:
        click.echo(f"{'program':<20}" + "".join(f"{name:>18}" for name in columns))
    for path in programs or default_programs():
        found = measure(path, seconds=seconds, wire=wire, against=against).to_json()
        if as_json:
            click.echo(json.dumps(found))
        else:
            cells = ("-" if found[name] is None else f"{found[name]:,.1f}" for name in columns)
            click.echo(f"{found['program']:<20}" + "".join(f"{cell:>18}" for cell in cells))


def _start(programs: tuple[Path, ...], as_json: bool) -> None:
    from emulator.bench.switch.start import largest, measure

    columns = ("warm_first_packet_s", "warm_full_s", "cold_first_packet_s", "cold_full_s")
    if not as_json:
        click.echo(f"{'program':<20}" + "".join(f"{name:>21}" for name in columns))
    for path in programs or [largest()]:
        found = measure(path).to_json()
        if as_json:
            click.echo(json.dumps(found))
        else:
            click.echo(f"{found['program']:<20}" + "".join(f"{found[name]:>21.2f}" for name in columns))
