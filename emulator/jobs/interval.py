"""How far off a predicted iteration may be: the spread of predictions of similar jobs that somebody measured. Four
in five of a group's rows lie within its interval, the same share above and below in logarithms. No constant was fitted
to these rows. The groups and their spread are data: `data/intervals.toml`, which `switchml validate intervals DIR
--write` makes. A job that no measured one is like gets the spread of rows that were as new to the emulator, and says
so: other code, experts, accelerators before any of their rows were known. A table of layers has none.
"""

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from emulator import datafile
from emulator.cluster.cluster import Cluster
from emulator.jobs.workload.implementations import implementations
from emulator.jobs.workload.job import Job
from emulator.jobs.workload.models import Model, Transformer

FILE = Path(__file__).parent / "data" / "intervals.toml"
SHARE = 0.8
"""Of measured rows, those inside."""
AMPERE, HOPPER = ("a100-40g", "a100-80g"), ("h100", "h100-grand-teton")
BLACKWELL = ("b200", "gb200")
"""Accelerators of the rows, or the cluster whose file describes its own."""
REACH = 4
"""A job on more than so many times the accelerators of its group's largest is unlike all of them."""
ONE_NODE, NODES, FSDP, TORCH = "one-node", "several-nodes", "fsdp", "torch"
CORE, CONTEXT, EXPERTS, OTHERS = "megatron-core", "context", "experts", "others"


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
    """Of an iteration's seconds, which four in five similar jobs kept; 0 and 0: there is none."""

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
    if not isinstance(model, Transformer):
        return Interval(
            0.0, 0.0, "no interval: no measured job is like this one (a network given as a table of layers)"
        )
    group, reason = _group(job, model, cluster, besides)
    low_s, high_s = iteration_s / group.spread, iteration_s * group.spread
    basis = f"{SHARE:.0%} of {group.rows} rows ({group.title}) were no more than {group.spread - 1:.0%} off"
    unlike = f"no measured job is like this one ({reason}); " if reason else ""
    return Interval(low_s, high_s, f"interval: {unlike}{basis}")


def _group(job: Job, model: Transformer, cluster: Cluster, besides: str = "") -> tuple[Group, str]:
    """Whose spread a job gets, and why none of its rows is like it."""
    own = groups()[kind(job, model, cluster)]
    reason = besides or _unlike(model, job, cluster)
    if not reason and job.gpus > REACH * own.most_gpus:
        reason = f"more than {own.most_gpus:,} accelerators"
    return (max(own, groups()[OTHERS], key=lambda one: one.spread) if reason else own), reason


def factor(model: Model, job: Job, cluster: Cluster) -> float | None:
    """By which a job's interval reaches up and down from what is predicted; None where it has none."""
    return _group(job, model, cluster)[0].spread if isinstance(model, Transformer) else None


def kind(job: Job, model: Transformer, cluster: Cluster) -> str:
    """The group of jobs like this one."""
    code, accelerator = job.implemented_by(model), cluster.accelerator
    is_half = job.precision in ("fp16", "bf16")
    if model.experts > 1:
        return EXPERTS
    if code == "megatron-core" and accelerator in (*HOPPER, *BLACKWELL):
        return CORE
    if code in ("torch", "compiled") and accelerator in HOPPER:
        return CONTEXT if job.cp > 1 else TORCH
    if job.cp > 1:
        return OTHERS
    if code.startswith("composer") and is_half and job.tp == job.pp == 1 and accelerator in (*AMPERE, *HOPPER):
        return FSDP
    if code == "megatron" and is_half and job.zero == 0 and cluster.accelerator == "a100-80g" and not job.flash(model):
        return ONE_NODE if job.gpus <= cluster.accelerators_per_node else NODES
    return OTHERS


def _unlike(model: Transformer, job: Job, cluster: Cluster) -> str:
    """Why no measured job is like this one; empty where some are."""
    if cluster.accelerator not in (*AMPERE, *HOPPER, *BLACKWELL):
        return cluster.device.title
    if kind(job, model, cluster) == OTHERS:
        code = f"{implementations()[job.implemented_by(model)].title} in {job.precision}"
        attention = job.attention_kernel(model)
        return f"{code}, zero {job.zero}, cp {job.cp}, attention {attention}, on {cluster.device.title}"
    if model.experts > 1 and cluster.accelerator in AMPERE:
        return f"experts on {cluster.device.title}"
    if job.allreduce not in ("auto", "ring", "tree"):
        return f"all-reduce {job.allreduce}"
    if job.lora:
        return "LoRA"
    if job.precision == "nvfp4":
        return f"precision {job.precision}"
    if job.schedule in ("gpipe", "axonn", "zb-h1"):
        return f"schedule {job.schedule}"
    return ""


def spread(ratios: list[float]) -> float:
    """The factor that SHARE of `ratios`, measured over predicted seconds, keep: the smallest that a new row keeps as
    probably if it comes from where these came from (split conformal prediction; Lei et al., JASA 2018)."""
    sizes = sorted(abs(math.log(ratio)) for ratio in ratios)
    return math.exp(sizes[min(len(sizes), math.ceil((len(sizes) + 1) * SHARE)) - 1])
