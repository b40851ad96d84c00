"""`switchml validate iterations|nccl|megatron`: the emulator's predictions beside published measurements."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

SHOWN = 12
"""Rows printed of a long table: those that are off most."""

_plot = click.option(
    "--plot",
    "plot_file",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Draw predicted against measured (.png, .svg or .html; needs matplotlib).",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.command()
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE.csv…"
)
@click.option("--cluster", "cluster_name", default="a100-hdr800", show_default=True, help="Where they were measured.")
@click.option(
    "--recompute",
    type=click.Choice(["auto", "none", "selective", "full"]),
    default="auto",
    show_default=True,
    help="What the jobs recompute; auto: everything on more than one node, else nothing.",
)
@click.option(
    "--refit", is_flag=True, help="Also fit the constants to all model sizes but one, for each in turn (slow; scipy)."
)
@_plot
@_json
def iterations(
    files: tuple[Path, ...], cluster_name: str, recompute: str, refit: bool, plot_file: Path | None, as_json: bool
) -> None:
    """Predict the iteration times in FILE.csv.

    Columns as VIA-Research/vTrain publishes them: accelerators, batch, micro-batch, sizes, tensor, data and pipeline
    parallelism, milliseconds. Jobs on more than one node of 8 recompute all activations, smaller ones none.
    """
    from emulator.cluster import cluster
    from emulator.validation import fitting
    from emulator.validation.iterations import read

    machine = cluster.load(cluster_name)
    samples = [sample for file in files for sample in read(file, recompute)]
    rows = fitting.predict(machine, samples)
    groups = [(f"{gpus} GPUs", [row for row, (_, job, _) in zip(rows, samples, strict=True) if job.gpus == gpus])
              for gpus in sorted({job.gpus for _, job, _ in samples})]  # fmt: skip
    found = _summary(rows) | {"constants": fitting.values(machine)}
    if refit:
        splits = fitting.split_by_size(machine, samples, _say if not as_json else None)
        found["left_out"] = {
            name: {key: value for key, value in _summary(part).items() if key != "rows"} for name, part in splits
        }
        groups += [(f"{name}, constants fitted without it", part) for name, part in splits]
    drawn = groups[: len({job.gpus for _, job, _ in samples})]
    _finish(rows, found, groups, plot_file, as_json, "iterations", drawn=drawn)


@click.command()
@click.argument("folder", type=click.Path(exists=True, path_type=Path), metavar="DIR")
@click.option(
    "--cluster", "cluster_name", help="Predict by this cluster's closed form, with nothing fitted to the tables."
)
@_plot
@_json
def nccl(folder: Path, cluster_name: str | None, plot_file: Path | None, as_json: bool) -> None:
    """Predict the all-reduce tables of nccl-tests in DIR.

    Of each table every other size fits a curve of three segments (latency and bandwidth for each protocol), and the
    sizes between are predicted.
    """
    from emulator.cluster import cluster, tables
    from emulator.validation import nccl as check

    read = tables.read_all(folder)
    if cluster_name is None:
        parts = [(table.name, check.held_out(table)) for table in read]
    else:
        parts = [(table.name, check.by_formula(table, cluster.load(cluster_name))) for table in read]
    rows = [row for _, part in parts for row in part]
    small, large = check.split(rows)
    groups = [*parts, ("below 16 MB", small), ("16 MB and more", large)]
    found = _summary(rows)
    found["below_16_mb"], found["from_16_mb"] = (_summary(part)["mape"] if part else None for part in (small, large))
    found["tables"] = {name: _summary(part)["mape"] for name, part in parts}
    _finish(rows, found, [group for group in groups if group[1]], plot_file, as_json, "all-reduces", drawn=parts)


@click.command()
@click.option("--cluster", "cluster_name", default="a100-dgx", show_default=True, help="Where they were measured.")
@_plot
@_json
def megatron(cluster_name: str, plot_file: Path | None, as_json: bool) -> None:
    """Predict Megatron-LM's published tables.

    Times and memory of Korthikanti et al. (MLSys 2023), throughput of Narayanan et al. (SC 2021). The summary is of
    the former's table 5; memory and throughput stand beside it.
    """
    from emulator.cluster import cluster
    from emulator.validation import megatron as check

    machine = cluster.load(cluster_name)
    rows = check.times(machine)
    others = [("memory", check.memories()), ("throughput (Narayanan)", check.scaling(machine))]
    seen = [row for row in rows if row.name.endswith("full")]
    unseen = [row for row in rows if not row.name.endswith("full")]
    groups = [
        ("times, constants fitted to them among others", seen),
        ("times, nothing fitted to them", unseen),
        *others,
    ]
    found = _summary(rows) | {"memory": _summary(others[0][1]), "throughput": _summary(others[1][1])}
    _finish(rows, found, groups, plot_file, as_json, "Megatron", show=[*rows, *others[0][1], *others[1][1]])


def _summary(rows: Sequence[Any]) -> dict[str, Any]:
    from emulator.validation.rows import summary

    return summary(rows)


def _finish(
    rows: Sequence[Any],
    found: dict[str, Any],
    groups: Sequence[tuple[str, Sequence[Any]]],
    plot_file: Path | None,
    as_json: bool,
    what: str,
    show: Sequence[Any] | None = None,
    drawn: Sequence[tuple[str, Sequence[Any]]] | None = None,
) -> None:
    """Print, and draw where asked. `show`: rows of the table, default those that are off most; `drawn`: groups in the
    picture, default those of the summary."""
    if plot_file is not None:
        from emulator.validation.scatter import draw

        draw(drawn or groups, plot_file, f"{what}: predicted against measured")
    if as_json:
        click.echo(json.dumps(found))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    shown = list(show or sorted(rows, key=lambda row: -abs(row.error))[:SHOWN])
    table = Table(
        title=f"{what}: {len(rows)} rows"
        + (f", the {len(shown)} that are off most" if show is None and len(rows) > len(shown) else "")
    )
    for name, justify in (("row", "left"), ("measured", "right"), ("predicted", "right"), ("error", "right")):
        table.add_column(name, justify=justify)
    for row in shown:
        table.add_row(row.name, _amount(row.measured, row.unit), _amount(row.predicted, row.unit), f"{row.error:+.1%}")
    console.print(table)
    summary = Table(title="mean absolute percentage error")
    for name, justify in (
        ("rows", "left"),
        ("count", "right"),
        ("MAPE", "right"),
        ("bias", "right"),
        ("worst", "right"),
        ("within 5 %", "right"),
    ):
        summary.add_column(name, justify=justify)
    for name, part in [*groups, ("all" if show is None else "all times", rows)]:
        one = _summary(part)
        bias = sum(row.error for row in part) / len(part)
        summary.add_row(
            name,
            str(len(part)),
            f"{one['mape']:.1%}",
            f"{bias:+.1%}",
            f"{one['worst']['error']:+.1%}",
            f"{one['within_5_percent']:.0%}",
        )
    console.print(summary)


def _amount(value: float, unit: str) -> str:
    if unit != "s":
        return f"{value:,.2f} {unit}"
    for factor, name in ((1.0, "s"), (1e3, "ms")):
        if value * factor >= 1.0:
            return f"{value * factor:,.2f} {name}"
    return f"{value * 1e6:,.1f} µs"


def _say(text: str) -> None:
    click.echo(f"\r{text}\033[K", nl=False, err=True)
