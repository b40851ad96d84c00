"""`switchml trace info`: what is in a trace, and what is not."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--rank", type=click.IntRange(min=0), help="Rank of the trace, for a file without it.")
@click.option("--salvage", is_flag=True, help="Read truncated files as far as they go.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def info(path: Path, rank: int | None, salvage: bool, as_json: bool) -> None:
    """Show ranks, lanes, events, collectives and iterations of a trace: a file, or a directory with one a rank."""
    from emulator.traces.readers.read import read
    from emulator.traces.summary import across, summary

    traces = read(path, rank=rank, salvage=salvage)
    ranks, between = [summary(trace) for trace in traces], across(traces)
    if as_json:
        click.echo(json.dumps({"ranks": ranks, "missing": between}))
        return
    _show(ranks, between)


def _show(ranks: list[dict], between: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    from emulator.report.tables import bytes_text, time_text

    console = Console()
    table = Table(box=None, pad_edge=False)
    for name in ("rank", "of", "host", "format", "backend"):
        table.add_column(name)
    for name in ("events", "lanes", "iterations", "mean", "collectives"):
        table.add_column(name, justify="right")
    for rank in ranks:
        mean = sum(rank["iteration_s"]) / max(1, rank["iterations"])
        table.add_row(
            str(rank["rank"]), str(rank["world_size"]), rank["host"] or "?", rank["format"], rank["backend"] or "-",
            f"{rank['events']:,}", str(len(rank["lanes"])), str(rank["iterations"]), time_text(mean),
            str(sum(row["count"] for row in rank["collectives"])),
        )  # fmt: skip
    console.print(table)
    first = ranks[0]
    console.print(f"\nrank {first['rank']}: {', '.join(f'{n:,} {kind}' for kind, n in first['kinds'].items())}")
    table = Table(box=None, pad_edge=False)
    for name, justify in (("lane", "left"), ("kind", "left"), ("events", "right"), ("busy", "right")):
        table.add_column(name, justify=justify)
    for lane in first["lanes"]:
        table.add_row(lane["name"], lane["kind"], f"{lane['events']:,}", time_text(lane["busy_s"]))
    console.print(table)
    if first["collectives"]:
        console.print()
        table = Table(box=None, pad_edge=False)
        for name, justify in (("communication", "left"), ("group", "left"), ("ranks", "right"), ("size", "right"),
                              ("count", "right"), ("median", "right"), ("total", "right")):  # fmt: skip
            table.add_column(name, justify=justify)
        for row in first["collectives"]:
            table.add_row(
                row["operation"], row["group"] or "-", str(row["ranks"]), bytes_text(row["bytes"]), str(row["count"]),
                time_text(row["median_s"]), time_text(row["total_s"]),
            )  # fmt: skip
        console.print(table)
    notes = [*between, *first["missing"], *(f"{key}: {text}" for key, text in first["about"].items())]
    if notes:
        console.print()
    for note in notes:
        console.print(f"- {note}", highlight=False)
