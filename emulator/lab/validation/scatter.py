"""Scatter plot of predicted against measured: one point per row on logarithmic axes, the diagonal, and bands of 5 and
20 percent."""

from collections.abc import Sequence
from pathlib import Path

from emulator.lab.validation.rows import Row, mape
from switchml import plotting
from switchml.pages.panels import Point, Points


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
