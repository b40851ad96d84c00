"""What validations show: rows and averages for people, one JSON object for programs, a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from emulator.bench import tables
from emulator.validation import scatter
from emulator.validation.rows import Row, summary

SHOWN = 12
"""Rows printed of a long table."""
Groups = Sequence[tuple[str, Sequence[Row]]]


def show(
    what: str,
    rows: Sequence[Row],
    groups: Groups,
    result: dict[str, Any],
    plot_file: Path | None,
    as_json: bool,
    shown: Sequence[Row] | None = None,
    drawn: Groups | None = None,
) -> None:
    """Print `result` as JSON, or tables, and draw if there is a file to draw to. `shown`: rows of the table, default
    those with the largest errors; `drawn`: groups in the picture, default `groups`."""
    if plot_file is not None:
        scatter.draw(drawn or groups, plot_file, f"{what}: predicted against measured")
    if as_json:
        print(json.dumps(result))
    else:
        _print_tables(what, rows, groups, shown)


def _print_tables(what: str, rows: Sequence[Row], groups: Groups, shown: Sequence[Row] | None) -> None:
    listed = list(shown or sorted(rows, key=lambda row: -abs(row.error))[:SHOWN])
    longest = f", the {len(listed)} with the largest errors" if shown is None and len(rows) > len(listed) else ""
    units = {row.unit for row in listed}
    common = next(iter(units)) if len(units) == 1 and "s" not in units else ""
    tables.print_table(
        ("row", "measured", "predicted", "error"),
        [
            (
                row.name,
                *(_amount(value, row.unit, common) for value in (row.measured, row.predicted)),
                f"{row.error:+.1%}",
            )
            for row in listed
        ],
        before=f"{what}{f', {common}' if common else ''}: {len(rows)} rows{longest}",
        wraps=True,
    )
    averages = []
    for name, part in [*groups, ("all" if shown is None else "all times", rows)]:
        one = summary(part)
        bias = sum(row.error for row in part) / len(part)
        shares = (
            f"{one['mape']:.1%}",
            f"{bias:+.1%}",
            f"{one['worst']['error']:+.1%}",
            f"{one['within_5_percent']:.0%}",
        )
        averages.append((name, str(len(part)), *shares))
    headings = ("rows", "count", "MAPE", "bias", "worst", "within 5 %")
    tables.print_table(headings, averages, before="\nmean absolute percentage error", wraps=True)


def _amount(value: float, unit: str, common: str = "") -> str:
    """With its unit, unless that is all rows' `common` one."""
    if unit != "s":
        return f"{value:,.{0 if value >= 1000 else 2}f}" + (f" {unit}" if unit != common else "")
    for factor, name in ((1.0, "s"), (1e3, "ms")):
        if value * factor >= 1.0:
            return f"{value * factor:,.2f} {name}"
    return f"{value * 1e6:,.1f} µs"
