"""The plot of a report, for a `--report` file that ends in .png, .svg or .pdf: where the time goes, memory, and the
curves of a sweep. The HTML page (`page.py`) has more: the timeline, possible gains, assumptions.
"""

from pathlib import Path
from typing import Any

from emulator.jobs.replay.parts import parts
from emulator.surface.report.page import Chart, Page, write_page
from switchml import plotting
from switchml.units import GIB, TimeUnit

_PANEL_INCHES = (5.2, 4.2)


def write_report(page: Page, path: Path) -> None:
    """Write `page` in the format of the file's suffix. Raises ConfigError if it can't be written."""
    if path.suffix == ".html":
        write_page(page, path)
        return
    count = 1 + bool(page.memory_bytes) + len(page.charts)
    size = (_PANEL_INCHES[0] * count, _PANEL_INCHES[1])
    with plotting.figure(path, page.title, size, columns=count) as (times, *others):
        _draw_times(times, page)
        if page.memory_bytes:
            _draw_memory(others.pop(0), page)
        for axes, chart in zip(others, page.charts, strict=True):
            _draw_curves(axes, chart)


def _draw_bars(axes: Any, bars: dict[str, float], labels: list[str], colour: str) -> None:
    drawn = axes.barh(list(bars), list(bars.values()), color=colour)
    axes.bar_label(drawn, labels, padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.2)


def _draw_times(axes: Any, page: Page) -> None:
    charged = {name: seconds for name, seconds in parts(page.played).mean().items() if seconds}
    whole_s = page.played.makespan_s
    unit = TimeUnit([whole_s])
    bars = {name: seconds / unit.size_s for name, seconds in charged.items()}
    _draw_bars(axes, bars, [f"{seconds / whole_s:.1%}" for seconds in charged.values()], plotting.SWITCHML)
    axes.set(xlabel=unit.name, title=f"an iteration of {unit.text(whole_s)} {unit.name}")


def _draw_memory(axes: Any, page: Page) -> None:
    bars = {name: size / GIB for name, size in page.memory_bytes.items()}
    _draw_bars(axes, bars, [f"{size:.1f}" for size in bars.values()], plotting.GREY)
    limit = f" of {page.memory_limit_bytes / GIB:.0f}" if page.memory_limit_bytes else ""
    axes.set(xlabel="GiB", title=f"memory: {sum(bars.values()):.1f}{limit} GiB")


def _draw_curves(axes: Any, chart: Chart) -> None:
    for curve in chart.curves:
        axes.plot(curve.x, curve.y, "o-", label=curve.name)
    if chart.is_ideal and chart.curves:
        first = chart.curves[0]
        ideal = [first.y[0] * x / first.x[0] for x in first.x]
        axes.plot(first.x, ideal, "--", color=plotting.GREY, label="ideal")
    axes.set(xlabel=chart.x_name, ylabel=chart.y_name, title=chart.title, xscale="log")
    points = sorted({x for curve in chart.curves for x in curve.x})
    axes.set_xticks(points, [f"{x:g}" for x in points])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
