"""Draws predicted against measured: one point a row on logarithmic axes, the diagonal, and bands of 5 and 20
percent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from emulator.validation.rows import Row, mape
from switchml import plotting


def draw(groups: Sequence[tuple[str, Sequence[Row]]], path: Path, title: str) -> None:
    """Write `path`: one panel for each unit among the rows, one colour for each group. Raises ConfigError as
    `plotting.check` does."""
    groups = [(name, rows) for name, rows in groups if rows]
    units = list(dict.fromkeys(rows[0].unit for _, rows in groups))
    size = 6.4 * len(units), 6.0
    with plotting.figure(path, f"{title} (bands: 5 and 20 %)", size, columns=len(units)) as panels:
        for axes, unit in zip(panels, units, strict=True):
            _draw_panel(axes, unit, [(name, rows) for name, rows in groups if rows[0].unit == unit])


def _draw_panel(axes, unit: str, groups: Sequence[tuple[str, Sequence[Row]]]) -> None:
    points = [value for _, rows in groups for row in rows for value in (row.measured, row.predicted)]
    ends = [min(points) / 1.3, max(points) * 1.3]
    for band, alpha in ((0.2, 0.06), (0.05, 0.14)):
        low, high = ([end * (1 + share) for end in ends] for share in (-band, band))
        axes.fill_between(ends, low, high, color="black", alpha=alpha, linewidth=0)
    axes.plot(ends, ends, color="black", linewidth=0.8)
    for name, rows in groups:
        label = f"{name}: MAPE {mape(rows):.1%}"
        measured, predicted = [row.measured for row in rows], [row.predicted for row in rows]
        axes.scatter(measured, predicted, s=22 if len(rows) < 100 else 6, alpha=0.75, linewidths=0, label=label)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    axes.set(xlabel=f"measured, {unit}", ylabel=f"predicted, {unit}")
    axes.grid(True, which="both", linewidth=0.3, alpha=0.5)
    axes.legend(fontsize=7, loc="upper left", framealpha=0.9)
