"""`switchml emulate JOB1.toml JOB2.toml`: several jobs on one cluster."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from switchml import tables
from switchml.errors import ConfigError
from switchml.terminal import progress, say

if TYPE_CHECKING:
    from emulator.jobs.replay.engine import Replayed


def job_tables(files: tuple[str, ...], is_trusted: bool) -> dict[str, dict[str, Any]]:
    """Name → tables of each job in these files: a file is one job, with the file's name, or has several `[[jobs]]`,
    which inherit the keys outside of them."""
    from emulator import datafile
    from emulator.jobs.description import read_tables

    tables: dict[str, dict[str, Any]] = {}
    for file in files:
        table = read_tables(Path(file), is_trusted)
        inner = table.pop("jobs", [{}])
        if not isinstance(inner, list) or not inner or not all(isinstance(own, dict) for own in inner):
            raise ConfigError(f"{file}: jobs: expected tables, each under [[jobs]]")
        for number, own in enumerate(inner):
            name = str(own.pop("name", Path(file).stem if len(inner) == 1 else f"{Path(file).stem} {number}"))
            if name in tables:
                name = next(other for n in range(2, 1000) if (other := f"{name} {n}") not in tables)
            tables[name] = copy.deepcopy(datafile.merge(table, own))
    return tables


def show_together(
    tables: dict[str, dict[str, Any]],
    share: str | None,
    placement: str | None,
    timeline_file: Path | None,
    time_budget_s: float,
    as_json: bool,
) -> None:
    """Emulate jobs together, and print the results of each, shared and alone."""
    from emulator.jobs.description import request
    from emulator.jobs.tenants import together

    with progress("replaying") as task:
        tenancy = together(
            [request(table, name) for name, table in tables.items()],
            list(tables),
            share=share or "all",
            placement=placement or "spread",
            progress=task.ops,
            time_budget_s=time_budget_s,
        )
    if timeline_file is not None:
        from emulator.jobs.replay.perfetto import write_timeline

        write_timeline(tenancy.played, timeline_file)
    if as_json:
        click.echo(json.dumps(tenancy.to_json()))
        return
    show(tenancy)


def show(tenancy: Any) -> None:
    """Print the results of each job."""
    table = tables.Table(
        [
            tables.text("job"),
            tables.number("accelerators", drop=2),
            tables.number("iteration", "ms"),
            tables.number("alone", "ms"),
            tables.number("slowdown"),
            tables.number("throughput", "samples/s", drop=1),
        ],
        title="Together on one cluster",
    )
    for tenant in tenancy.tenants:
        job = tenant.alone.plan.job
        times = (f"{tenant.iteration_s * 1e3:,.1f}", f"{tenant.alone_s * 1e3:,.1f}", f"{tenant.slowdown:.2f}")
        table.add(tenant.name, f"{job.gpus}", *times, f"{job.global_batch / tenant.iteration_s:,.1f}")
    tables.show(table)
    show_assumptions(tenancy.played, tenancy.played.wall_s, tenancy.assumptions)


def show_assumptions(played: Replayed, wall_s: float, assumptions: Iterable[str]) -> None:
    """Print the number of replayed ops, and the assumptions."""
    say(f"\n{len(played.graph.ops):,} ops replayed in {wall_s:.2f} s. Assumed:")
    for line in assumptions:
        say(f"- {line}")
