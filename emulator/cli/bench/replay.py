"""`switchml bench replay`: ops a second of the replay engines, beside the same rules in plain simpy."""

from __future__ import annotations

import click

from emulator.cli.options import json_option, output


@click.command()
@click.option("--ops", type=click.IntRange(min=1000), default=1_000_000, help="Size of the job, about.")
@click.option("--repeats", type=click.IntRange(min=1), default=3, help="Repeats, of which the best counts.")
@json_option
def replay(ops: int, repeats: int, as_json: bool) -> None:
    """Measure how fast whole training jobs are replayed, on one core."""
    from emulator.bench.replay import measure

    result = measure(ops, repeats=repeats)
    output(as_json, result.to_json, lambda: click.echo("\n".join(result.lines())))
