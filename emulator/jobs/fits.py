"""Checks whether a job fits into its accelerators' memory, and suggests changes where it does not."""

from typing import Any

from emulator.cluster.cluster import Cluster
from emulator.jobs.workload import memory
from emulator.jobs.workload.job import Job
from emulator.jobs.workload.models import Model, Transformer
from switchml.errors import ConfigError, OutOfMemory
from switchml.units import memory_text


def check_memory(model: Model, job: Job, cluster: Cluster, needed: memory.Memory) -> None:
    """Raise OutOfMemory unless `needed` fits, with a breakdown and a suggestion."""
    available = cluster.device.memory_bytes
    if needed.total <= available:
        return
    detail = ", ".join(f"{name} {memory_text(size)}" for name, size in needed.parts().items())
    helps = _what_helps(model, job, available)
    raise OutOfMemory(
        f"out of memory: {memory_text(needed.total)} on the fullest accelerator, {cluster.device.title} has "
        f"{memory_text(available)} ({detail}). {helps}",
        needed.total,
        needed.parts(),
    )


def check_host_memory(job: Job, cluster: Cluster, rank_bytes: float) -> None:
    """Raise OutOfMemory unless the host memory of a node holds `rank_bytes` for each of its ranks."""
    ranks = min(job.gpus, cluster.accelerators_per_node)
    if ranks * rank_bytes > cluster.host_memory_bytes:
        raise OutOfMemory(
            f"out of host memory: {ranks} ranks of a node hold optimizer states of {memory_text(rank_bytes)} each, "
            f"{cluster.name} has {memory_text(cluster.host_memory_bytes)} a node. Take more stages (--pp) or tensor "
            "parallelism (--tp), or zero 3 without --offload-bucket",
            ranks * rank_bytes,
            {"optimizer states": ranks * rank_bytes},
        )


def _what_helps(model: Model, job: Job, available: float) -> str:
    """Return the cheapest change with which the job fits."""
    tried: list[tuple[str, dict[str, Any]]] = [
        (f"zero {stage}", {"zero": stage}) for stage in (1, 2, 3) if stage > job.zero and (stage < 3 or job.pp == 1)
    ]
    if job.gradient_bytes > job.element_bytes and job.zero < 3:
        tried.insert(0, (f"gradient-bytes {job.element_bytes}", {"gradient_bytes": job.element_bytes}))
    if isinstance(model, Transformer) and job.recompute == "none":
        tried.insert(0, ("recompute selective", {"recompute": "selective"}))
    if isinstance(model, Transformer) and job.recompute in ("none", "selective"):
        tried.append(("recompute operators", {"recompute": "operators"}))
    if job.recompute != "full":
        tried.append(("recompute full", {"recompute": "full"}))
        tried.append(("recompute full with zero 1", {"recompute": "full", "zero": max(1, job.zero)}))
    for name, change in tried:
        try:
            if memory.memory(model, job.replace(**change)).total <= available:
                return f"It would fit with {name}"
        except ConfigError:
            continue
    return "Split it over more accelerators (tp, pp), or take smaller micro-batches"
