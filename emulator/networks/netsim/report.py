"""Results of a simulated network as tables, a JSON object and a plot."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from emulator.networks.netsim.experiment import JobResult, Result
from switchml import plotting
from switchml.pages.panels import Bar, Bars
from switchml.tables import Table, number, show, text
from switchml.text import plain

_SHOWN_LINKS = 12


def _name(number: int, job: JobResult) -> str:
    return job.config.name or f"job {number}"


def as_json(result: Result) -> dict[str, Any]:
    """JSON object: times in seconds, rates in bits/s, queues in bytes."""
    configured, sparse = ("backend", "collective", "workers", "size_bytes"), ("block", "density", "overlap")
    measured = ("slots", "seconds", "median_s", "bound_s", "goodput_bps")
    counted = ("retransmitted", "spurious", "waits", "repeated_rounds", "timeouts")
    return {
        "jobs": [
            {"name": _name(number, job)}
            | {name: getattr(job.config, name) for name in configured + sparse * bool(job.config.block)}
            | {name: getattr(job, name) for name in measured}
            | {"packets": job.sent}
            | {name: getattr(job, name) for name in counted}
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
        **{
            name: getattr(result, name)
            for name in ("seconds", "most_waiting_packets", "steps", "wall_s", "best_effort")
        },
    }


def print_tables(result: Result) -> None:
    """Print tables of the jobs and of the busiest links."""
    jobs = Table(
        [
            text("job"),
            text("backend"),
            number("ranks"),
            number("size", "MiB"),
            number("slots", drop=2),
            number("time", "ms"),
            number("bound", "ms"),
            number("goodput", "Gbit/s", drop=1),
            number("packets", drop=3),
            number("resent", drop=1),
            number("spurious", drop=4),
            number("waits", drop=5),
        ],
        title="Jobs",
    )
    for index, job in enumerate(result.jobs):
        jobs.add(
            _name(index, job),
            job.config.backend if job.config.collective == "all_reduce" else job.config.collective,
            str(job.config.workers),
            f"{job.config.size_bytes / 2**20:g}",
            str(job.slots or "–"),
            *(f"{value:,.3f}" for value in (job.median_s * 1e3, job.bound_s * 1e3, job.goodput_bps / 1e9)),
            *(f"{count:,}" for count in (job.sent, job.retransmitted, job.spurious, job.waits)),
        )
    links = Table(
        [
            text("link"),
            number("used", "%"),
            number("packets"),
            number("lost", drop=1),
            number("dropped", drop=1),
            number("mean queue", "KiB", drop=2),
            number("longest queue", "KiB"),
        ],
        title="Links",
        notes=[
            "time: median over the repeats, the slowest rank's. bound: closed form without loss, late ranks or other "
            f"jobs. goodput: of the tensor. {len(result.links)} links, the busiest first. {result.steps:,} steps in "
            f"{result.wall_s:.1f} s."
        ],
    )
    for name in _busiest(result):
        counts = result.links[name]
        queues_bytes = (counts.queued_byte_s / result.seconds, counts.most_queued_bytes)
        links.add(
            name,
            f"{100 * result.utilisation(name):.1f}",
            *(f"{count:,}" for count in (counts.packets, counts.lost, counts.dropped)),
            *(f"{size / 1024:,.1f}" for size in queues_bytes),
        )
    show(jobs, links)


def _busiest(result: Result) -> list[str]:
    """Names of the links with the most bytes, as many as are shown."""
    return sorted(result.links, key=lambda name: -result.links[name].bytes)[:_SHOWN_LINKS]


def plot(result: Result, path: Path) -> None:
    """Plot with two panels: each job's time and its bound, and the queues of the busiest links. Raises ConfigError if
    the file cannot be written."""
    times = [
        Bar(
            f"{plain(_name(number, job))}, {job.config.workers} ranks",
            job.config.backend,
            job.median_s * 1e3,
            job.bound_s * 1e3,
        )
        for number, job in enumerate(result.jobs)
    ]
    queues = []
    for name in _busiest(result):
        counts = result.links[name]
        queues += [
            Bar(name, "longest", counts.most_queued_bytes / 1024),
            Bar(name, "mean", counts.queued_byte_s / result.seconds / 1024),
        ]
    panels = [
        Bars("Time", "ms an all-reduce", times, "closed form"),
        Bars("Queues of the busiest links", "KiB", queues),
    ]
    plotting.draw(path, "Simulated network", panels)
