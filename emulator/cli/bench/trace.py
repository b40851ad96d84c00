"""`switchml bench trace`: how fast traces are read, and in how much memory."""

from __future__ import annotations

import json

import click


@click.command()
@click.option("--megabytes", type=click.IntRange(min=1), default=500, show_default=True, help="Of JSON.")
@click.option("--gzip/--plain", "compressed", default=False, help="Read it compressed.")
@click.option("--compare", is_flag=True, help="Beside Python's json.load.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def trace(megabytes: int, compressed: bool, compare: bool, as_json: bool) -> None:
    """Measure reading a generated trace of PyTorch's profiler: megabytes a second, and the reader's peak memory."""
    from emulator.bench.trace import measure

    found = measure(megabytes * 1_000_000, compressed=compressed, compare=compare)
    if as_json:
        click.echo(json.dumps(found.to_json()))
        return
    click.echo(f"{found.json_bytes / 1e6:,.0f} MB of JSON, {found.file_bytes / 1e6:,.0f} MB on disk")
    rates = [found.json_bytes / 1e6 / seconds for seconds in (found.read_s, found.cpu_s)]
    click.echo(
        f"{found.events:,} events in {found.read_s:.2f} s: {rates[0]:.0f} MB/s; "
        f"{found.cpu_s:.2f} s on the processor: {rates[1]:.0f} MB/s"
    )
    click.echo(
        f"peak memory {found.peak_bytes / 1e6:,.0f} MB, of which {found.start_bytes / 1e6:,.0f} MB before reading"
    )
    if found.plain_read_s and found.plain_peak_bytes:
        click.echo(
            f"json.load: {found.plain_read_s:.2f} s, {found.plain_cpu_s:.2f} s on the processor, "
            f"{found.plain_peak_bytes / 1e6:,.0f} MB"
        )
