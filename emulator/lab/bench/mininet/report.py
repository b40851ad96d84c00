"""The result of `switchml mininet` as a table and as a JSON object."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from emulator.lab.bench.mininet.experiments import MininetPlan, Row
from emulator.lab.bench.mininet.machine import FLAT, RING, TREE
from switchml import plotting
from switchml.pages.charts import Line
from switchml.pages.panels import Bar, Bars, Curves, Panel
from switchml.tables import Column, number, text

TITLES = {RING: "Gloo's ring", TREE: "racks aggregate", FLAT: "only s1 aggregates"}
AXES = {"scaling": "hosts", "loss": "loss", "slots": "slots", "two-racks": "racks", "allreduce": "hosts"}


def title_of(row: Row) -> str:
    return TITLES.get(row.case.series, row.case.series)


def as_json(plan: MininetPlan, rows: Sequence[Row]) -> dict[str, Any]:
    """JSON object of plain values; times in seconds, rates in bits/s."""
    names = ("experiment", "aggregator", "hosts", "rate_bps", "delay_s", "size_bytes", "payload_bytes", "wire")
    return {name: getattr(plan, name) for name in names} | {
        "loss": plan.loss or 0.0,
        "rows": [
            {
                "series": row.case.series,
                AXES[plan.experiment]: row.case.x,
                "workers": row.case.workers,
                "racks": row.case.layout.racks,
                "slots": row.case.slots or None,
                "seconds": row.tally.median_s,
                "all_seconds": row.tally.seconds,
                "goodput_bps": row.goodput_bps,
                "bound_s": row.bound_s(plan),
                "error": row.tally.error,
                "checksum": f"{row.tally.checksum:016x}",
                **row.tally.packets_as_json(),
                **{name: row.tally.surveyed[name] for name in ("sent_bytes", "dropped", "lost")},
                "cpu_seconds": row.tally.cpu_seconds,
            }
            for row in rows
        ],
    }


def columns(plan: MininetPlan, has_trunks: bool) -> list[Column]:
    """Columns of the table, in the order of `cells`."""
    return [
        text("sum by", least=17 if plan.experiment == "two-racks" else 11),
        number(AXES[plan.experiment], "%" if plan.experiment == "loss" else "", least=5),
        number("time", "ms", least=7),
        number("bound", "ms", drop=1, least=7),
        number("least", "ms", drop=3, least=7),
        number("most", "ms", drop=3, least=7),
        number("goodput", "Mbit/s", least=6),
        number("host sends", "MB", drop=1, least=6),
        *([number("rack sends", "MB", least=6)] if has_trunks else []),
        number("resent", drop=2, least=7),
        number("lost", drop=2, least=5),
    ]


def cells(plan: MininetPlan, row: Row, has_trunks: bool) -> list[str]:
    """Table row of one case."""
    tally, n = row.tally, len(row.tally.seconds)
    sent_bytes = tally.surveyed["sent_bytes"]
    trunks = sent_bytes.get("trunks up", 0) / n / 1e6
    times = (tally.median_s, row.bound_s(plan), min(tally.seconds), max(tally.seconds))
    return [
        title_of(row),
        f"{100 * row.case.x:.2f}" if plan.experiment == "loss" else f"{row.case.x:g}",
        *(f"{seconds * 1e3:,.0f}" for seconds in times),
        f"{row.goodput_bps / 1e6:.1f}",
        f"{sent_bytes['up'] / n / row.case.workers / 1e6:.2f}",
        *([f"{trunks / row.case.layout.racks:.2f}" if trunks else "–"] if has_trunks else []),
        f"{tally.agents['retransmitted']:.0f}" if "retransmitted" in tally.agents else "–",
        f"{sum(tally.surveyed['lost'].values())}",
    ]


def title(plan: MininetPlan) -> str:
    """Title of the table."""
    loss = "" if plan.experiment == "loss" else f", {plan.loss or 0:.2%} loss"
    return (
        f"All-reduce of {plan.size_bytes / 2**20:g} MiB of float32 ({plan.wire} lanes, {plan.payload_bytes} bytes in a "
        f"packet) over links of {plan.rate_bps / 1e6:g} Mbit/s, {plan.delay_s * 1e6:g} µs{loss} each way."
    )


def note(plan: MininetPlan, has_trunks: bool) -> str:
    """Explanation of the columns."""
    rack_sends = " Rack sends: to the other racks, in one." if has_trunks else ""
    return (
        f"time: of the slowest rank, median over {plan.repeats} repeats. bound: the link-limited minimum. "
        f"goodput: of the tensor. host sends: in one all-reduce.{rack_sends} Packets resent and lost: of all hosts "
        "and repeats."
    )


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
