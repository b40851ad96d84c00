"""The plot of a diagnosis, for a `--report` file that ends in .png, .svg or .pdf: the causes of each rank's time, and
the gain of each finding. The HTML page (`diagnosis.py`) has more."""

import textwrap
from pathlib import Path

import numpy as np

from emulator.surface.report.diagnosis import write_page
from emulator.traces.diagnosis.checks import Diagnosis
from switchml import plotting
from switchml.units import TimeUnit

MAX_RANKS = 16


def write_report(diagnosis: Diagnosis, path: Path, title: str) -> None:
    """Write `diagnosis` in the format of the file's suffix. Raises ConfigError if it can't be written."""
    if path.suffix == ".html":
        write_page(diagnosis, path, title)
        return
    context, findings = diagnosis.context, diagnosis.findings
    unit = TimeUnit([context.iteration_s])
    rows = context.causes.by_rank()[:MAX_RANKS]
    names = [context.short_name(rank) for rank in range(len(rows))]
    height = 2.5 + max(0.3 * len(rows), 0.5 * len(findings))
    with plotting.figure(path, title, (14 if findings else 8, height), columns=1 + bool(findings)) as (causes, *others):
        left = np.zeros(len(rows))
        for cause in rows[0] if rows else ():
            widths = np.array([row[cause] for row in rows]) / unit.size_s
            if widths.any():
                causes.barh(names, widths, left=left, label=cause)
                left += widths
        causes.invert_yaxis()
        causes.set(xlabel=f"{unit.name} of an iteration", title="where the time goes")
        causes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3)
        for axes in others:
            labels = ["\n".join(textwrap.wrap(f"{n}. {each.title}", 40)) for n, each in enumerate(findings, 1)]
            gains = axes.barh(labels, [each.gain_s / unit.size_s for each in findings], color=plotting.SWITCHML)
            axes.bar_label(gains, [f"{each.share:.1%}" for each in findings], padding=3)
            axes.invert_yaxis()
            axes.margins(x=0.2)
            axes.set(xlabel=unit.name, title="what changes gain")
