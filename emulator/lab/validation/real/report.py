"""The result of `switchml validate real` as a table, a JSON object and a plot."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from emulator.lab.validation.real.measure import BACKENDS, CALIBRATION_WORKERS, RealValidation, Row
from emulator.lab.validation.report import draw
from emulator.lab.validation.report import show as show_others
from emulator.lab.validation.rows import Row as ScatterRow
from emulator.lab.validation.rows import summary
from switchml.tables import Table, number, show, text


def as_json(validation: RealValidation | None, others: Sequence[ScatterRow] = ()) -> dict[str, Any]:
    """JSON object: times in seconds, errors as shares. `others`: rows of collectives, loading, memory and pipelines."""
    found = {"others": summary(others)} if others else {}
    return found if validation is None else _links(validation) | found


def _links(validation: RealValidation) -> dict[str, Any]:

    def row(one: Row) -> dict[str, Any]:
        return one.layout._asdict() | asdict(one) | {"layout": str(one.layout), "error": one.error}

    return {
        "rows": [row(one) for one in validation.rows],
        "mape": validation.mape,
        "worst": row(validation.worst),
        "within_5_percent": validation.within_5_percent,
        "calibration": asdict(validation.calibration),
        "gradient_bytes": validation.gradient_bytes,
    }


def print_table(validation: RealValidation | None, others: Sequence[ScatterRow] = ()) -> None:
    """Print the rows and their summary on stdout."""
    if validation is not None:
        _print_links(validation)
    if others:
        show_others("collectives, loading, memory and pipelines", others, [], {}, None, False, shown=others)


def _print_links(validation: RealValidation) -> None:
    worst, constants = validation.worst, validation.calibration
    overheads = ", ".join(f"{constants.overhead_s[name] * 1e3:.1f} ms more with {name}" for name in BACKENDS)
    table = Table(
        [
            number("workers"),
            number("hosts", drop=1),
            number("rate", "Mbit/s"),
            text("sum by"),
            number("measured", "ms"),
            number("predicted", "ms"),
            number("error", "%"),
            number("packets a chunk", drop=2),
            text("use", drop=1),
        ],
        notes=[
            f"MAPE {validation.mape:.1%}, worst {worst.error:+.1%} ({worst.layout}, {worst.layout.workers} ranks, "
            f"{worst.rate_bps / 1e6:g} Mbit/s), {validation.within_5_percent:.0%} of {len(validation.counted)} rows "
            "within 5 %",
            f"Steps of DDP on {validation.gradient_bytes / 1024:.0f} KiB of gradients. Calibrated by one run of "
            f"{CALIBRATION_WORKERS} ranks: {constants.compute_s * 1e3:.1f} ms of computation a step, {overheads}, "
            f"{constants.packets_per_chunk['switchml']:.2f} packets a chunk; {constants.cores} cores.",
        ],
    )
    for row in validation.rows:
        table.add(
            str(row.layout.workers),
            str(row.layout.hosts),
            f"{row.rate_bps / 1e6:g}",
            str(row.layout),
            f"{row.measured_s * 1e3:,.1f}",
            f"{row.predicted_s * 1e3:,.1f}",
            f"{100 * row.error:+.1f}",
            f"{row.packets_per_chunk:.2f}" if row.layout.backend != "gloo" else "",
            "calibration" if row.is_calibration else "",
        )
    show(table)


def plot(validation: RealValidation | None, path: Path, others: Sequence[ScatterRow] = ()) -> None:
    """Plot predicted against measured times. Raises ConfigError if the plot cannot be written."""
    groups: dict[str, list[ScatterRow]] = {}
    timed = [ScatterRow(row.name, row.measured * 1e3, row.predicted * 1e3, "ms") for row in others if row.unit == "s"]
    if timed:
        groups["collectives, loading, memory and pipelines"] = timed
    for row in validation.rows if validation is not None else ():
        point = ScatterRow(str(row.layout), row.measured_s * 1e3, row.predicted_s * 1e3, "ms a step")
        groups.setdefault(f"{row.layout}, {row.layout.workers} ranks", []).append(point)
    title = "predicted against measured"
    if validation is not None:
        title = f"links, all but the calibration: MAPE {validation.mape:.1%}"
    draw(list(groups.items()), path, title)
