"""The result of `switchml bench codecs` as a table, a JSON object and a plot."""

from pathlib import Path
from typing import Any

from emulator.lab.bench.codecs.measure import Measured, Report
from switchml import plotting
from switchml.pages.panels import Bar, Bars, Point, Points
from switchml.tables import Row, Table, number, show, text

_FIGURES = (
    "name", "ours", "aggregation", "ratio", "payload_bytes", "max_error", "sent_bytes", "received_bytes",
    "pays_below_bps", "note",
)  # fmt: skip
"""Fields of a codec in the JSON output."""


def print_table(report: Report) -> None:
    """Print the table on stdout: switchml's codecs, then the baselines."""
    ranks = f"of {report.workers} ranks"
    columns = [
        text("codec"),
        text("aggregation", drop=5),
        number("ratio"),
        number("compress", "MB/s"),
        number("decompress", "MB/s"),
        number("largest error", drop=3),
        number("L2 error", drop=1),
        number(f"{ranks} sent", "kB", drop=4),
        number(f"{ranks} received", "kB", drop=4),
        number("pays below", "Mbit/s", drop=2),
    ]
    rows: list[Row] = [_cells(each) for each in report.measured]
    ours = sum(each.ours for each in report.measured)
    if ours < len(rows):
        rows.insert(ours, ("beside them",))
    notes = ["\n".join(f"{baseline.name} is not measured: it {baseline.reason}" for baseline in report.missing)]
    show(Table(columns, rows, _title(report), notes))


def _cells(each: Measured) -> list[str]:
    compress, decompress = each.rate(each.compress_s), each.rate(each.decompress_s)
    return [
        each.name,
        each.aggregation,
        f"{each.ratio:.2f}",
        f"{compress / 1e6:,.0f}" if compress else "",
        f"{decompress / 1e6:,.0f}" if decompress else "(both)",
        f"{each.max_error:.2g}",
        f"{each.relative_error:.2g}",
        *("" if size is None else f"{size / 1e3:,.0f}" for size in (each.sent_bytes, each.received_bytes)),
        f"{each.pays_below_bps / 1e6:,.0f}",
    ]


def _title(report: Report) -> str:
    n = report.tensor.values.size
    return f"{report.tensor.source}: {n:,} float32, {4 * n / 1e6:.1f} MB; one core; bound {report.bound:g} of the range"


def as_json(report: Report) -> dict[str, Any]:
    """JSON object: rates in bytes of the float32 tensor per second; errors of one payload after decoding."""
    return {
        "tensor": report.tensor.source,
        "elements": int(report.tensor.values.size),
        "workers": report.workers,
        "bound": report.bound,
        "ratio": report.ratio,
        "codecs": [
            {name: getattr(each, name) for name in _FIGURES}
            | {
                "compress_bytes_per_s": each.rate(each.compress_s),
                "decompress_bytes_per_s": each.rate(each.decompress_s),
                "relative_l2_error": each.relative_error,
            }
            for each in report.measured
        ],
        "missing": [vars(baseline) for baseline in report.missing],
    }


def draw(report: Report, path: Path) -> None:
    """Plot ratio against error, and speed. Raises ConfigError if the plot cannot be written."""
    plotting.draw(path, f"Codecs on {_title(report)}", [_errors(report.measured), _speeds(report.measured)])


def _short(each: Measured) -> str:
    return each.name.partition(":")[0]


def _errors(measured: list[Measured]) -> Points:
    """Scatter plot of ratio and error, without sign codecs, which decode to a direction only, and without lossless
    codecs."""
    shown = [
        Point(each.aggregation if each.ours else "theirs", each.ratio, each.relative_error, _short(each))
        for each in measured
        if each.aggregation != "vote" and each.relative_error > 0
    ]
    return Points("Size and error", "ratio (float32 bytes / payload bytes)", "relative L2 error", shown)


def _speeds(measured: list[Measured]) -> Bars:
    bars = [
        Bar(_short(each), kind, rate / 1e6)
        for each in measured
        for kind, seconds in (("compress (hooks: both ways)", each.compress_s), ("decompress", each.decompress_s))
        if (rate := each.rate(seconds))
    ]
    return Bars("Speed", "MB of float32 a second, one core", bars, is_log=True)
