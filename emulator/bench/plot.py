"""The picture of `switchml bench allreduce`: time and bandwidth against size."""

from __future__ import annotations

from pathlib import Path

from emulator.bench.allreduce import Report
from emulator.bench.limits import Limit
from emulator.bench.ranks.reducing import DENSE, GLOO, INT32, PLAIN, SWITCHML
from emulator.bench.sizes import ITEM_BYTES, text_of
from switchml import plotting

COLOURS = {SWITCHML: plotting.SWITCHML, DENSE: "#5aa469", PLAIN: "#5aa469", INT32: "#5aa469", GLOO: plotting.GLOO}


def draw(report: Report, limit: Limit | None, path: Path) -> None:
    """Write the picture, with a line for each backend. Overlapped cases are not part of a line. Raises ConfigError."""
    title = f"all-reduce of {report.workers} ranks, transport {report.transport}, {report.wire} lanes"
    measurements = sorted(
        (one for one in report.measurements if not one.case.overlapped), key=lambda one: one.case.size_bytes
    )
    sizes = [one.case.size_bytes for one in measurements]
    with plotting.figure(path, title, (12, 4.8), columns=2) as (times, bandwidths):
        for name in report.backends:
            style = {"marker": "o", "color": COLOURS[name], "label": name}
            times.plot(sizes, [one.median_s(name) * 1e6 for one in measurements], **style)
            bandwidths.plot(sizes, [one.gigabytes_per_s(name) for one in measurements], **style)
        if limit is not None:
            bytes_per_s = limit.elements_per_s * ITEM_BYTES
            style = {"linestyle": "--", "color": plotting.GREY, "label": "limit"}
            times.plot(sizes, [size / bytes_per_s * 1e6 for size in sizes], **style)
            bandwidths.plot(sizes, [bytes_per_s / 1e9 for _ in sizes], **style)
        for axes, unit in ((times, "time (µs)"), (bandwidths, "algbw (GB/s)")):
            axes.set_xscale("log", base=2)
            axes.set(xlabel="bytes of the tensor", ylabel=unit, yscale="log")
            axes.set_xticks(sizes, [text_of(size) for size in sizes], rotation=45)
            axes.minorticks_off()
            axes.grid(alpha=0.3)
            axes.legend()
