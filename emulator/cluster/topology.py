"""Network topologies: distance between the members of a group, and the share of port bandwidth left when all groups of
a job communicate at once. Ranks are numbered node by node.
"""

from dataclasses import dataclass

from emulator import datafile
from emulator.ranges import BYTES, FACTOR, RATE, SECONDS, Range, Ranged, number

KINDS = ("single-switch", "leaf-spine", "fat-tree", "rail-optimized", "dragonfly", "torus")


@dataclass(frozen=True)
class GroupLayout:
    """Placement of a group: `ranks` members on `nodes` nodes, `per_node` on each (the maximum, where they differ). A
    job's groups tile its nodes, so that the other accelerators of these nodes are in groups that do the same at the
    same time."""

    ranks: int
    nodes: int
    per_node: int
    span: int = 0
    """Number of consecutive nodes that contain the group; 0: `nodes`."""


def place(ranks: int, stride: int, per_node: int) -> GroupLayout:
    """Return the placement of `ranks` members, `stride` ranks apart, on nodes of `per_node`. Stride: 1 for
    tensor-parallel groups, the size of a tensor-parallel group for data-parallel ones, that of a stage for pipelines.
    """
    if ranks == 1:
        return GroupLayout(1, 1, 1, 1)
    together = max(1, min(ranks, per_node // stride)) if stride < per_node else 1
    nodes = -(-ranks // together)
    return GroupLayout(ranks, nodes, together, max(nodes, -(-ranks * stride // per_node)))


@dataclass(frozen=True)
class Fabric(Ranged):
    """The network between nodes. `kind` determines which parameters apply; the others are ignored."""

    kind: str
    title: str
    source: str
    ports_per_node: int = number(Range(1, 100_000))
    port_bps: float = number(RATE)
    """Bits per second in each direction."""
    efficiency: float = number(FACTOR)
    """Share of the port rate that collectives sustain."""
    hop_s: float = number(SECONDS)
    """Latency of one switch and its link, including host software."""
    cross_rail_efficiency: float = number(FACTOR, 1.0)
    """Share of the rate left to groups with several but not all accelerators of a node, whose ring changes rails
    (rail-optimized)."""
    nodes_per_leaf: int = number(Range(1, 2**30), 16)
    oversubscription: float = number(FACTOR, 1.0)
    """Ratio of downlink to uplink ports of a leaf (leaf-spine, fat-tree) or between groups (dragonfly)."""
    leaves_per_pod: int = number(Range(1, 2**30), 16)
    """For fat-tree; for dragonfly: leaves per group."""
    dimensions: int = number(Range(1, 16), 3)
    """For torus."""
    channel_bytes: float = number(BYTES, 0.0)
    """Buffers of all channels of a node, which a long message fills before it flows at the full rate. NCCL: 4 MiB for
    each of 8 (A100) or 16 (H100) channels. 0: included in `efficiency`."""
    host_s_per_byte: float = number(Range(0, 1), 0.0)
    """Host time per byte of a collective's buffer for copies and sums, not overlapped with the transfer. 0: included in
    `efficiency`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        datafile.check_name("topology", self.kind, KINDS)

    @property
    def node_bytes_per_s(self) -> float:
        """Bandwidth of all ports of a node in each direction, as sustained by collectives."""
        return self.ports_per_node * self.port_bps / 8 * self.efficiency

    def filling_bytes(self, crossing_bytes: float, share: float) -> float:
        """Return the bytes whose transfer takes as long as filling the pipeline of a message of which `crossing_bytes`
        leave a node, in a group that has `share` of the node's channels. Chunks shrink with the message: one of a third
        of the buffers fills half of them (`emulator/lab/validation/data/nccl_nodes.csv`)."""
        buffers = self.channel_bytes * share
        return buffers * crossing_bytes / (crossing_bytes + buffers / 3) if buffers else 0.0

    def hops(self, span: int) -> int:
        """Return the number of switches between the farthest of `span` consecutive nodes."""
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
        """Share of the bandwidth of a node of `per_node` accelerators left for a pattern that all groups run at once:
        `ring` (between neighbors, most of them under one leaf), `tree` and `pairs` (pipeline neighbors and other
        distant pairs), `all` (all-to-all)."""
        if where.nodes <= 1 or self.kind == "single-switch":
            return 1.0
        span = where.span or where.nodes
        if self.kind == "torus":
            # A ring embeds in a torus; all-to-all is limited by the bisection, 2 N^((d-1)/d) links for N/2 nodes of 2 d
            # links each (Dally and Towles, Principles and Practices of Interconnection Networks, ch. 5).
            bisection = 4.0 / span ** (1 / self.dimensions) / self.dimensions
            return 1.0 if pattern == "ring" else min(1.0, bisection * (2 if pattern == "tree" else 1))
        changes_rails = self.kind == "rail-optimized" and 1 < where.per_node < per_node
        rail = self.cross_rail_efficiency if changes_rails else 1.0
        if span <= self.nodes_per_leaf:
            return rail
        # A ring of consecutive nodes leaves each leaf once, with one node's rate, and can use all of its uplinks.
        crossing = 1.0 if pattern in ("all", "pairs", "tree") else 1.0 / self.nodes_per_leaf
        return rail * min(1.0, 1.0 / (self.oversubscription * crossing))
