"""Several jobs on one cluster: each emulated alone, then all concurrently, iteration after iteration, on shared links
(`cluster/fabric.py`) and slots of aggregating switches. The result is each job's iteration time with and without the
others.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from emulator import datafile
from emulator.cluster.cluster import Cluster
from emulator.cluster.fabric import SharedFabric, place
from emulator.jobs import iteration
from emulator.jobs.description import Request, load_cluster
from emulator.jobs.emulate import emulate
from emulator.jobs.emulation import Emulation
from emulator.jobs.replay.conditions import Conditions
from emulator.jobs.replay.engine import Replayed, replay
from emulator.jobs.workload.combine import merge, repeat
from emulator.jobs.workload.costs import NO_ROUTE, Costs, Links
from emulator.jobs.workload.graph import Graph
from switchml.errors import ConfigError

SHARES = ("all", "fabric", "slots")
ITERATIONS = 3
"""Simulated iterations of the slowest job; the others run equally long."""
MAX_ITERATIONS = 200
MAX_OPS = 20_000_000


@dataclass(frozen=True)
class Tenant:
    """Result for one of the concurrent jobs."""

    alone: Emulation
    """Emulation with exclusive use of all slots."""
    alone_s: float
    """Iteration time in the same placement, with exclusive use of all links and slots."""
    iteration_s: float
    """Average iteration time with all jobs running."""
    iterations: int
    """Number of iterations in that average."""
    name: str

    @property
    def slowdown(self) -> float:
        """Iteration time relative to the job running alone."""
        return self.iteration_s / self.alone_s

    def to_json(self) -> dict[str, Any]:
        """Return the job's plain values, with its iteration time alone and with the others."""
        samples_per_s = self.alone.plan.job.global_batch / self.iteration_s
        together = {"iteration_s": self.iteration_s, "alone_iteration_s": self.alone_s}
        together |= {"slowdown": self.slowdown, "iterations": self.iterations, "samples_per_s": samples_per_s}
        figures = self.alone.to_json()
        shown = ("model", "cluster", "gpus", "tp", "pp", "dp", "batch", "allreduce", "memory_bytes", "assumptions")
        return {"name": self.name, **together, **{key: figures[key] for key in shown}}


@dataclass(frozen=True)
class Tenancy:
    """Result of several jobs on one cluster."""

    tenants: list[Tenant]
    played: Replayed
    shared_links: list[str]
    assumptions: list[str]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "jobs": [tenant.to_json() for tenant in self.tenants],
            "shared_links": self.shared_links,
            "ops": len(self.played.graph.ops),
            "events": self.played.events,
            "wall_s": self.played.wall_s,
            "assumptions": self.assumptions,
        }


