"""How nodes hang together: how far apart the members of a group are, and what is left of their network ports' rate
when all groups of a job talk at once. Ranks are numbered node by node.
"""

from dataclasses import dataclass

from emulator import datafile
from emulator.ranges import FACTOR, RATE, SECONDS, Range, Ranged, number

KINDS = ("single-switch", "leaf-spine", "fat-tree", "rail-optimized", "dragonfly", "torus")


@dataclass(frozen=True)
class GroupLayout:
    """Where the members of a group sit: `ranks` of them on `nodes` nodes, `per_node` on each (the most, where they
    differ). Groups of a job tile its nodes, so that the other accelerators of these nodes are in groups that do the
    same at the same time."""

    ranks: int
    nodes: int
    per_node: int
    span: int = 0
    """How many consecutive nodes they lie within; 0: as many as they use."""


def place(ranks: int, stride: int, per_node: int) -> GroupLayout:
    """`ranks` members, `stride` ranks apart, on nodes of `per_node`: tensor-parallel groups have stride 1,
    data-parallel ones that of a tensor group, pipelines that of a stage."""
    if ranks == 1:
        return GroupLayout(1, 1, 1, 1)
    together = max(1, min(ranks, per_node // stride)) if stride < per_node else 1
    nodes = -(-ranks // together)
    return GroupLayout(ranks, nodes, together, max(nodes, -(-ranks * stride // per_node)))


@dataclass(frozen=True)
class Fabric(Ranged):
    """What joins nodes. Which parameters count depends on `kind`; the others are ignored."""

    kind: str
    title: str
    source: str
    ports_per_node: int = number(Range(1, 100_000))
    port_bps: float = number(RATE)
    """Bits a second each way."""
    efficiency: float = number(FACTOR)
    """What collectives sustain of the ports' rate."""
    hop_s: float = number(SECONDS)
    """Through one switch and its link, host software included."""
    cross_rail_efficiency: float = number(FACTOR, 1.0)
    """What is left of that where a group has more than one but not all accelerators of a node, so that its ring
    changes rails (rail-optimized)."""
    nodes_per_leaf: int = number(Range(1, 2**30), 16)
    oversubscription: float = number(FACTOR, 1.0)
    """Ports down to ports up at a leaf (leaf-spine, fat-tree) or between groups (dragonfly)."""
    leaves_per_pod: int = number(Range(1, 2**30), 16)
    """fat-tree; dragonfly: leaves of a group."""
    dimensions: int = number(Range(1, 16), 3)
    """torus."""
    host_s_per_byte: float = number(Range(0, 1), 0.0)
    """What a byte of a collective's buffer takes on the hosts, besides and not hidden by its way over ports: copies,
    sums. 0 where `efficiency` has it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        datafile.check_name("topology", self.kind, KINDS)

    @property
    def node_bytes_per_s(self) -> float:
        """Through all ports of a node, each way, as far as collectives get."""
        return self.ports_per_node * self.port_bps / 8 * self.efficiency

    def hops(self, span: int) -> int:
        """Switches on the way between the farthest of `span` consecutive nodes."""
        if span <= 1:
            return 0
        if self.kind == "single-switch":
            return 1
        if self.kind == "torus":
            return max(1, round(self.dimensions * span ** (1 / self.dimensions) / 2))
        if span <= self.nodes_per_leaf:
            return 1
        if self.kind == "fat-tree" and span > self.nodes_per_leaf * self.leaves_per_pod:
            return 5
        if self.kind == "dragonfly":
            return 2 if span <= self.nodes_per_leaf * self.leaves_per_pod else 5
        return 3

    def share(self, where: GroupLayout, per_node: int, pattern: str = "ring") -> float:
        """What is left of the rate of a node of `per_node` accelerators for a pattern that all groups run at once:
        `ring` (neighbours talk, most of them under one leaf), `tree` and `pairs` (pipeline neighbours and others far
        apart), `all` (everyone with everyone)."""
        if where.nodes <= 1 or self.kind == "single-switch":
            return 1.0
        span = where.span or where.nodes
        if self.kind == "torus":
            # A ring embeds in a torus; everyone with everyone is limited by the bisection, 2 N^((d-1)/d) links for N/2
            # nodes of 2 d links each (Dally and Towles, Principles and Practices of Interconnection Networks, ch. 5).
            bisection = 4.0 / span ** (1 / self.dimensions) / self.dimensions
            return 1.0 if pattern == "ring" else min(1.0, bisection * (2 if pattern == "tree" else 1))
        changes_rails = self.kind == "rail-optimized" and 1 < where.per_node < per_node
        rail = self.cross_rail_efficiency if changes_rails else 1.0
        if span <= self.nodes_per_leaf:
            return rail
        # A ring of consecutive nodes leaves each leaf once, with one node's rate, and finds all of its uplinks.
        crossing = 1.0 if pattern in ("all", "pairs", "tree") else 1.0 / self.nodes_per_leaf
        return rail * min(1.0, 1.0 / (self.oversubscription * crossing))
