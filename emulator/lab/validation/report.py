"""Output of validations: tables of rows and averages, a JSON object, a plot."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from emulator.lab.validation.rows import Row, mape, summary
from switchml import plotting, tables
from switchml.pages.panels import Point, Points
from switchml.tables import Table, number, text

SHOWN = 12
"""Number of rows printed of a long table."""
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
    """Print `result` as JSON, or tables, and plot if there is a plot file. `shown`: rows of the table, by default those
    with the largest errors; `drawn`: groups in the plot, by default `groups`."""
    if plot_file is not None:
        draw(drawn or groups, plot_file, f"{what}: predicted against measured")
    if as_json:
        print(json.dumps(result))
    else:
        _print_tables(what, rows, groups, shown)


def _print_tables(what: str, rows: Sequence[Row], groups: Groups, shown: Sequence[Row] | None) -> None:
    listed = list(shown or sorted(rows, key=lambda row: -abs(row.error))[:SHOWN])
    longest = f", the {len(listed)} with the largest errors" if shown is None and len(rows) > len(listed) else ""
    units = {_scale(row)[1] for row in listed}
    unit = units.pop() if len(units) == 1 else ""
    columns = [text("row"), number("measured", unit), number("predicted", unit)]
    table = Table(
        [*columns, *([] if unit else [text("unit")]), number("error", "%")], title=f"{what}: {len(rows)} rows{longest}"
    )
    for row in listed:
        factor, its = _scale(row)
        figures = (f"{value * factor:,.2f}" for value in (row.measured, row.predicted))
        table.add(row.name, *figures, *([] if unit else [its]), f"{100 * row.error:+.1f}")
    tables.show(table, averages([*groups, ("all" if shown is None else "all times", rows)]))


def averages(groups: Groups) -> Table:
    """Table of the errors of each group."""
    table = Table(
        [
            text("rows"),
            number("count"),
            number("MAPE", "%"),
            number("bias", "%", drop=1),
            number("worst", "%"),
            number("within 5 %", "%", drop=2),
        ],
        title="Mean absolute percentage error, mean error (bias), largest",
    )
    for name, part in groups:
        one = summary(part)
        bias = sum(row.error for row in part) / len(part)
        shares = [f"{100 * share:+.1f}" for share in (bias, one["worst"]["error"])]
        table.add(name, str(len(part)), f"{100 * one['mape']:.1f}", *shares, f"{100 * one['within_5_percent']:.0f}")
    return table


def _scale(row: Row) -> tuple[float, str]:
    """A factor for both values of a row, and the resulting unit."""
    if row.unit != "s":
        return 1.0, row.unit
    return next((scale for scale in ((1.0, "s"), (1e3, "ms")) if row.measured * scale[0] >= 1.0), (1e6, "µs"))


def draw(groups: Sequence[tuple[str, Sequence[Row]]], path: Path, title: str) -> None:
    """Write the plot to `path`: one panel for each unit among the rows, one color for each group. Raises ConfigError as
    `plotting.check` does."""
    groups = [(f"MAPE {mape(rows):.1%}: {name}", rows) for name, rows in groups if rows]
    units = list(dict.fromkeys(rows[0].unit for _, rows in groups))
    panels = []
    for unit in units:
        points = [
            Point(name, row.measured, row.predicted, row.name)
            for name, rows in groups
            if rows[0].unit == unit
            for row in rows
        ]
        panels.append(
            Points(
                f"Predicted and measured ({unit})", f"measured, {unit}", f"predicted, {unit}", points, bands=(0.2, 0.05)
            )
        )
    plotting.draw(path, f"{title[0].upper()}{title[1:]} (bands: 5 and 20 %)", panels)
