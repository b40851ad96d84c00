"""Plot of `switchml bench allreduce`: time and bandwidth against size."""

from pathlib import Path

from emulator.lab.bench.allreduce import Report
from emulator.lab.bench.limits import Limit
from emulator.lab.bench.sizes import ITEM_BYTES, text_of
from switchml import plotting
from switchml.pages.charts import Line
from switchml.pages.panels import Curves


def draw(report: Report, limit: Limit | None, path: Path) -> None:
    """Write the plot, with a line for each backend. Overlapped cases are left out. Raises ConfigError."""
    title = f"All-reduce of {report.workers} ranks, transport {report.transport}, {report.wire} lanes"
    measurements = sorted(
        (one for one in report.measurements if not one.case.overlapped), key=lambda one: one.case.size_bytes
    )
    sizes = [one.case.size_bytes for one in measurements]
    times = [Line(name, sizes, [one.median_s(name) * 1e6 for one in measurements]) for name in report.backends]
    rates = [Line(name, sizes, [one.gigabytes_per_s(name) for one in measurements]) for name in report.backends]
    if limit is not None:
        bytes_per_s = limit.elements_per_s * ITEM_BYTES
        times.append(Line("limit", sizes, [size / bytes_per_s * 1e6 for size in sizes], is_dashed=True))
        rates.append(Line("limit", sizes, [bytes_per_s / 1e9 for _ in sizes], is_dashed=True))
    names = {float(size): text_of(size) for size in sizes}
    panels = [
        Curves(title, "bytes of the tensor", unit, lines, x_log=2, y_log=True, x_names=names)
        for title, unit, lines in (("Time", "time (µs)", times), ("Bandwidth", "algbw (GB/s)", rates))
    ]
    plotting.draw(path, title, panels)
