"""What a simulated network came to: tables for people, one JSON object for programs, a picture."""

from __future__ import annotations

import importlib.util
from dataclasses import asdict
from pathlib import Path
from typing import Any

from emulator.netsim.experiment import JobResult, Result
from switchml.errors import ConfigError

_SHOWN_LINKS = 12
_COLOURS = {"switchml": "#1b6ca8", "ring": "#d1603d"}


def _name(number: int, job: JobResult) -> str:
    return job.config.name or f"job {number}"


def as_json(result: Result) -> dict[str, Any]:
    """Times in seconds, rates in bits a second, queues in bytes."""
    return {
        "jobs": [
            {
                "name": _name(number, job),
                "backend": job.config.backend,
                "workers": job.config.workers,
                "size_bytes": job.config.size_bytes,
                "slots": job.slots,
                "seconds": job.seconds,
                "median_s": job.median_s,
                "bound_s": job.bound_s,
                "goodput_bps": job.goodput_bps,
                "packets": job.sent,
                "retransmitted": job.retransmitted,
                "spurious": job.spurious,
                "waits": job.waits,
                "repeated_rounds": job.repeated_rounds,
                "timeouts": job.timeouts,
            }
            for number, job in enumerate(result.jobs)
        ],
        "links": {
            name: asdict(counts)
            | {
                "utilisation": result.utilisation(name),
                "mean_queued_bytes": counts.queued_byte_s / result.seconds if result.seconds else 0.0,
            }
            for name, counts in result.links.items()
        },
        "seconds": result.seconds,
        "most_waiting_packets": result.most_waiting_packets,
        "steps": result.steps,
        "wall_s": result.wall_s,
    }


def print_tables(result: Result) -> None:
    """Jobs, then the links that were used most."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("job")
    table.add_column("backend")
    for heading in ("ranks", "MiB", "slots", "ms", "bound ms", "Gbit/s", "packets", "resent", "spurious", "waits"):
        table.add_column(heading, justify="right", no_wrap=True)
    for number, job in enumerate(result.jobs):
        table.add_row(
            _name(number, job),
            job.config.backend,
            str(job.config.workers),
            f"{job.config.size_bytes / 2**20:g}",
            str(job.slots or "–"),
            f"{job.median_s * 1e3:.3f}",
            f"{job.bound_s * 1e3:.3f}",
            f"{job.goodput_bps / 1e9:.3f}",
            f"{job.sent:,}",
            f"{job.retransmitted:,}",
            f"{job.spurious:,}",
            f"{job.waits:,}",
        )
    console.print(table)
    console.print()
    links = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    links.add_column("link")
    for heading in ("used", "packets", "lost", "dropped", "queue, mean", "queue, most"):
        links.add_column(heading, justify="right", no_wrap=True)
    busiest = sorted(result.links, key=lambda name: -result.links[name].bytes)
    for name in busiest[:_SHOWN_LINKS]:
        counts = result.links[name]
        links.add_row(
            name,
            f"{result.utilisation(name):.1%}",
            f"{counts.packets:,}",
            f"{counts.lost:,}",
            f"{counts.dropped:,}",
            f"{counts.queued_byte_s / result.seconds / 1024:.1f} KiB",
            f"{counts.most_queued_bytes / 1024:.1f} KiB",
        )
    console.print(links)
    console.print(
        "\nms: median over the repeats, the slowest rank's. Bound: closed form without loss, late ranks or other jobs. "
        f"Gbit/s of tensor. {len(busiest)} links, the busiest first. {result.steps:,} steps in {result.wall_s:.1f} s.",
        style="dim",
    )


def require_plotting(path: Path) -> None:
    """Raises ConfigError if `plot` could not work."""
    if path.suffix != ".png":
        raise ConfigError(f"--plot {path}: expected a name that ends in .png")
    if not path.parent.is_dir():
        raise ConfigError(f"--plot {path}: there is no folder {path.parent}")
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib: pip install 'switchml[plot]'")


def plot(result: Result, path: Path) -> None:
    """Two panels: each job's time beside its bound, and what the busiest links' queues held."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (times, queues) = pyplot.subplots(
        1, 2, figsize=(12, 1.6 + 0.45 * max(4, min(len(result.links), _SHOWN_LINKS)))
    )
    names = [_name(number, job) for number, job in enumerate(result.jobs)]
    places = range(len(names))
    times.barh(
        places,
        [job.median_s * 1e3 for job in result.jobs],
        color=[_COLOURS[job.config.backend] for job in result.jobs],
        height=0.6,
    )
    times.plot([job.bound_s * 1e3 for job in result.jobs], places, "k|", markersize=24, label="closed form")
    labels = [
        f"{name}\n{job.config.backend}, {job.config.workers} ranks"
        for name, job in zip(names, result.jobs, strict=True)
    ]
    times.set_yticks(places, labels)
    times.invert_yaxis()
    times.set(xlabel="ms an all-reduce", title="time")
    times.margins(x=0.3)
    times.legend(loc="lower right", markerscale=0.5)
    busiest = sorted(result.links, key=lambda name: -result.links[name].bytes)[:_SHOWN_LINKS]
    rows = range(len(busiest))
    queues.barh(rows, [result.links[n].most_queued_bytes / 1024 for n in busiest], color="#bbccdd", label="most")
    means = [result.links[n].queued_byte_s / result.seconds / 1024 for n in busiest]
    queues.barh(rows, means, color="#1b6ca8", height=0.4, label="mean")
    queues.set_yticks(rows, busiest)
    queues.invert_yaxis()
    queues.set(xlabel="KiB", title="queues of the busiest links")
    queues.legend(loc="lower right")
    figure.tight_layout()
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise ConfigError(f"--plot {path}: {error.strerror or error}") from None
    finally:
        pyplot.close(figure)
