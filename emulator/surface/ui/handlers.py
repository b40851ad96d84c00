"""Request handlers of the page: an emulated job, a sweep, and the state of an aggregator, as plain data."""

import time
from collections.abc import Mapping
from typing import Any

from emulator.jobs.description import request as job_request
from emulator.jobs.emulate import emulate as run
from emulator.jobs.sweep import sweep as run_sweep
from emulator.surface.api.emulating import Result, Sweep, without_notes
from emulator.surface.api.page import curves, page_of
from emulator.surface.report.page import memory_chart, ranks_shown, stage_rows, timeline
from emulator.surface.report.ranking import ranking_table
from emulator.surface.ui import controls
from switchml.errors import ConfigError
from switchml.pages import charts, panels
from switchml.tables import Table
from switchml.units import memory_text, time_text

SECONDS = 20.0
"""Time limit of a response; a sweep's jobs share it."""
MEMORY_BYTES = 1e9
"""Memory limit of a job's graph and replay."""


def emulate(request: Mapping[str, Any]) -> dict[str, Any]:
    """Handle a request `{"options": …}`: figures, charts, and the command line. Raises SwitchMLError."""
    options = controls.options(_table(request, "options"))
    result = _result(options, SECONDS)
    page = page_of(result.emulation, speedups=False)
    played = result.emulation.played
    ranks = ranks_shown(played)
    rows = stage_rows(played)
    choice = result.emulation.request.choice
    return {
        "title": page.title,
        "choice": choice.lines(result.emulation.plan.job),
        "splits": _plain(ranking_table(choice.ranking)) if choice.ranking else None,
        "tiles": [[name, value] for name, value in page.headline.items()],
        "breakdown": charts.stacked(rows, "s", time_text),
        "memory": memory_chart({"memory": page.memory_bytes}),
        "timeline": timeline(played, ranks),
        "assumptions": list(page.assumptions),
        "command": controls.command(options),
    }


def _result(options: Mapping[str, Any], seconds: float) -> Result:
    job = job_request(controls.tables(options), "the options")
    return Result(run(job, time_budget_s=seconds, memory_budget_bytes=MEMORY_BYTES))


def sweep(request: Mapping[str, Any]) -> dict[str, Any]:
    """Handle a request `{"options": …, "sweep": {name: values}}`: curves, a table, and the command line. Raises
    SwitchMLError."""
    options, texts = controls.options(_table(request, "options")), _table(request, "sweep")
    axes = controls.axes(texts)
    ends_s = time.monotonic() + SECONDS

    def point(chosen: dict[str, Any]) -> dict[str, Any]:
        left_s = ends_s - time.monotonic()
        if left_s <= 0:
            raise ConfigError(f"left out: this page limits a sweep to {SECONDS:g} s; use the command below")
        return without_notes(_result(chosen, left_s).to_json())

    rows = run_sweep(point, axes, base=options, processes=1, show_progress=False)
    found = Sweep([axis.name for axis in axes], rows)
    headings = [*found.axes, "iteration", "samples/s", "MFU", "memory"]
    table = [
        [*(str(row[name]) for name in found.axes), *([row["error"]] if "error" in row else _figures(row))]
        for row in found.rows
    ]
    return {
        "charts": [{"title": one.title, "spec": panels.chart(one)["spec"]} for one in curves(found.rows, found.axes)],
        "table": {"columns": headings, "rows": table},
        "command": controls.command(options, texts),
    }


def _figures(row: Mapping[str, Any]) -> list[str]:
    memory = memory_text(row["memory_bytes"])
    return [time_text(row["iteration_s"]), f"{row['samples_per_s']:,.1f}", f"{row['mfu']:.1%}", memory]


def status(address: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """State of the aggregator at `address`, for a request with `{"secret": …}` (default: the environment's secret): a
    sentence and tables. Raises SwitchMLError if the aggregator does not respond."""
    from switchml.control import client
    from switchml.control.report import as_tables, head

    reply = client.status(address, secret=str(request.get("secret", "")) or None)
    tables = [{"title": str(one.title), "notes": list(one.notes), **_plain(one)} for one in as_tables(reply)]
    return {"head": head(reply), "tables": tables}


def _plain(table: Table) -> dict[str, Any]:
    """A table of the command line as plain text cells."""
    return {
        "columns": [column.title for column in table.columns],
        "rows": [[str(cell) for cell in row] for row in table.rows],
    }


def _table(request: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = request.get(name, {})
    if not isinstance(table, Mapping):
        raise ConfigError(f"{name}: expected an object")
    return table
