"""`switchml trace optimize JOB.toml`: a better way to run a job of `switchml emulate`."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import click


def optimize_job(
    path: Path,
    out: Path,
    allow: tuple[str, ...] | None,
    *,
    trials: int,
    seed: int,
    seconds: float | None,
    memory: float | None,
    as_json: bool,
    progress: AbstractContextManager[Callable[[int, float], None]],
) -> bool:
    """Search, print, write `out`; whether Ctrl-C ended it."""
    from emulator import datafile
    from emulator.jobs.emulate import request
    from emulator.optimizer import jobs
    from emulator.optimizer.file import write_toml

    tables = datafile.load(path)
    requested = request(tables, str(path))
    with progress as show:
        result = jobs.search(
            requested,
            allow or jobs.ONES,
            trials=trials,
            seed=seed,
            memory_bytes=memory or 0.0,
            time_budget_s=seconds or float("inf"),
            progress=show,
        )
    assert result.best is not None
    write_toml(out, jobs.tables(tables, requested, result.best.change), "`switchml emulate` takes it.")
    if as_json:
        click.echo(json.dumps(_as_json(result)))
    else:
        _print(result, out)
    return result.interrupted


def _as_json(result) -> dict[str, Any]:
    return {
        "asked_s": result.requested.emulation.iteration_s if result.requested else None,
        "iteration_s": result.best.emulation.iteration_s,
        "gain": result.gain if result.requested else None,
        "change": result.best.change,
        "memory_bytes": result.best.emulation.memory.total,
        "alone": {name: {"change": one.change, "sample_s": one.sample_s} for name, one in result.alone.items()},
        "how": result.how,
        "evaluated": result.evaluated,
        "refused": result.refused,
        "wall_s": result.wall_s,
        "settings_per_minute": result.evaluated / result.wall_s * 60,
        "interrupted": result.interrupted,
        "assumptions": result.best.emulation.assumptions(),
    }


def _print(result, out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from emulator.report.tables import bytes_text, time_text

    console = Console()
    table = Table(title="What each change gains alone, in time for a sample", title_justify="left")
    table.add_column("change")
    table.add_column("best")
    table.add_column("gain", justify="right")
    for name, one in sorted(result.alone.items(), key=lambda item: item[1].sample_s):
        gain = f"{max(0.0, 1 - one.sample_s / result.requested.sample_s):.1%}" if result.requested else "–"
        table.add_row(name, _words(one.change), gain)
    console.print(table)
    rate = result.evaluated / result.wall_s * 60
    console.print(
        f"{result.evaluated:,} jobs in {result.wall_s:.1f} s ({rate:,.0f} a minute), "
        f"{result.refused:,} of them refused; {result.how}"
    )
    before = time_text(result.requested.emulation.iteration_s) if result.requested else "the job does not run as it is"
    console.print(
        f"an iteration: {before}; [bold]{time_text(result.best.emulation.iteration_s)}[/] with "
        f"{_words(result.best.change) or 'nothing changed'}, {bytes_text(result.best.emulation.memory.total)} of memory"
        + (f": [bold]{result.gain:.1%}[/] less" if result.requested else "")
    )
    console.print(f"job in {out}")


def _words(change: dict[str, Any]) -> str:
    return ", ".join(f"{key.replace('_', '-')} {value if value != '' else 'none'}" for key, value in change.items())
