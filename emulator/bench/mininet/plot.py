"""The picture of an experiment: time against its variable, a line a series; with racks, also what crosses trunks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from emulator.bench.mininet.experiments import FLAT, RING, TREE, MininetPlan, Row
from emulator.bench.mininet.report import AXES, title_of
from switchml import plotting

COLOURS = {RING: plotting.GLOO, FLAT: plotting.GREY, TREE: plotting.SWITCHML}


def draw(plan: MininetPlan, rows: Sequence[Row], path: Path) -> None:
    """Write the picture to `path`. Raises ConfigError if it cannot be written."""
    has_trunks = any("trunks up" in row.tally.sent_bytes for row in rows)
    size = plan.size_bytes / 2**20
    title = f"{plan.experiment}: all-reduce of {size:g} MiB over links of {plan.rate_bps / 1e6:g} Mbit/s"
    with plotting.figure(path, title, (10 if has_trunks else 7, 4.4), columns=1 + has_trunks) as (axes, *trunks):
        if plan.experiment in ("allreduce", "two-racks"):
            _draw_bars(axes, rows, [row.tally.median_s * 1e3 for row in rows])
            for place, row in enumerate(rows):
                bound = row.bound_s(plan) * 1e3
                label = "bound of the links" if place == 0 else None
                axes.hlines(bound, place - 0.4, place + 0.4, colors="black", linestyles="--", label=label)
            axes.legend()
        else:
            _draw_lines(axes, plan, rows)
        axes.set(ylabel="time (ms)")
        axes.set_ylim(bottom=0)
        if has_trunks:
            repeats = [len(row.tally.seconds) * row.case.layout.racks for row in rows]
            sent = [row.tally.sent_bytes.get("trunks up", 0) / n / 1e6 for row, n in zip(rows, repeats, strict=True)]
            _draw_bars(trunks[0], rows, sent)
            trunks[0].set(ylabel="MB that a rack sends up", title="one link between switches")


def _draw_lines(axes, plan: MininetPlan, rows: Sequence[Row]) -> None:
    for series in dict.fromkeys(row.case.series for row in rows):
        points = [row for row in rows if row.case.series == series]
        x = [row.case.x * (100 if plan.experiment == "loss" else 1) for row in points]
        low, high = ([extreme(row.tally.seconds) * 1e3 for row in points] for extreme in (min, max))
        colour = COLOURS.get(series, plotting.SWITCHML)
        axes.fill_between(x, low, high, color=colour, alpha=0.15)
        axes.plot(x, [row.tally.median_s * 1e3 for row in points], "o-", color=colour, label=title_of(points[0]))
        bounds = [row.bound_s(plan) * 1e3 for row in points]
        axes.plot(x, bounds, "--", color=colour, alpha=0.7, label=f"{title_of(points[0])}: bound of the links")
    if plan.experiment == "slots":
        axes.set_xscale("log", base=2)
        axes.set_xticks([row.case.x for row in rows], [f"{row.case.x:g}" for row in rows])
    elif plan.experiment == "scaling":
        axes.set_xticks(sorted({row.case.x for row in rows}))
    axes.set(xlabel="loss of each link, each way (%)" if plan.experiment == "loss" else AXES[plan.experiment])
    axes.grid(alpha=0.3)
    axes.legend()


def _draw_bars(axes, rows: Sequence[Row], values: Sequence[float]) -> None:
    colours = [COLOURS.get(row.case.series, plotting.SWITCHML) for row in rows]
    bars = axes.bar([title_of(row) for row in rows], values, color=colours)
    axes.bar_label(bars, [f"{value:.0f}" if value >= 100 else f"{value:.3g}" for value in values])
    axes.margins(y=0.12)
