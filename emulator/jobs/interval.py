"""How far off a predicted iteration may be: the spread of predictions of similar jobs that somebody measured. Four
in five of a group's rows lie within its interval, the same share above and below in logarithms. No constant was fitted
to these rows. The groups and their spread are data: `data/intervals.toml`, which `switchml validate intervals DIR
--write` makes. A job that no measured one is like has no interval, or that of several campaigns on H100.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from emulator import datafile
from emulator.cluster.cluster import Cluster
from emulator.jobs.workload.job import Job
from emulator.jobs.workload.models import Model, Transformer

FILE = Path(__file__).parent / "data" / "intervals.toml"
SHARE = 0.8
"""Of measured rows, those inside."""
MEASURED_ON = ("a100-40g", "a100-80g", "h100", "h100-grand-teton")
"""Accelerators of the rows, or the cluster whose file describes its own."""
REACH = 4
"""A job on more than so many times the accelerators of its group's largest is unlike all of them."""
ONE_NODE, NODES, FSDP, TORCH = "one-node", "several-nodes", "fsdp", "torch"
CORE, CONTEXT, OTHERS = "megatron-core", "context", "others"


@dataclass(frozen=True)
class Group:
    """Measured jobs of one kind."""

    title: str
    rows: int
    spread: float
    """Measured and predicted seconds of four rows in five are no more than this factor apart."""
    most_gpus: int
    held_out: float
    """Share of rows inside an interval from the others, a tenth left out at a time."""
    held_out_models: float
    """The same with all rows of a model left out."""
    held_out_campaigns: float
    """And with all of a publication, so that the interval may be that of others."""


@cache
def groups() -> dict[str, Group]:
    """By name."""
    return datafile.build_all(Group, FILE)


@dataclass(frozen=True)
class Interval:
    """Of an iteration's seconds, which four in five similar jobs kept; 0 and 0: nothing similar was measured."""

    low_s: float
    high_s: float
    basis: str
    """What it comes from, as an assumption of a report."""

    def __bool__(self) -> bool:
        return self.high_s > 0

    def to_json(self) -> dict[str, Any]:
        """For --json; null where there is none."""
        return {"low_s": self.low_s or None, "high_s": self.high_s or None, "basis": self.basis}


def interval(iteration_s: float, model: Model, job: Job, cluster: Cluster, besides: str = "") -> Interval:
    """Of a job that is predicted to take `iteration_s`. `besides`: what else it has that no measured job had."""
    reason = besides or _unlike(model, job, cluster)
    if reason:
        return Interval(0.0, 0.0, f"no interval: no measured job is like this one ({reason})")
    assert isinstance(model, Transformer)
    name = kind(job, model, cluster)
    group, own, note = _group(job, model, cluster), groups()[name], ""
    if job.gpus > REACH * own.most_gpus:
        note = f"; unlike them, it has more than {own.most_gpus:,} accelerators"
    elif name == OTHERS:
        note = "; for lack of rows of its own"
    low_s, high_s = iteration_s / group.spread, iteration_s * group.spread
    basis = f"{SHARE:.0%} of {group.rows} rows ({group.title}) were no more than {group.spread - 1:.0%} off"
    return Interval(low_s, high_s, f"interval: {basis}{note}")


def _group(job: Job, model: Transformer, cluster: Cluster) -> Group:
    """Whose spread a job gets."""
    own = groups()[kind(job, model, cluster)]
    is_far = job.gpus > REACH * own.most_gpus
    return max(own, groups()[OTHERS], key=lambda one: one.spread) if is_far else own


def factor(model: Model, job: Job, cluster: Cluster) -> float | None:
    """By which a job's interval reaches up and down from what is predicted; None where it has none."""
    if _unlike(model, job, cluster):
        return None
    assert isinstance(model, Transformer)
    return _group(job, model, cluster).spread


def kind(job: Job, model: Transformer, cluster: Cluster) -> str:
    """The group of jobs like this one."""
    code = job.implemented_by(model)
    is_half = job.precision in ("fp16", "bf16")
    is_torch = code in ("torch", "compiled")
    if job.cp > 1 and is_torch:
        return CONTEXT
    if code == "megatron-core" and job.precision == "fp8":
        return CORE
    if job.cp > 1:
        return OTHERS
    if is_torch:
        return TORCH
    if code.startswith("composer") and is_half and job.tp == job.pp == 1:
        return FSDP
    if code == "megatron" and is_half and job.zero == 0 and cluster.accelerator == "a100-80g" and not job.flash(model):
        return ONE_NODE if job.gpus <= cluster.accelerators_per_node else NODES
    return OTHERS


def _unlike(model: Model, job: Job, cluster: Cluster) -> str:
    """Why no measured job is like this one; empty where some are."""
    if not isinstance(model, Transformer):
        return "a network given as a table of layers"
    if model.experts > 1:
        return "experts"
    if cluster.accelerator not in MEASURED_ON:
        return cluster.device.title
    if job.allreduce not in ("auto", "ring", "tree"):
        return f"all-reduce {job.allreduce}"
    if job.schedule in ("gpipe", "axonn"):
        return f"schedule {job.schedule}"
    return ""


def spread(ratios: list[float]) -> float:
    """The factor that SHARE of `ratios`, measured over predicted seconds, keep: the smallest that a new row keeps as
    probably if it comes from where these came from (split conformal prediction; Lei et al., JASA 2018)."""
    sizes = sorted(abs(math.log(ratio)) for ratio in ratios)
    return math.exp(sizes[min(len(sizes), math.ceil((len(sizes) + 1) * SHARE)) - 1])
