"""`switchml bench optimizer`: how many settings a search tries a minute, on a job with many gradients."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command()
@click.option("--trials", type=click.IntRange(1), default=1000, show_default=True, help="Settings to try.")
@click.option("--gradients", type=click.IntRange(2), default=160, show_default=True, help="Of the job: ResNet-50's.")
@click.option("--ranks", type=click.IntRange(2), default=4, show_default=True)
@click.option(
    "--trace", "path", type=click.Path(path_type=Path), help="Search a trace's settings instead of a made-up job's."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def optimizer(trials: int, gradients: int, ranks: int, path: Path | None, as_json: bool) -> None:
    """Measure a search by Optuna, exhaustive shortcuts left out, on one core; beside replays of the whole job."""
    from emulator.bench.optimizer import made_up, measure

    if path is None:
        joined = made_up(gradients, ranks)
    else:
        from emulator.traces.join import join
        from emulator.traces.readers.read import read
        from emulator.whatif.serial import prepared

        joined = prepared(join(read(path)))
    found = measure(joined, trials)
    if as_json:
        click.echo(json.dumps(found.to_json()))
        return
    click.echo(
        f"{found.ops:,} ops of {found.ranks} ranks, {found.gradients} gradients; coarsened {found.coarse_ops:,} ops"
    )
    click.echo(f"{'settings tried a minute':<32}{found.settings_per_minute:>14,.0f}  ({found.trials} by Optuna)")
    click.echo(f"{'passes and replay alone':<32}{found.replays_per_minute:>14,.0f}")
    click.echo(f"{'the same on the whole job':<32}{found.whole_per_minute:>14,.0f}")
