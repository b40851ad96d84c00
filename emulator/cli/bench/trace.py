"""`switchml bench trace`: how fast traces are read, and in how much memory."""

from __future__ import annotations

import click

from emulator.cli.options import json_option, output


@click.command()
@click.option("--megabytes", type=click.IntRange(min=1), default=500, help="Size of the trace as JSON.")
@click.option("--gzip/--plain", "compressed", default=False, help="Whether the trace is compressed.")
@click.option("--compare", is_flag=True, help="Also measure Python's json.load.")
@json_option
def trace(megabytes: int, compressed: bool, compare: bool, as_json: bool) -> None:
    """Measure reading a generated trace of PyTorch's profiler: megabytes a second, and the reader's peak memory."""
    from emulator.bench.trace import measure

    result = measure(megabytes * 1_000_000, compressed=compressed, compare=compare)
    output(as_json, result.to_json, lambda: click.echo("\n".join(result.lines())))
