"""Selects the data-parallel ranks to replay where some of a job's ranks are stragglers.

Ranks of a tensor-parallel group synchronize after every half layer, so that a group is as slow as its slowest rank.
Replicas (pipelines of such groups) synchronize only to reduce gradients; replicas with the same slow stages behave
equally, and one of each kind is replayed. If those are still too many, some represent the others: the slowest, which
determine the iteration time, and a regular sample of the rest in order of duration, so that averages over ranks are
preserved. Expert- and context-parallel ranks synchronize in every layer: replicas that share them are sampled together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from emulator.jobs.costed import CostedJob
from emulator.jobs.workload.graph import Graph
from emulator.jobs.workload.job import Job

PLAYED_OPS = 6_000_000
"""Approximate number of replayed operations of all representatives."""
LEAST = 24
"""Minimum number of replayed replicas, if there are as many kinds."""


@dataclass(frozen=True)
class Replicas:
    """Replayed data-parallel ranks. Both arrays (replayed,)."""

    number: np.ndarray
    """int64: index of the replica."""
    weight: np.ndarray
    """float64: number of replicas it represents, including itself."""

    @classmethod
    def folded(cls, job: Job, fold: str) -> Replicas:
        """Return one replica for all, or every replica."""
        count = 1 if fold == "all" else job.dp
        return cls(np.arange(count), np.full(count, job.dp / count))


def slow_ranks(job: Job, share: float, seed: int) -> np.ndarray:
    """Return the slow ranks, bool (pp, dp, tp), at least one. Independent of folding."""
    slow = np.zeros(job.gpus, bool)
    slow[np.random.default_rng(seed).choice(job.gpus, max(1, round(share * job.gpus)), replace=False)] = True
    return slow.reshape(job.pp, job.dp, job.tp)


def ops_about(plan: CostedJob) -> int:
    """Estimate the number of operations of one replica: three for each step of a pass with its communication, and one
    for each bucket of gradients."""
    job, steps = plan.job, sum(len(stage.steps) for stage in plan.stages)
    has_buckets = job.dp > 1 and job.zero < 3 and job.overlap
    parameters = sum(stage.parameters for stage in plan.stages) if has_buckets else 0
    return 6 * job.micro_batches * steps + int(parameters / job.bucket_parameters(plan.model))


def slowness(graph: Graph, job: Job, slow: np.ndarray, factor: float) -> dict[int, float]:
    """Return rank of `graph` → factor on its compute time. A rank that represents its tensor-parallel group is slow
    where any rank of the group is."""
    is_folded = len(np.unique(graph.ranks.device // job.tp)) == len(graph.ranks)
    flags = slow.any(axis=2).ravel()[graph.ranks.device // job.tp] if is_folded else slow.ravel()[graph.ranks.device]
    return {int(rank): factor for rank in np.flatnonzero(flags)}


def sampled(plan: CostedJob, slow: np.ndarray, factor: float) -> Replicas:
    """Return replicas that represent all. `slow`: the result of `slow_ranks`."""
    job = plan.job
    block = min(job.dp, math.lcm(job.expert_span, job.cp))
    blocks = slow.any(axis=2).T.reshape(job.dp // block, block * job.pp)
    kinds, first, count = np.unique(blocks, axis=0, return_index=True, return_counts=True)
    elapsed_s = np.array([[stage.seconds for stage in plan.stages]])
    slowed_s = elapsed_s * np.where(kinds.reshape(-1, block, job.pp).any(axis=1), factor, 1.0)
    order = np.argsort(-((job.micro_batches - 1) * slowed_s.max(axis=1) + slowed_s.sum(axis=1)), kind="stable")
    first, count = first[order], count[order].astype(np.float64)
    most = max(LEAST, PLAYED_OPS // max(1, ops_about(plan) * block))
    if len(first) > most:
        slowest = most // 2
        # The others in parts of equal weight, each represented by the kind in its middle.
        middle = np.cumsum(count[slowest:]) - count[slowest:] / 2
        part = (middle / count[slowest:].sum() * (most - slowest)).astype(int)
        parts, weight = np.unique(part), np.bincount(part, weights=count[slowest:])
        middles = [int(own[len(own) // 2]) + slowest for own in (np.flatnonzero(part == one) for one in parts)]
        first = first[[*range(slowest), *middles]]
        count = np.concatenate([count[:slowest], weight[parts]])
    order = np.argsort(first)
    number = (first[order][:, None] * block + np.arange(block)).ravel()
    return Replicas(number, np.repeat(count[order], block))
