"""`switchml bench replay`: ops a second of the replay engines, beside a plain simpy writing of the same rules."""

from __future__ import annotations

import json

import click


@click.command()
@click.option("--ops", type=click.IntRange(min=1000), default=1_000_000, show_default=True, help="Size of the job.")
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True, help="The best of them counts.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def replay(ops: int, repeats: int, as_json: bool) -> None:
    """Measure how fast whole training jobs are replayed, on one core."""
    from emulator.bench.replay import measure

    found = measure(ops, repeats=repeats)
    if as_json:
        click.echo(json.dumps(found.to_json()))
        return
    click.echo(f"{found.ops:,} ops of {found.ranks} ranks, one transformer iteration; built in {found.build_s:.2f} s")
    for name, rate in (
        ("nothing competes (sweep)", found.ops_per_s),
        ("the same by events (calendar)", found.calendar_ops_per_s),
        ("with ops that compete", found.competing_ops_per_s),
        (f"plain simpy, {found.reference_ops:,} ops", found.reference_ops_per_s),
    ):
        click.echo(f"{name:<32}{rate:>14,.0f} ops/s")
