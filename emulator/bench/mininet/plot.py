"""The picture of an experiment: time against its variable, a line a series; with racks, also what crosses trunks."""

from __future__ import annotations

import base64
import html
import importlib.util
import io
from collections.abc import Sequence
from pathlib import Path

from emulator.bench.mininet.experiments import FLAT, RING, TREE, Plan, Row
from emulator.bench.mininet.report import AXES, title_of
from switchml.errors import ConfigError

COLOURS = {RING: "#d1603d", FLAT: "#888888", TREE: "#1b6ca8"}
OURS = "#1b6ca8"


def require(path: Path) -> None:
    """Raises ConfigError if a picture can't be drawn there."""
    if path.suffix not in (".png", ".html"):
        raise ConfigError(f"--plot {path}: expected a name that ends in .png or .html")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--plot {path}: there is no folder {path.absolute().parent}")
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib: pip install 'switchml[plot]'")


def draw(plan: Plan, rows: Sequence[Row], path: Path) -> None:
    """Write the picture to `path`; .html is a page that holds it. Raises ConfigError if it can't be written."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    has_bars = plan.experiment in ("allreduce", "two-racks")
    has_trunks = any("trunks up" in row.tally.sent_bytes for row in rows)
    figure, all_axes = pyplot.subplots(1, 2 if has_trunks else 1, figsize=(10 if has_trunks else 7, 4.2), squeeze=False)
    axes = all_axes[0, 0]
    if has_bars:
        _bars(axes, rows, [row.tally.median_s * 1e3 for row in rows])
        if has_trunks:
            repeats = [len(row.tally.seconds) * row.case.layout.racks for row in rows]
            sent = [row.tally.sent_bytes.get("trunks up", 0) / n / 1e6 for row, n in zip(rows, repeats, strict=True)]
            _bars(all_axes[0, 1], rows, sent)
            all_axes[0, 1].set(ylabel="MB that a rack sends up", title="one link between switches")
    else:
        _lines(axes, plan, rows)
    axes.set(ylabel="ms", title=f"all-reduce of {plan.size_bytes / 2**20:g} MiB at {plan.rate_bps / 1e6:g} Mbit/s")
    axes.set_ylim(bottom=0)
    figure.tight_layout()
    try:
        if path.suffix == ".png":
            figure.savefig(path, dpi=120)
        else:
            picture = io.BytesIO()
            figure.savefig(picture, format="png", dpi=120)
            path.write_text(_page(plan, picture.getvalue()), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--plot {path}: {error.strerror or error}") from None
    finally:
        pyplot.close(figure)


def _lines(axes, plan: Plan, rows: Sequence[Row]) -> None:
    for series in dict.fromkeys(row.case.series for row in rows):
        mine = [row for row in rows if row.case.series == series]
        x = [row.case.x * (100 if plan.experiment == "loss" else 1) for row in mine]
        low, high = ([f(row.tally.seconds) * 1e3 for row in mine] for f in (min, max))
        colour = COLOURS.get(series, OURS)
        axes.fill_between(x, low, high, color=colour, alpha=0.15)
        axes.plot(x, [row.tally.median_s * 1e3 for row in mine], "o-", color=colour, label=title_of(mine[0]))
    if plan.experiment == "slots":
        axes.set_xscale("log", base=2)
        axes.set_xticks([row.case.x for row in rows], [f"{row.case.x:g}" for row in rows])
    elif plan.experiment == "scaling":
        axes.set_xticks(sorted({row.case.x for row in rows}))
    axes.set(xlabel="loss of each link, each way (%)" if plan.experiment == "loss" else AXES[plan.experiment])
    axes.grid(alpha=0.3)
    axes.legend()


def _bars(axes, rows: Sequence[Row], values: Sequence[float]) -> None:
    bars = axes.bar([title_of(row) for row in rows], values, color=[COLOURS.get(r.case.series, OURS) for r in rows])
    axes.bar_label(bars, [f"{value:.0f}" if value >= 100 else f"{value:.3g}" for value in values])
    axes.margins(y=0.12)


def _page(plan: Plan, picture: bytes) -> str:
    data = base64.b64encode(picture).decode()
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"/><title>switchml mininet</title></head>
<body style="font: 14px sans-serif; margin: 2em"><h1>switchml mininet --experiment {html.escape(plan.experiment)}</h1>
<img alt="time of an all-reduce" style="max-width: 100%" src="data:image/png;base64,{data}"/></body></html>
"""
