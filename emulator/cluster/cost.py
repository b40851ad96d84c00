"""What a transfer costs, and the two quantities that every formula of `collectives.py` and `innetwork.py` is made of:
the rate at which a group's ranks leave their node, and the time that does not grow with size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from emulator.cluster.cluster import Interconnect
from emulator.cluster.topology import Place


@dataclass(frozen=True)
class Cost:
    """`fixed_s` and then `bytes` at `bytes_per_s`, so that whoever replays many flows at once can share the rate."""

    fixed_s: float
    bytes: float = 0.0
    bytes_per_s: float = math.inf
    leaving_bytes: float = 0.0
    """What goes through the ports of all its nodes together; 0: it stays inside a node."""
    once_a_leaf: bool = False
    """Whether nodes under one leaf hand it on to each other, so that it leaves the leaf with what leaves one node."""

    @property
    def seconds(self) -> float:
        return self.fixed_s + self.bytes / self.bytes_per_s

    def plus(self, other: Cost) -> Cost:
        """One after the other; the bytes are those of the slower one."""
        slow, fast = (
            (self, other) if self.bytes / self.bytes_per_s >= other.bytes / other.bytes_per_s else (other, self)
        )
        return Cost(
            self.fixed_s + other.fixed_s + fast.bytes / fast.bytes_per_s,
            slow.bytes,
            slow.bytes_per_s,
            self.leaving_bytes + other.leaving_bytes,
            all(one.once_a_leaf for one in (self, other) if one.leaving_bytes),
        )

    def leaves(self, bytes: float, once_a_leaf: bool = False) -> Cost:
        """The same, so many bytes of which go through the ports of nodes."""
        return replace(self, leaving_bytes=bytes, once_a_leaf=once_a_leaf)


FREE = Cost(0.0)


def slowest(size_bytes: float, fixed_s: float, *transfers_s: float) -> Cost:
    """The slowest of several pipelined transfers."""
    longest_s = max(transfers_s)
    return Cost(fixed_s, size_bytes, size_bytes / longest_s) if longest_s > 0 else Cost(fixed_s)


def node_rate(links: Interconnect, where: Place, pattern: str) -> float:
    """Bytes a second each way that the ranks which a group has on one node get of its ports, with the node's other
    groups taking theirs. `pattern`: as `Fabric.share` takes it."""
    per_node = links.accelerators_per_node
    return links.between.node_bytes_per_s * (where.per_node / per_node) * links.between.share(where, per_node, pattern)


def latency_s(links: Interconnect, where: Place, steps: float) -> float:
    """Fixed time: the library's start inside the node, and `steps` messages between nodes."""
    hops = links.between.hops(where.span or where.nodes)
    inside = links.inside.latency_s + links.inside.latency_per_rank_s * min(where.ranks, links.accelerators_per_node)
    return inside + steps * hops * links.between.hop_s
