"""Several jobs on one cluster: which nodes each job gets, and which links jobs share: ports of shared nodes, and
uplinks of leaves. Contention within a job is already part of its own costs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emulator import datafile
from emulator.cluster.cluster import Cluster
from emulator.cluster.cost import Cost

PLACEMENTS = ("spread", "packed")
"""spread: nodes are assigned to the jobs in turn, as on a busy cluster; packed: jobs in sequence, sharing a node where
a job does not fill it."""
NO_LEAVES = ("single-switch", "torus")


def place(gpus: Sequence[int], cluster: Cluster, placement: str = "spread") -> list[np.ndarray]:
    """Return, for each job, the node of each of its accelerators, int64. Raises ConfigError where the jobs don't
    fit."""
    datafile.check_name("placement", placement, PLACEMENTS)
    per_node = cluster.accelerators_per_node
    if placement == "packed":
        cluster.nodes(sum(gpus))
        device = np.arange(sum(gpus)) // per_node
        return np.split(device, np.cumsum(gpus)[:-1])
    needed = [-(-count // per_node) for count in gpus]
    cluster.nodes(sum(needed) * per_node)
    turns = [(turn, job) for job, nodes in enumerate(needed) for turn in range(nodes)]
    node_of: list[list[int]] = [[] for _ in gpus]
    for node, (_, job) in enumerate(sorted(turns)):
        node_of[job].append(node)
    return [np.array(nodes)[np.arange(count) // per_node] for nodes, count in zip(node_of, gpus, strict=True)]


@dataclass(frozen=True)
class SharedFabric:
    """The shared links of nodes 0, 1, … of `cluster`, under leaves of `nodes_per_leaf` nodes each."""

    cluster: Cluster
    nodes: int

    @property
    def leaves(self) -> int:
        """Number of leaves with modeled uplinks."""
        between = self.cluster.between
        return 0 if between.kind in NO_LEAVES else -(-self.nodes // between.nodes_per_leaf)

    def names(self) -> list[str]:
        """Return the names of all links: node ports, then leaf uplinks."""
        return [f"node {node}" for node in range(self.nodes)] + [f"leaf {leaf}" for leaf in range(self.leaves)]

    def bytes_per_s(self) -> np.ndarray:
        """Return the bandwidth of each link in each direction, float64 (links,)."""
        between = self.cluster.between
        uplinks = between.nodes_per_leaf * between.node_bytes_per_s / between.oversubscription
        return np.concatenate([np.full(self.nodes, between.node_bytes_per_s), np.full(self.leaves, uplinks)])

    def load(self, nodes: np.ndarray, cost: Cost, groups: float) -> np.ndarray:
        """Return the bytes on each link per byte of a transfer, float64 (links,). The transfer represents `groups`
        equal ones whose members are on `nodes` (one entry per accelerator)."""
        loads = np.zeros(self.nodes + self.leaves)
        if not cost.leaving_bytes or not cost.bytes:
            return loads
        here = np.bincount(nodes, minlength=self.nodes)
        loads[: self.nodes] = groups * cost.leaving_bytes / cost.bytes * here / here.sum()
        leaf = np.arange(self.nodes) // self.cluster.between.nodes_per_leaf
        used = np.bincount(leaf[here > 0], minlength=self.leaves)
        if self.leaves and np.count_nonzero(used) > 1:  # otherwise traffic stays below one leaf
            crossing = np.bincount(leaf, weights=loads[: self.nodes], minlength=self.leaves)
            loads[self.nodes :] = crossing / np.maximum(used, 1) if cost.once_a_leaf else crossing
        return loads
