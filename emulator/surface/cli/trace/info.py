"""`switchml trace info`: the content of a trace, and what it lacks."""

from pathlib import Path
from typing import Any

import click

from emulator.surface.cli.options import ANY_PATH, json_option, output, trace_options
from switchml import tables
from switchml.tables import Table, number, text
from switchml.terminal import say


@click.command()
@click.argument("path", type=ANY_PATH)
@trace_options
@json_option
def info(path: Path, rank: int | None, salvage: bool, as_json: bool) -> None:
    """Show ranks, lanes, events, collectives and iterations of a trace: a file, or a directory with one per rank."""
    from emulator.traces.readers.read import read
    from emulator.traces.summary import of_job

    found = of_job(read(path, rank=rank, salvage=salvage))
    output(as_json, lambda: found, lambda: show(found))


def show(found: dict[str, Any]) -> None:
    """Print the result of `of_job`."""
    from switchml.units import TimeUnit, time_text

    ranks = found["ranks"]
    first = ranks[0]
    means = [rank["mean_iteration_s"] for rank in ranks]
    unit = TimeUnit(means)
    columns = [
        *(number("rank"), number("of", drop=4), text("host", drop=3), text("format"), text("backend", drop=2)),
        *(number("events"), number("lanes", drop=1), number("iterations"), number("mean", unit.name)),
        number("collectives"),
    ]
    table = Table(columns, title="Ranks")
    for rank, mean in zip(ranks, means, strict=True):
        table.add(
            *(str(rank["rank"]), str(rank["world_size"]), rank["host"] or "", rank["format"], rank["backend"] or ""),
            *(f"{rank['events']:,}", str(len(rank["lanes"])), str(rank["iterations"]), unit.text(mean)),
            str(sum(row["count"] for row in rank["collectives"])),
        )
    tables.show(table)
    say(f"\nan iteration takes {time_text(found['iteration_s'])}")
    say(f"rank {first['rank']}: {', '.join(f'{n:,} {kind}' for kind, n in first['kinds'].items())}\n")
    tables.show(_lanes(first["lanes"]), *([_collectives(first["collectives"])] if first["collectives"] else []))
    if len(on_device := [lane for lane in first["lanes"] if lane["kind"] == "device"]) > 1:
        say(f"\ndevice busy {time_text(first['device_busy_s'])}: the union over {len(on_device)} streams")
    notes = [*found["missing"], *first["missing"], *(f"{key}: {words}" for key, words in first["about"].items())]
    if notes:
        say()
    for note in notes:
        say(f"- {note}")


def _lanes(lanes: list[dict[str, Any]]) -> Table:
    from switchml.units import TimeUnit

    unit = TimeUnit(lane["busy_s"] for lane in lanes)
    table = Table([text("lane"), text("kind"), number("events"), number("busy", unit.name)])
    for lane in lanes:
        table.add(lane["name"], lane["kind"], f"{lane['events']:,}", unit.text(lane["busy_s"]))
    return table


def _collectives(rows: list[dict[str, Any]]) -> Table:
    from switchml.units import TimeUnit, bytes_text

    median, total = (TimeUnit(row[name] for row in rows) for name in ("median_s", "total_s"))
    columns = [text("communication"), text("group", drop=1), number("ranks"), number("size"), number("count")]
    table = Table([*columns, number("median", median.name), number("total", total.name)])
    for row in rows:
        times = (median.text(row["median_s"]), total.text(row["total_s"]))
        counts = (str(row["ranks"]), bytes_text(row["bytes"]), str(row["count"]))
        table.add(row["operation"], row["group"] or "", *counts, *times)
    return table
