"""Train the digits with every codec, at the settings of docs/codecs.md, and compare accuracy and bytes sent.

    python scripts/experiments/codecs.py [CODEC …] [--model resnet20] [--ranks 4] [--steps 300] [--json]

Exits with 1 if a codec ends more than a point (--allow) below training without compression.
"""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import replace

import click

from host_agent.compression.adaptive.policy import is_auto
from host_agent.pytorch.aggregator import ChildAggregator
from host_agent.training import runner
from host_agent.training.model import MODELS
from host_agent.training.worker import TrainingSettings
from switchml import codecs, tables
from switchml.cli.options import option

DEFAULT = (0.05, 0.9)
"""Learning rate and momentum of training without compression."""
SETTINGS: dict[str, tuple[str, float, float]] = {
    "randomk": ("randomk:ratio=0.1", 0.2, 0.0),
    "dgc": ("dgc", 0.05, 0.0),
    "onebit": ("onebit", 0.02, 0.9),
    "signsgd": ("signsgd", 0.002, 0.0),
    "signum": ("signum", 0.0003, 0.0),
    "efsignsgd": ("efsignsgd", 0.02, 0.9),
}
"""Codec → its specification, and the optimizer's learning rate and momentum, for codecs that need other values than the
defaults. Codecs that send only signs move every parameter by the learning rate in each step; DGC's memory and Signum
have their own momentum; a plain residual can compensate for sending a random tenth."""


def settings_of(name: str, base: TrainingSettings) -> TrainingSettings:
    """`base` with the codec `name` at its documented settings."""
    text, learning_rate, momentum = SETTINGS.get(name, (name, *DEFAULT))
    wire = "int16" if is_auto(text) or codecs.parse(text).is_half else "int32"
    return replace(base, codec=text, learning_rate=learning_rate, momentum=momentum, wire=wire)


def run(settings: TrainingSettings, aggregator: ChildAggregator) -> dict:
    """Train once through the aggregator. Returns accuracy, bytes of all ranks, total seconds and median seconds of a
    step."""
    comparison = runner.compare_with(aggregator, settings=settings, on_step=lambda step: None)
    outcome = comparison.outcomes["switchml"]
    sent, dense = (sum(each[key] for each in outcome.codecs) for key in ("bytes_sent", "bytes_dense"))
    return {
        "codec": settings.codec,
        "memory": "residual" if is_auto(settings.codec) else codecs.parse(settings.codec).error_feedback,
        "learning_rate": settings.learning_rate,
        "momentum": settings.momentum,
        "accuracy": outcome.accuracy,
        "final_loss": outcome.losses[-1],
        "bytes_sent": sent,
        "share_of_dense": sent / dense,
        "seconds": outcome.seconds,
        "median_step_s": outcome.median_step_s,
    }


@click.command()
@click.argument("names", nargs=-1, metavar="[CODEC …]")
@click.option(
    "--model", type=click.Choice(list(MODELS)), default="cnn", show_default=True, help="The network that is trained."
)
@option("--ranks", "workers", default=4, show_default=True)
@click.option("--steps", default=300, show_default=True)
@click.option("--batch", default=32, show_default=True, help="Images of a rank in a step.")
@click.option("--seed", default=1, show_default=True)
@click.option("--allow", "points", default=1.0, show_default=True, help="Points of accuracy that codecs may lose.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the table.")
def main(
    names: tuple[str, ...],
    model: str,
    workers: int,
    steps: int,
    batch: int,
    seed: int,
    points: float,
    as_json: bool,
) -> None:
    """Train a digits model with every codec (or those named), and compare with no compression."""
    known = (*codecs.CODECS, "auto")
    for name in names:
        if name not in known:
            raise click.UsageError(f"unknown codec {name!r}: expected some of {', '.join(known)}")
    base = TrainingSettings(
        workers=workers,
        steps=steps,
        batch_size=batch,
        learning_rate=DEFAULT[0],
        seed=seed,
        model=model,
        backends=("switchml",),
    )
    rows = []
    with contextlib.ExitStack() as running:
        aggregator = ChildAggregator()
        running.callback(aggregator.stop)
        for name in dict.fromkeys(("none", *(names or known))):
            print(f"training with {name}", file=sys.stderr)
            rows.append(run(settings_of(name, base), aggregator))
    least = rows[0]["accuracy"] - points / 100
    failed = [row["codec"] for row in rows if row["accuracy"] < least]
    if as_json:
        print(json.dumps({"model": model, "workers": workers, "steps": steps, "rows": rows, "failed": failed}))
    else:
        show(rows, least, f"{workers} workers, {steps} steps")
    if failed:
        sys.exit(f"more than {points:g} points below training without compression: {', '.join(failed)}")


def show(rows: list[dict], least: float, title: str) -> None:
    """Print the table to stdout."""
    columns = [tables.text("codec"), tables.text("memory", drop=2), tables.number("rate", drop=1)]
    columns += [tables.number("momentum", drop=1), tables.number("accuracy"), tables.number("final loss", drop=1)]
    columns += [tables.number("sent", "MB"), tables.number("of dense"), tables.number("time", "s", drop=1)]
    cells = [
        (
            row["codec"],
            row["memory"],
            f"{row['learning_rate']:g}",
            f"{row['momentum']:g}",
            f"{row['accuracy']:.2%}" + ("" if row["accuracy"] >= least else " !"),
            f"{row['final_loss']:.4f}",
            f"{row['bytes_sent'] / 1e6:.2f}",
            f"{row['share_of_dense']:.1%}",
            f"{row['seconds']:.1f}",
        )
        for row in rows
    ]
    tables.show(tables.Table(columns, cells, title))


if __name__ == "__main__":
    main()
