"""`switchml bench replay|optimizer|trace`: the speed of the emulator's own tools."""

from pathlib import Path
from typing import Any

import click

from emulator.surface.cli.options import json_option, output
from switchml.cli.extras import require
from switchml.cli.options import SIZE, Count, option
from switchml.terminal import progress, say


@click.command()
@click.option("--ops", type=Count(1000), default=1_000_000, help="Approximate size of the job.")
@click.option("--repeats", type=Count(1), default=3, help="Repeats, of which the best counts.")
@json_option
def replay(ops: int, repeats: int, as_json: bool) -> None:
    """Measure how fast whole training jobs are replayed, on one core."""
    from emulator.lab.bench.replay import measure

    with progress("replaying"):
        result = measure(ops, repeats=repeats)
    _show(result, as_json)


@click.command()
@click.option("--trials", type=Count(1), default=1000, help="Settings to try.")
@click.option("--gradients", type=Count(2), default=160, help="Gradients of the synthetic job; ResNet-50 has 160.")
@click.option("--ranks", type=Count(2), default=4, help="Ranks of the synthetic job.")
@click.option(
    "--trace",
    "path",
    type=click.Path(path_type=Path),
    help="Search settings for a traced job instead of a synthetic one.",
)
@json_option
def optimizer(trials: int, gradients: int, ranks: int, path: Path | None, as_json: bool) -> None:
    """Measure how many settings a search by Optuna tries per minute on one core, compared with replays of the whole
    job."""
    from emulator.lab.bench.optimizer import measure, synthetic_job

    if path is None:
        joined = synthetic_job(gradients, ranks)
    else:
        from emulator.traces.join import join
        from emulator.traces.readers.read import read
        from emulator.traces.whatif.serial import prepared

        joined = prepared(join(read(path)))
    with progress("searching"):
        result = measure(joined, trials)
    _show(result, as_json)


@click.command()
@option("--size", type=SIZE, default="500MB", help="Size of the trace as JSON.")
@click.option("--gzip/--plain", "compressed", default=False, help="Whether the trace is compressed.")
@click.option("--compare", is_flag=True, help="Also measure json.load.")
@json_option
def trace(size: float, compressed: bool, compare: bool, as_json: bool) -> None:
    """Measure reading a generated trace of PyTorch's profiler: megabytes per second, and the reader's peak memory."""
    from emulator.lab.bench.trace import measure

    require("msgspec")

    with progress("writing a trace, and reading it"):
        result = measure(int(size), compressed=compressed, compare=compare)
    _show(result, as_json)


def _show(result: Any, as_json: bool) -> None:
    output(as_json, result.to_json, lambda: say("\n".join(result.lines())))
