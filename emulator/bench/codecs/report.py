"""`switchml bench codecs`, as a table, as one JSON object and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from emulator.bench.codecs.measure import Measured, Report
from switchml import plotting
from switchml.tables import Row, Table, number, show, text

COLOURS = {
    "sum": plotting.SWITCHML,
    "vote": "#5aa469",
    "sparse-sum": "#8e5ea2",
    "gather": "#e0a030",
    "theirs": plotting.GREY,
}


def print_table(report: Report) -> None:
    """The table for people, on stdout: our codecs, then the others."""
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
    notes = ["\n".join(f"{rival.name} is not measured: it {rival.reason}" for rival in report.missing)]
    show(Table(columns, rows, _title(report), notes))


def _cells(each: Measured) -> list[str]:
    compress, decompress = each.rate(each.compress_s), each.rate(each.decompress_s)
    traffic = () if each.sent_bytes is None else (each.sent_bytes, each.received_bytes)
    return [
        each.name,
        each.aggregation,
        f"{each.ratio:.2f}",
        f"{compress / 1e6:,.0f}" if compress else "",
        f"{decompress / 1e6:,.0f}" if decompress else "(both)",
        f"{each.max_error:.2g}",
        f"{each.relative_error:.2g}",
        *([f"{size / 1e3:,.0f}" for size in traffic] or ["", ""]),
        f"{each.pays_below_bps / 1e6:,.0f}",
    ]


def _title(report: Report) -> str:
    n = report.tensor.values.size
    return f"{report.tensor.source}: {n:,} float32, {4 * n / 1e6:.1f} MB; one core; bound {report.bound:g} of the range"


def as_json(report: Report) -> dict[str, Any]:
    """Rates in bytes of the float32 tensor a second; errors of one payload after decoding."""
    return {
        "tensor": report.tensor.source,
        "elements": int(report.tensor.values.size),
        "workers": report.workers,
        "bound": report.bound,
        "ratio": report.ratio,
        "codecs": [
            {
                "name": each.name,
                "ours": each.ours,
                "aggregation": each.aggregation,
                "ratio": each.ratio,
                "payload_bytes": each.payload_bytes,
                "compress_bytes_per_s": each.rate(each.compress_s),
                "decompress_bytes_per_s": each.rate(each.decompress_s),
                "max_error": each.max_error,
                "relative_l2_error": each.relative_error,
                "sent_bytes": each.sent_bytes,
                "received_bytes": each.received_bytes,
                "pays_below_bps": each.pays_below_bps,
                "note": each.note,
            }
            for each in report.measured
        ],
        "missing": [{"name": rival.name, "reason": rival.reason} for rival in report.missing],
    }


def draw(report: Report, path: Path) -> None:
    """Ratio against error, and speed. Raises ConfigError if the picture cannot be written."""
    with plotting.figure(path, _title(report), (15, 7.5), columns=2, width_ratios=(3, 2)) as (errors, speeds):
        _draw_errors(errors, report.measured)
        _draw_speeds(speeds, report.measured)


def _kind(each: Measured) -> str:
    return each.aggregation if each.ours else "theirs"


def _short(each: Measured) -> str:
    return each.name.partition(":")[0]


def _draw_errors(axes, measured: list[Measured]) -> None:
    """Sign codecs, which decode to a direction, and what changes nothing are left away."""
    shown = [each for each in measured if each.aggregation != "vote" and each.relative_error > 0]
    for kind, colour in COLOURS.items():
        some = [each for each in shown if _kind(each) == kind]
        if some:
            axes.scatter([e.ratio for e in some], [e.relative_error for e in some], color=colour, s=36, label=kind)
    axes.set(xscale="log", yscale="log", xlabel="ratio (float32 bytes / payload bytes)", ylabel="relative L2 error")
    axes.set_title("size and error")
    axes.grid(alpha=0.3)
    axes.legend(title="aggregation", fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=5)
    _label(axes, [(_short(each), each.ratio, each.relative_error) for each in shown])


def _label(axes, points: list[tuple[str, float, float]]) -> None:
    """Names beside the points, each in the nearest place where it covers neither a point nor another name."""
    axes.margins(0.14, 0.08)
    axes.figure.draw_without_rendering()
    places = axes.transData.transform([(x, y) for _, x, y in points]) * 72 / axes.figure.dpi
    occupied = [(x - 4, y - 4, x + 4, y + 4) for x, y in places]
    around = [(dx, dy) for dy in range(-150, 151, 5) for dx in (7, -7, 30, -30)]
    around.sort(key=lambda offset: offset[0] ** 2 + offset[1] ** 2 + (60 if offset[0] < 0 else 0))
    for (name, x, y), (left, base) in zip(points, places, strict=True):
        width, height = 4.6 * len(name), 9
        for dx, dy in around:
            start = left + dx - (width if dx < 0 else 0)
            box = (start, base + dy - height / 2, start + width, base + dy + height / 2)
            if not any(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in occupied):
                break
        occupied.append(box)
        axes.annotate(
            name,
            (x, y),
            textcoords="offset points",
            xytext=(dx, dy),
            fontsize=8,
            va="center",
            ha="right" if dx < 0 else "left",
            arrowprops={"arrowstyle": "-", "lw": 0.4, "color": "#999999"} if abs(dy) > 8 or abs(dx) > 8 else None,
        )


def _draw_speeds(axes, measured: list[Measured]) -> None:
    shown = measured[::-1]
    places = range(len(shown))
    for attribute, colour, name in (
        ("compress_s", plotting.SWITCHML, "compress (hooks: both ways)"),
        ("decompress_s", plotting.GLOO, "decompress"),
    ):
        rates = [(place, each.rate(getattr(each, attribute))) for place, each in zip(places, shown, strict=True)]
        rates = [(place, rate / 1e6) for place, rate in rates if rate]
        axes.plot([rate for _, rate in rates], [place for place, _ in rates], "o", color=colour, label=name)
    axes.set_yticks(list(places), [_short(each) for each in shown], fontsize=8)
    axes.set(xscale="log", xlabel="MB of float32 a second, one core", title="speed")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=2)