def together(
    requests: Sequence[Request],
    names: Sequence[str],
    *,
    share: str = "all",
    placement: str = "spread",
    progress: Callable[[int, int], None] | None = None,
    time_budget_s: float | None = None,
) -> Tenancy:
    """Emulate the jobs alone and concurrently. `share`: the shared resources, one of SHARES; `placement`: see
    `emulator.cluster.fabric.PLACEMENTS`. Raises ConfigError for jobs that can't be on one cluster."""
    _check(requests, share)
    cluster = load_cluster(requests[0])
    if share != "slots":
        # Uplinks are modeled as links here, so a job's own costs must not include oversubscription.
        cluster = dataclasses.replace(cluster, between=dataclasses.replace(cluster.between, oversubscription=1.0))
    alone = [emulate(request, cluster=cluster, time_budget_s=time_budget_s) for request in requests]
    crowded = _crowded(requests, alone, cluster) if share != "fabric" else alone
    nodes = place([one.plan.job.gpus for one in alone], cluster, placement)
    fabric = SharedFabric(load_cluster(requests[0]), 1 + max(int(own.max()) for own in nodes))
    links = np.flatnonzero(_used(alone, nodes, fabric)) if share != "slots" else np.empty(0, int)
    alone_s = [
        replay(one.played.graph, _routed(one, own, fabric, links), one.played.conditions).makespan_s
        for one, own in zip(alone, nodes, strict=True)
    ]
    routed = [_routed(one, own, fabric, links) for one, own in zip(crowded, nodes, strict=True)]

    wanted = [1 + math.ceil(ITERATIONS * max(alone_s) / own_s) for own_s in alone_s]
    affordable = [max(2, MAX_OPS // len(crowded) // len(one.played.graph.ops)) for one in crowded]
    times = [min(MAX_ITERATIONS, *each) for each in zip(wanted, affordable, strict=True)]
    whole = [repeat(one.played.graph, costs, count) for one, costs, count in zip(crowded, routed, times, strict=True)]
    graph, costs = merge([graph for graph, _ in whole], [costs for _, costs in whole])
    graph = dataclasses.replace(graph, job_names=list(names))
    played = replay(graph, costs, _conditions(crowded), progress=progress, time_budget_s=time_budget_s)
    ends = [_ends(played, job, count) for job, count in enumerate(times)]
    horizon_s = min(end[-1] for end in ends)
    counted = [max(1, int(np.searchsorted(end, horizon_s, side="right"))) for end in ends]
    tenants = [
        Tenant(one, own_s, float(end[count - 1] / count), count, name)
        for one, own_s, end, count, name in zip(alone, alone_s, ends, counted, names, strict=True)
    ]
    shared = [fabric.names()[link] for link in np.flatnonzero(_used(alone, nodes, fabric) > 1)] if len(links) else []
    return Tenancy(tenants, played, shared, _assumptions(share, placement, crowded, shared))


def _check(requests: Sequence[Request], share: str) -> None:
    datafile.check_name("share", share, SHARES)
    for what in ("cluster", "switch"):
        different = {str(getattr(request, what)): None for request in requests}
        if len(different) > 1:
            raise ConfigError(f"jobs on one cluster must have the same {what}, not {' and '.join(different)}")
    if len({request.noise.jitter for request in requests}) > 1:
        raise ConfigError("jobs on one cluster must have the same jitter: it is a property of the machines")


def _crowded(requests: Sequence[Request], alone: list[Emulation], cluster: Cluster) -> list[Emulation]:
    """Return the emulations with slots divided evenly among jobs that use in-network aggregation."""
    users = sum(request.job.allreduce == "switchml" for request in requests)
    if users < 2:
        return alone
    shared = []
    for request, one in zip(requests, alone, strict=True):
        if request.job.allreduce == "switchml" and request.network.jobs == 1:
            network = dataclasses.replace(request.network, jobs=users)
            one = emulate(dataclasses.replace(request, network=network), cluster=cluster)
        shared.append(one)
    return shared


def _conditions(jobs: list[Emulation]) -> Conditions:
    """Combine the conditions of all jobs, with consecutive rank and job numbers."""
    slowness: dict[int, float] = {}
    first = 0
    for one in jobs:
        slowness |= {first + rank: factor for rank, factor in one.played.conditions.slowness.items()}
        first += len(one.played.graph.ranks)
    slowdown = {job: one.played.conditions.slowdowns().get(-1, 0.0) for job, one in enumerate(jobs)}
    return dataclasses.replace(jobs[0].played.conditions, slowness=slowness, overlap_slowdown=slowdown)


def _ends(played: Replayed, job: int, times: int) -> np.ndarray:
    """Return the end of each iteration of a job, float64 (times,)."""
    of_job = played.graph.ranks.job[played.graph.op_rank()] == job
    return played.end_s[of_job].reshape(times, -1).max(axis=1)


# Links


def _used(jobs: list[Emulation], nodes: list[np.ndarray], fabric: SharedFabric) -> np.ndarray:
    """Return the number of jobs that load each link, int (links,). Ports used by a single job count as 0, as its costs
    include them."""
    users = np.zeros(len(fabric.names()), int)
    for one, own in zip(jobs, nodes, strict=True):
        users += _loads(one, own, fabric)[0].any(axis=0)
    users[: fabric.nodes][users[: fabric.nodes] < 2] = 0
    return users


def _routed(one: Emulation, nodes: np.ndarray, fabric: SharedFabric, links: np.ndarray) -> Costs:
    """Return the job's costs with routes over `links`."""
    load, kind = _loads(one, nodes, fabric)
    load = load[:, links]
    used = load > 0
    shared = Links(
        link_name=[fabric.names()[link] for link in links],
        link_bytes_per_s=fabric.bytes_per_s()[links],
        start=np.concatenate([[0], np.cumsum(used.sum(axis=1))]).astype(np.int64),
        link=np.nonzero(used)[1].astype(np.int32),
        share=load[used],
    )
    route = np.where(np.any(used, axis=1)[kind], kind, NO_ROUTE).astype(np.int32)
    return dataclasses.replace(one.played.costs, transfer_route=route, links=shared)


def _loads(one: Emulation, nodes: np.ndarray, fabric: SharedFabric) -> tuple[np.ndarray, np.ndarray]:
    """Return bytes on each link per byte of a transfer, float64 (kinds, links), and each transfer's kind. Transfers
    with the same group and op type are of one kind."""
    graph: Graph = one.played.graph
    costs = iteration.costs(one.plan)
    pairs = np.stack([graph.transfers.op_type, graph.transfers.group], axis=1)
    kinds, kind = np.unique(pairs, axis=0, return_inverse=True)
    load = np.zeros((len(kinds), len(fabric.names())))
    for number, (op_type, group) in enumerate(kinds.tolist()):
        if op_type not in costs:
            continue
        # A rank represents `weight` consecutive accelerators (emulator/jobs/iteration.py).
        members = graph.groups.members(group)
        weight = graph.ranks.weight[members].astype(int)
        device = np.concatenate([np.arange(n) + at for n, at in zip(weight, graph.ranks.device[members], strict=True)])
        load[number] = fabric.load(nodes[device], costs[op_type], weight.sum() / graph.groups.size[group])
    return load, kind.ravel()


def _assumptions(share: str, placement: str, jobs: list[Emulation], links: list[str]) -> list[str]:
    lines = []
    if share != "slots":
        how = "dealt to the jobs in turns" if placement == "spread" else "given to one job after the other"
        lines.append(f"nodes are {how}; links that two jobs use are shared max-min fair, {len(links)} of them")
    users = sum(one.plan.job.allreduce == "switchml" for one in jobs)
    if share != "fabric" and users > 1:
        lines.append(f"slots of the switches are divided evenly among {users} jobs, whether or not all of them stream")
    lines.append("all jobs begin at once; an iteration is the average while all of them run")
    return lines
