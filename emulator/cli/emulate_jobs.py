"""`switchml emulate JOB1.toml JOB2.toml`: several jobs on one cluster."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import click

from switchml.errors import ConfigError


def job_tables(files: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Name → tables of each job in these files: a file is a job, called like it, or has several `[[jobs]]`, which take
    over what stands outside of them."""
    from emulator import datafile
    from emulator.jobs.emulate import Request

    tables: dict[str, dict[str, Any]] = {}
    for file in files:
        table = datafile.renamed(Request, datafile.load(Path(file)), file)
        inner = table.pop("jobs", [{}])
        if not isinstance(inner, list) or not inner:
            raise ConfigError(f"{file}: jobs: expected tables, each under [[jobs]]")
        for number, own in enumerate(inner):
            name = str(own.pop("name", Path(file).stem if len(inner) == 1 else f"{Path(file).stem} {number}"))
            if name in tables:
                name = next(other for n in range(2, 1000) if (other := f"{name} {n}") not in tables)
            tables[name] = copy.deepcopy(datafile.merge(table, datafile.renamed(Request, own, file)))
    return tables


def show_together(
    tables: dict[str, dict[str, Any]],
    share: str | None,
    placement: str | None,
    timeline_file: Path | None,
    time_budget_s: float,
    progress: Any,
    as_json: bool,
) -> None:
    """Emulate them, and print what each takes in company beside what it takes alone."""
    from emulator.jobs.emulate import request
    from emulator.jobs.tenants import together

    tenancy = together(
        [request(table, name) for name, table in tables.items()],
        list(tables),
        share=share or "all",
        placement=placement or "spread",
        progress=progress,
        time_budget_s=time_budget_s,
    )
    if timeline_file is not None:
        from emulator.report.perfetto import write_timeline

        write_timeline(tenancy.played, timeline_file)
    if as_json:
        click.echo(json.dumps(tenancy.to_json()))
        return
    from rich.console import Console
    from rich.table import Table

    from emulator.report.tables import time_text

    console = Console()
    table = Table("job", "accelerators", "iteration", "alone", "slowdown", "samples/s", title="Together on one cluster")
    for column in table.columns[1:]:
        column.justify = "right"
    for tenant in tenancy.tenants:
        job = tenant.alone.plan.job
        cells = (f"{job.gpus}", time_text(tenant.iteration_s), time_text(tenant.alone_s))
        table.add_row(tenant.name, *cells, f"{tenant.slowdown:.2f}x", f"{job.global_batch / tenant.iteration_s:,.1f}")
    console.print(table)
    console.print(f"{len(tenancy.played.graph.ops):,} ops replayed in {tenancy.played.wall_s:.2f} s. Assumed:")
    for line in tenancy.assumptions:
        console.print(f"  - {line}", highlight=False, markup=False)
