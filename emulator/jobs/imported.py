"""Costs of an imported graph: ops on a cluster's accelerator, transfers on its links. Op types with a given duration
keep it.
"""

import numpy as np

from emulator.cluster import kernels
from emulator.cluster.cluster import Cluster
from emulator.cluster.collectives import cost
from emulator.cluster.topology import GroupLayout, place
from emulator.jobs.workload.costs import Costs
from emulator.jobs.workload.graph import Collective, Graph


def costs(
    graph: Graph,
    cluster: Cluster,
    strides: dict[int, int],
    *,
    precision: str = "fp16",
    allreduce: str = "auto",
    hierarchy: str = "auto",
) -> Costs:
    """Return costs of `graph` on `cluster`. strides: group → stride between its members' ranks. A compute op takes the
    longer of its FLOPs and its memory traffic (roofline). Raises ConfigError for unknown names."""
    pairs = np.stack([graph.transfers.op_type, graph.transfers.group], axis=1)
    kinds, kind = np.unique(pairs, axis=0, return_inverse=True)
    costed = [
        cost(
            cluster,
            Collective(graph.op_types.collective[op_type]).name.lower(),
            float(graph.op_types.bytes[op_type]),
            _place(graph, cluster, strides, group),
            allreduce,
            hierarchy,
        )
        for op_type, group in kinds.tolist()
    ]
    return Costs.of_kinds(_works_s(graph, cluster, precision), costed, kind.ravel())


def _works_s(graph: Graph, cluster: Cluster, precision: str) -> np.ndarray:
    op_types, constants, device = graph.op_types, cluster.software, cluster.device
    seconds = op_types.seconds.copy()
    uncosted = np.isnan(seconds) & (op_types.collective == Collective.NONE)
    if uncosted.any():  # otherwise the precision is irrelevant
        rows = np.array([kernels.memory(float(size)) for size in op_types.bytes[uncosted]])
        moving_s = kernels.seconds(rows, device, constants, precision)
        computing_s = op_types.flops[uncosted] / device.sustained(precision, constants.gemm_efficiency)
        seconds[uncosted] = np.maximum(moving_s, computing_s)
    return seconds


def _place(graph: Graph, cluster: Cluster, strides: dict[int, int], group: int) -> GroupLayout:
    """Return a group's placement: that of its members where all are in the graph, else derived from its stride."""
    size, per_node = int(graph.groups.size[group]), cluster.accelerators_per_node
    devices = graph.ranks.device[graph.groups.members(group)]
    if len(devices) < size:
        return place(size, strides.get(group, 1), per_node)
    nodes, counts = np.unique(devices // per_node, return_counts=True)
    return GroupLayout(size, len(nodes), int(counts.max()), int(nodes[-1] - nodes[0]) + 1)
