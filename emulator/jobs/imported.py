"""Costs for a graph that came from elsewhere: what its works take on a cluster's accelerator, and its transfers on the
cluster's links. Works that say how long they last keep that.
"""

from __future__ import annotations

import numpy as np

from emulator.cluster import kernels
from emulator.cluster.cluster import Cluster
from emulator.cluster.collectives import cost
from emulator.cluster.cost import Cost
from emulator.cluster.topology import Place, place
from emulator.workload.costs import NO_ROUTE, Costs
from emulator.workload.graph import Collective, Graph


def costs(
    graph: Graph,
    cluster: Cluster,
    strides: dict[int, int],
    *,
    precision: str = "fp16",
    allreduce: str = "auto",
    hierarchy: str = "auto",
) -> Costs:
    """Costs of `graph` on `cluster`. strides: group → how far apart its members are. A compute work is bound by its
    FLOPs or by its bytes, whichever takes longer (the roofline). Raises ConfigError for unknown names."""
    known: dict[tuple[int, int], Cost] = {}
    for key in set(zip(graph.transfers.work.tolist(), graph.transfers.group.tolist(), strict=True)):
        known[key] = _exchange(graph, cluster, strides, *key, allreduce, hierarchy)
    by_transfer = [
        known[key] for key in zip(graph.transfers.work.tolist(), graph.transfers.group.tolist(), strict=True)
    ]
    return Costs(
        work_s=_works_s(graph, cluster, precision),
        transfer_fixed_s=np.array([one.fixed_s for one in by_transfer]),
        transfer_bytes=np.array([one.bytes for one in by_transfer]),
        transfer_bytes_per_s=np.array([one.bytes_per_s for one in by_transfer]),
        transfer_route=np.full(len(by_transfer), NO_ROUTE, np.int32),
    )


def _works_s(graph: Graph, cluster: Cluster, precision: str) -> np.ndarray:
    works, constants, device = graph.works, cluster.software, cluster.device
    seconds = works.seconds.copy()
    uncosted = np.isnan(seconds) & (works.collective == Collective.NONE)
    if uncosted.any():  # else the precision is nobody's business
        rows = np.array([kernels.memory(float(size)) for size in works.bytes[uncosted]])
        moving_s = kernels.seconds(rows, device, constants, precision)
        computing_s = works.flops[uncosted] / device.sustained(precision, constants.gemm_efficiency)
        seconds[uncosted] = np.maximum(moving_s, computing_s)
    return seconds


def _exchange(
    graph: Graph, cluster: Cluster, strides: dict[int, int], work: int, group: int, allreduce: str, hierarchy: str
) -> Cost:
    collective = Collective(graph.works.collective[work])
    where = _place(graph, cluster, strides, group)
    return cost(cluster, collective.name.lower(), float(graph.works.bytes[work]), where, allreduce, hierarchy)


def _place(graph: Graph, cluster: Cluster, strides: dict[int, int], group: int) -> Place:
    """By the members' own places where all are in the graph, else by their stride."""
    size, per_node = int(graph.groups.size[group]), cluster.accelerators_per_node
    devices = graph.ranks.device[graph.groups.members(group)]
    if len(devices) < size:
        return place(size, strides.get(group, 1), per_node)
    nodes, counts = np.unique(devices // per_node, return_counts=True)
    return Place(size, len(nodes), int(counts.max()), int(nodes[-1] - nodes[0]) + 1)
