"""`switchml bench optimizer`: how many settings a search tries a minute, on a job with many gradients."""

from __future__ import annotations

from pathlib import Path

import click

from emulator.cli.options import json_option, output


@click.command()
@click.option("--trials", type=click.IntRange(1), default=1000, help="Settings to try.")
@click.option(
    "--gradients", type=click.IntRange(2), default=160, help="Gradients of the synthetic job; ResNet-50 has 160."
)
@click.option("--ranks", type=click.IntRange(2), default=4, help="Ranks of the synthetic job.")
@click.option(
    "--trace",
    "path",
    type=click.Path(path_type=Path),
    help="Search settings for a traced job instead of a synthetic one.",
)
@json_option
def optimizer(trials: int, gradients: int, ranks: int, path: Path | None, as_json: bool) -> None:
    """Measure how many settings a search by Optuna tries a minute on one core, beside replays of the whole job."""
    from emulator.bench.optimizer import measure, synthetic_job

    if path is None:
        joined = synthetic_job(gradients, ranks)
    else:
        from emulator.traces.join import join
        from emulator.traces.readers.read import read
        from emulator.whatif.serial import prepared

        joined = prepared(join(read(path)))
    result = measure(joined, trials)
    output(as_json, result.to_json, lambda: click.echo("\n".join(result.lines())))
