"""Default values assumed for a job, and warnings about implausible results."""

from collections.abc import Container, Iterable, Mapping
from typing import Any

from emulator.cluster.collectives import cost
from emulator.jobs.costed import CostedJob
from emulator.jobs.workload.job import Job
from emulator.jobs.workload.models import Model

SHOWN = ("gpus", "batch", "micro_batch", "sequence", "precision", "optimizer", "recompute", "allreduce")
MIN_MFU = 0.1
MAX_MFU = 0.75
"""Published jobs stay well below; Megatron-LM's README reports up to 0.47 on H100."""
SLOWER = 1.02


def assumed(given: Container[str], job: Job, model: Model, has_cluster: bool) -> tuple[str, ...]:
    """Return the names of unspecified options, of SHOWN and the cluster."""
    has_length = job.sample_tokens(model) > 1
    names = [name for name in SHOWN if name not in given and (has_length or name != "sequence")]
    return (*names, *([] if has_cluster else ["cluster"]))


def values_of(names: Iterable[str], plan: CostedJob) -> dict[str, Any]:
    """Return the values in a plan of the named unspecified options."""
    values = {name: getattr(plan.job, name) for name in SHOWN}
    values |= {"batch": plan.job.global_batch, "sequence": plan.job.sample_tokens(plan.model)}
    values["cluster"] = plan.cluster.name
    return {name: values[name] for name in names}


def batch_text(job: Job, assumed: Container[str]) -> str:
    """Format batch and micro-batch, marking assumed values."""
    marks = {name: " (assumed)" if name in assumed else "" for name in ("batch", "micro_batch")}
    return f"{job.global_batch}{marks['batch']} in micro-batches of {job.micro_batch}{marks['micro_batch']}"


def warnings(costed: CostedJob, mfu: float, parts: Mapping[str, float]) -> list[str]:
    """Return warnings about implausible results, each with a likely cause. `parts`: seconds of an iteration by part."""
    lines, job = [], costed.job
    if mfu > MAX_MFU:
        lines.append(f"model FLOPs utilization is {mfu:.1%}, more than published jobs reach: don't trust this estimate")
    if 0 < mfu < MIN_MFU:
        part = max(parts, key=lambda name: parts[name])
        share = parts[part] / sum(parts.values())
        lines.append(
            f"model FLOPs utilization is only {mfu:.1%}: {part} takes {share:.0%} of the iteration, with "
            f"{job.micro_batches} micro-batch{'es' if job.micro_batches > 1 else ''} of {job.micro_batch}"
            + (f" ({job.global_batch // job.replicas} samples a rank)" if job.micro_batches > 1 else "")
        )
    if job.allreduce == "switchml" and not job.zero and job.dp > 1:
        lines += _slower_than_a_ring(costed)
    return lines


def _slower_than_a_ring(costed: CostedJob) -> list[str]:
    """Return a warning if in-network aggregation of gradients is slower than a ring."""
    job = costed.job
    elements = max(stage.parameters for stage in costed.stages) * costed.unpruned_share
    here_s = costed.reduce(elements / costed.unpruned_share).seconds
    size = elements * job.gradient_bytes if costed.codec is None else costed.codec.wire_bytes(elements)
    ring_s = cost(costed.cluster, "all_reduce", size, costed.data_parallel, "ring", job.hierarchy).seconds
    if here_s <= SLOWER * ring_s:
        return []
    line = f"in-network aggregation takes {here_s / ring_s:.1f} times as long as a ring here"
    if job.gradient_bytes < costed.streaming.wire_bytes and costed.codec is None:
        name = {1: "int8", 2: "fp16"}.get(job.gradient_bytes, f"{job.gradient_bytes}-byte gradients")
        return [f"{line}: {name} travels as int32 here: --wire-bytes {job.gradient_bytes}"]
    return [f"{line}: look at --slots, --payload and the cluster's [switch]"]
