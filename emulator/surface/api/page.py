"""Content of an emulated job's page."""

from collections.abc import Sequence
from typing import Any

from emulator.jobs.defaults import batch_text
from emulator.jobs.emulation import Emulation
from emulator.surface.report.page import Page
from emulator.traces.whatif.faster import what_if
from switchml.pages.charts import Line
from switchml.pages.panels import Curves
from switchml.units import memory_text, time_text

MAX_REPLAYED_OPS = 2_000_000
"""Maximum size of jobs that are replayed with one resource sped up, for the report."""


def page_of(
    emulation: Emulation, rows: Sequence[dict[str, Any]] = (), axes: Sequence[str] = (), *, speedups: bool = True
) -> Page:
    """The page of a job. `rows`: of a sweep over the options `axes`, whose curves are added to the page. `speedups`:
    whether to replay the job with each resource twice as fast."""
    job, cluster, spread = emulation.plan.job, emulation.plan.cluster, emulation.interval
    headline = {
        "iteration": time_text(emulation.iteration_s),
        **({"4 in 5 similar jobs": f"{time_text(spread.low_s)} to {time_text(spread.high_s)}"} if spread else {}),
        "throughput": f"{emulation.samples_per_s:,.1f} samples/s",
        "model FLOPs utilization": f"{emulation.mfu:.1%}",
        "memory": memory_text(emulation.memory.total),
    }
    if price := job.gpus * cluster.hourly_price:
        headline["an hour"] = f"${price:,.0f}"
    if emulation.steps:
        headline |= {
            "training": f"{emulation.hours / 24:,.1f} days",
            "accelerator hours": f"{emulation.gpu_hours:,.0f}",
        }
        headline |= {"cost": f"${emulation.cost:,.0f}"} if emulation.cost else {}
        headline |= {"energy": f"{emulation.energy_kwh / 1000:,.1f} MWh"}
    if goodput := emulation.progress.quantiles():
        headline |= {"goodput": f"{emulation.goodput:.1%} ({goodput['p5']:.1%} to {goodput['p95']:.1%})"}
    settings = {
        "model": emulation.plan.model.title,
        "cluster": f"{job.gpus} x {cluster.device.title}, {cluster.title}",
        "parallelism": f"tensor {job.tp}, pipeline {job.pp}, data {job.dp}, expert {job.ep}, ZeRO {job.zero}",
        "batch": batch_text(job, emulation.assumed),
        "schedule": job.schedule + (f", {job.virtual_stages} pieces a stage" if job.virtual_stages > 1 else ""),
        "recomputation": job.recomputation,
        "all-reduce": job.allreduce + (f", {emulation.plan.codec.title}" if emulation.plan.codec else ""),
    }
    settings |= dict(line.split(": ", 1) for line in emulation.request.choice.lines(job))
    return Page(
        title=f"{emulation.plan.model.title} on {job.gpus} accelerators",
        played=emulation.played,
        headline=headline,
        settings=settings,
        memory_bytes=emulation.memory.parts(),
        memory_limit_bytes=cluster.device.memory_bytes,
        speedups=what_if(emulation.played) if speedups and len(emulation.played.graph.ops) <= MAX_REPLAYED_OPS else {},
        charts=curves(rows, axes),
        assumptions=[*(f"warning: {line}" for line in emulation.warnings()), *emulation.assumptions()],
    )


def curves(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> list[Curves]:
    """Throughput and utilization over the first numeric axis, with a curve for each combination of the others; over
    `gpus` also throughput in proportion to the first point."""
    rows = [row for row in rows if "error" not in row]
    numeric = [name for name in names if rows and all(isinstance(row[name], int | float) for row in rows)]
    if not numeric or len({row[numeric[0]] for row in rows}) < 2:
        return []
    along, others = numeric[0], [name for name in names if name != numeric[0]]
    parts: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        parts.setdefault(", ".join(f"{row[name]}" for name in others) or "this job", []).append(row)

    def lines(key: str, factor: float) -> list[Line]:
        return [
            Line(name, [row[along] for row in part], [row[key] * factor for row in part])
            for name, part in parts.items()
        ]

    throughput = lines("samples_per_s", 1.0)
    if along == "gpus":
        xs, slope = sorted({row[along] for row in rows}), throughput[0].y[0] / throughput[0].x[0]
        throughput.append(Line("linear", xs, [slope * x for x in xs], is_dashed=True))
    return [
        Curves("Throughput", along, "samples/s", throughput, x_log=2),
        Curves("Model FLOPs utilization", along, "percent", lines("mfu", 100.0), x_log=2),
    ]
