"""`switchml bench switch`: packets per second through the P4 switch's compiled engine, compared with the reference
interpreter."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from switchml.cli.options import NAMED_SECONDS, option
from switchml.tables import Column, number, text, wide_option

START = {
    "warm_first_packet_s": number("first packet", "s", least=8),
    "warm_full_s": number("full speed", "s", least=8),
    "cold_first_packet_s": number("first packet, no cache", "s", least=8),
    "cold_full_s": number("full speed, no cache", "s", least=8),
}
ENGINES = {
    "engine_pps": number("compiled", "packets/s", least=11),
    "reference_pps": number("interpreted", "packets/s", least=11),
    "wire_pps": number("on the wire", "packets/s", drop=1, least=11),
    "simple_switch_pps": number("simple_switch", "packets/s", drop=1, least=11),
    "ratio": number("ratio", least=6),
}
"""Figure in the JSON → its column."""
CHANGES = {
    "engine": text("engine", least=11),
    "entries": number("entries", least=7),
    "insert_us": number("insert", "µs", least=6),
    "change_us": number("change", "µs", least=6),
    "delete_us": number("delete", "µs", least=6),
    "read_us": number("read", "µs", least=6),
    "gap_ms": number("gap", "ms", least=6),
}
RATIO = "ratio: on the wire over simple_switch where both were measured, else compiled over interpreted"


@click.command()
@click.option(
    "--program",
    "programs",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="BMv2 JSON to measure, in place of L3 forwarding and aggregation of 64 and 256 lanes; may be repeated.",
)
@click.option(
    "--stf",
    "stf_path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Table entries (add) and packets for the one --program; ports 0 and 1 are connected, packets "
    "enter at 0. Without it, a program gets frames of zeros.",
)
@click.option("--seconds", type=NAMED_SECONDS, default=1.0, help="Duration of each measurement.")
@option("--veth", "wire", is_flag=True, help="Also measure a switch process between veth pairs (root).")
@click.option("--against", metavar="SIMPLE_SWITCH", help="Also measure this simple_switch between veth pairs (root).")
@click.option("--start", is_flag=True, help="Measure only the start-up time of a switch.")
@click.option("--changes", is_flag=True, help="Measure only the cost of table changes under traffic.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@wide_option
def switch(
    programs: tuple[Path, ...],
    stf_path: Path | None,
    seconds: float,
    wire: bool,
    against: str | None,
    start: bool,
    changes: bool,
    as_json: bool,
) -> None:
    """Measure the P4 switch: packets per second on one core; or, with --start, seconds from the start of a process to
    its first packet (by default of the largest program); or, with --changes, microseconds for an insert, change, delete
    and read by key, and the longest gap in concurrent traffic, with 100 to 100,000 entries (by default of L3
    forwarding)."""
    if start and changes:
        raise click.UsageError("--start and --changes can't be combined")
    if stf_path and len(programs) != 1:
        raise click.UsageError("--stf requires exactly one --program")
    if changes:
        from emulator.lab.bench.switch import changes as bench_changes
        from emulator.lab.bench.switch.engines import PROGRAMS

        paths = programs or [PROGRAMS / "l3.json"]
        names = [path.stem for path in paths for _ in range(bench_changes.N_ROWS)]
        rows = (row for path in paths for row in bench_changes.measure(path))
        _print(names, rows, CHANGES, ",.1f", as_json)
    elif start:
        from emulator.lab.bench.switch.start import largest, measure

        paths = programs or [largest()]
        _print([path.stem for path in paths], (measure(path, stf_path) for path in paths), START, ".2f", as_json)
    else:
        from emulator.lab.bench.switch import engines

        paths = programs or engines.default_programs()
        options: dict[str, Any] = {"seconds": seconds, "wire": wire, "against": against, "stf_path": stf_path}
        results = (engines.measure(path, **options) for path in paths)
        _print([path.stem for path in paths], results, ENGINES, ",.0f", as_json)


def columns(names: Sequence[str], figures: dict[str, Column]) -> list[Column]:
    """Columns of the table for programs of these names."""
    return [text("program", least=max(map(len, names))), *figures.values()]


def _print(names: Sequence[str], results: Iterable, figures: dict[str, Column], form: str, as_json: bool) -> None:
    """Print a line for each result as soon as it is measured."""
    from switchml.tables import Stream
    from switchml.terminal import progress

    stream = None if as_json else Stream(columns(names, figures))
    with progress("programs", len(names)) as task:
        for result in results:
            row = result.to_json()
            if stream is None:
                click.echo(json.dumps(row))
            else:
                stream.add(row["program"], *cells(row, figures, form))
            task.advance()
    if stream is not None:
        stream.close(*([RATIO] if "ratio" in figures else []))


def cells(row: dict[str, Any], figures: dict[str, Column], form: str) -> list[str]:
    """Table row of one result's `to_json`."""
    forms = {name: {"ratio": ".1f", "entries": ",d"}.get(name, form) for name in figures}
    return [_cell(row[name], forms[name]) for name in figures]


def _cell(value: Any, form: str) -> str:
    if isinstance(value, str):
        return value
    return "–" if value is None else format(value, form)
