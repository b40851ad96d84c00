"""Draws predicted against measured: one point a row on logarithmic axes, the diagonal, and bands of 5 and 20
percent."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from emulator.validation.rows import Row, mape
from switchml.errors import ConfigError

ENDINGS = (".png", ".svg", ".html")


def draw(groups: Sequence[tuple[str, Sequence[Row]]], path: Path, title: str) -> None:
    """Write `path`; one panel for each unit among the rows, one colour a group. Raises ConfigError for an ending that
    is none of ENDINGS and where matplotlib is missing."""
    if path.suffix not in ENDINGS:
        raise ConfigError(f"{path}: expected a name that ends in {', '.join(ENDINGS)}")
    if not path.resolve().parent.is_dir():
        raise ConfigError(f"{path}: there is no such folder")
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        raise ConfigError("drawing needs matplotlib; install it with: pip install 'switchml[plot]'") from None
    groups = [(name, rows) for name, rows in groups if rows]
    units = list(dict.fromkeys(rows[0].unit for _, rows in groups))
    figure, axes = plt.subplots(1, len(units), figsize=(6.4 * len(units), 6.0), squeeze=False, layout="constrained")
    for axis, unit in zip(axes[0], units, strict=True):
        shown = [(name, rows) for name, rows in groups if rows[0].unit == unit]
        points = [value for _, rows in shown for row in rows for value in (row.measured, row.predicted)]
        low, high = min(points) / 1.3, max(points) * 1.3
        for band, shade in ((0.2, 0.06), (0.05, 0.14)):
            axis.fill_between([low, high], [low * (1 - band), high * (1 - band)], [low * (1 + band), high * (1 + band)],
                              color="black", alpha=shade, linewidth=0)  # fmt: skip
        axis.plot([low, high], [low, high], color="black", linewidth=0.8)
        for name, rows in shown:
            size = 22 if len(rows) < 100 else 6
            axis.scatter([row.measured for row in rows], [row.predicted for row in rows], s=size, alpha=0.75,
                         linewidths=0, label=f"{name}: MAPE {mape(rows):.1%}")  # fmt: skip
        axis.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), xlabel=f"measured, {unit}",
                 ylabel=f"predicted, {unit}", aspect="equal")  # fmt: skip
        axis.grid(True, which="both", linewidth=0.3, alpha=0.5)
        axis.legend(fontsize=7, loc="upper left", framealpha=0.9)
    figure.suptitle(f"{title} (bands: 5 and 20 %)")
    if path.suffix == ".html":
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg")
        svg = drawn.getvalue()
        page = f"<!doctype html><meta charset='utf-8'><title>{title}</title>{svg[svg.index('<svg') :]}"
        path.write_text(page)
    else:
        figure.savefig(path, dpi=130)
    plt.close(figure)
