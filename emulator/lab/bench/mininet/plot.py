"""Plot of an experiment: time against its variable, a line for each series; with racks, also bytes sent over trunks."""

from collections.abc import Sequence
from pathlib import Path

from emulator.lab.bench.mininet.experiments import MininetPlan, Row
from emulator.lab.bench.mininet.report import AXES, title_of
from switchml import plotting
from switchml.pages.charts import Line
from switchml.pages.panels import Bar, Bars, Curves, Panel


def draw(plan: MininetPlan, rows: Sequence[Row], path: Path) -> None:
    """Write the plot to `path`. Raises ConfigError if it cannot be written."""
    size = plan.size_bytes / 2**20
    title = f"{plan.experiment.capitalize()}: all-reduce of {size:g} MiB over links of {plan.rate_bps / 1e6:g} Mbit/s"
    panels: list[Panel]
    if plan.experiment in ("allreduce", "two-racks"):
        bars = [Bar(title_of(row), title_of(row), row.tally.median_s * 1e3, row.bound_s(plan) * 1e3) for row in rows]
        panels = [Bars("Time", "time (ms)", bars, "bound of the links")]
    else:
        axis = "loss of each link, each way (%)" if plan.experiment == "loss" else AXES[plan.experiment]
        panels = [Curves("Time", axis, "time (ms)", _lines(plan, rows), x_log=2 if plan.experiment == "slots" else 0)]
    if any("trunks up" in row.tally.surveyed["sent_bytes"] for row in rows):
        repeats = [len(row.tally.seconds) * row.case.layout.racks for row in rows]
        sent_bytes = [row.tally.surveyed["sent_bytes"].get("trunks up", 0) for row in rows]
        sent = [size / n / 1e6 for size, n in zip(sent_bytes, repeats, strict=True)]
        names = [title_of(row) for row in rows]
        bars = [Bar(name, name, size) for name, size in zip(names, sent, strict=True)]
        panels.append(Bars("One link between switches", "MB that a rack sends up", bars))
    plotting.draw(path, title, panels)


def _lines(plan: MininetPlan, rows: Sequence[Row]) -> list[Line]:
    """Measured times and link bounds, as lines for each series."""
    lines = []
    for series in dict.fromkeys(row.case.series for row in rows):
        points = [row for row in rows if row.case.series == series]
        x = [row.case.x * (100 if plan.experiment == "loss" else 1) for row in points]
        low, high = ([extreme(row.tally.seconds) * 1e3 for row in points] for extreme in (min, max))
        name = title_of(points[0])
        lines.append(Line(name, x, [row.tally.median_s * 1e3 for row in points], low, high))
        bounds = [row.bound_s(plan) * 1e3 for row in points]
        lines.append(Line(f"{name}: bound of the links", x, bounds, is_dashed=True, like=name))
    return lines
