"""What `switchml validate real` has found: a table for people, one JSON object for programs, a picture."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from emulator.validation.real.measure import BACKENDS, CALIBRATION_WORKERS, Row, Validation
from switchml.errors import ConfigError

_COLOURS = {"switchml": "#1b6ca8", "gloo": "#d1603d"}
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def as_json(validation: Validation) -> dict[str, Any]:
    """Times in seconds, errors as shares."""

    def row(one: Row) -> dict[str, Any]:
        return asdict(one) | {"error": one.error}

    return {
        "rows": [row(one) for one in validation.rows],
        "mape": validation.mape,
        "worst": row(validation.worst),
        "within_5_percent": validation.within_5_percent,
        "calibration": asdict(validation.calibration),
        "gradient_bytes": validation.gradient_bytes,
    }


def print_table(validation: Validation) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for heading in ("workers", "Mbit/s"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for heading in ("measured ms", "predicted ms", "error", "packets a chunk"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for one in validation.rows:
        table.add_row(
            str(one.workers),
            f"{one.rate_bps / 1e6:g}",
            one.backend,
            f"{one.measured_s * 1e3:.1f}",
            f"{one.predicted_s * 1e3:.1f}",
            f"{one.error:+.1%}",
            f"{one.packets_per_chunk:.2f}" if one.backend != "gloo" else "",
            "calibration" if one.is_calibration else "",
        )
    console.print(table)
    worst, constants = validation.worst, validation.calibration
    overheads = ", ".join(f"{constants.overhead_s[name] * 1e3:.1f} ms more with {name}" for name in BACKENDS)
    console.print(
        f"\nMAPE {validation.mape:.1%}, worst {worst.error:+.1%} ({worst.backend}, {worst.workers} workers, "
        f"{worst.rate_bps / 1e6:g} Mbit/s), {validation.within_5_percent:.0%} of {len(validation.counted)} rows "
        "within 5 %"
    )
    console.print(
        f"Steps of DDP on {validation.gradient_bytes / 1024:.0f} KiB of gradients. Calibrated by one run of "
        f"{CALIBRATION_WORKERS} workers: {constants.compute_s * 1e3:.1f} ms of computation a step, {overheads}, "
        f"{constants.packets_per_chunk['switchml']:.2f} packets a chunk; "
        f"{constants.cores} cores.",
        style="dim",
    )


def plot(validation: Validation, path: Path) -> None:
    """Predicted against measured, with the 5 % band."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.5, 6))
    workers = sorted({row.workers for row in validation.rows})
    times = [1e3 * t for row in validation.rows for t in (row.measured_s, row.predicted_s)]
    ends = [min(times) / 1.2, max(times) * 1.2]
    axes.plot(ends, ends, color="#888888", linewidth=1)
    axes.fill_between(ends, [0.95 * e for e in ends], [1.05 * e for e in ends], color="#dddddd", label="within 5 %")
    for backend in BACKENDS:
        for count, marker in zip(workers, _MARKERS, strict=False):
            chosen = [row for row in validation.rows if (row.backend, row.workers) == (backend, count)]
            axes.plot(
                [row.measured_s * 1e3 for row in chosen],
                [row.predicted_s * 1e3 for row in chosen],
                marker,
                color=_COLOURS[backend],
                label=f"{backend}, {count} workers",
            )
    axes.set(
        xscale="log",
        yscale="log",
        xlim=ends,
        ylim=ends,
        xlabel="measured, ms a step",
        ylabel="predicted, ms a step",
        title=f"MAPE {validation.mape:.1%}, worst {validation.worst.error:+.1%}",
    )
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3, which="both")
    figure.tight_layout()
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise ConfigError(f"--plot {path}: {error.strerror or error}") from None
    finally:
        pyplot.close(figure)
