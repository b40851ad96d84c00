"""`switchml trace info`: what is in a trace, and what is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from emulator.cli.options import ANY_PATH, json_option, output, table, trace_options

_PLAIN = {"box": None, "pad_edge": False}


@click.command()
@click.argument("path", type=ANY_PATH)
@trace_options
@json_option
def info(path: Path, rank: int | None, salvage: bool, as_json: bool) -> None:
    """Show ranks, lanes, events, collectives and iterations of a trace: a file, or a directory with one a rank."""
    from emulator.traces.readers.read import read
    from emulator.traces.summary import across, summary

    traces = read(path, rank=rank, salvage=salvage)
    ranks, between = [summary(trace) for trace in traces], across(traces)
    output(as_json, lambda: {"ranks": ranks, "missing": between}, lambda: _show(ranks, between))


def _show(ranks: list[dict[str, Any]], between: list[str]) -> None:
    from emulator.report.tables import bytes_text, time_text
    from switchml.terminal import Console

    console, first = Console(), ranks[0]
    rows = [
        (
            str(rank["rank"]), str(rank["world_size"]), rank["host"] or "?", rank["format"], rank["backend"] or "-",
            f"{rank['events']:,}", str(len(rank["lanes"])), str(rank["iterations"]),
            time_text(sum(rank["iteration_s"]) / max(1, rank["iterations"])),
            str(sum(row["count"] for row in rank["collectives"])),
        )
        for rank in ranks
    ]  # fmt: skip
    figures = ("events", "lanes", "iterations", "mean", "collectives")
    console.print(table(("rank", "of", "host", "format", "backend"), figures, rows, **_PLAIN))
    console.print(f"\nrank {first['rank']}: {', '.join(f'{n:,} {kind}' for kind, n in first['kinds'].items())}")
    lanes = [(lane["name"], lane["kind"], f"{lane['events']:,}", time_text(lane["busy_s"])) for lane in first["lanes"]]
    console.print(table(("lane", "kind"), ("events", "busy"), lanes, **_PLAIN))
    if first["collectives"]:
        console.print()
        rows = [
            (
                row["operation"], row["group"] or "-", str(row["ranks"]), bytes_text(row["bytes"]), str(row["count"]),
                time_text(row["median_s"]), time_text(row["total_s"]),
            )
            for row in first["collectives"]
        ]  # fmt: skip
        figures = ("ranks", "size", "count", "median", "total")
        console.print(table(("communication", "group"), figures, rows, **_PLAIN))
    notes = [*between, *first["missing"], *(f"{key}: {text}" for key, text in first["about"].items())]
    if notes:
        console.print()
    for note in notes:
        console.print(f"- {note}", highlight=False)
