"""What a collective takes: closed forms for the algorithms that libraries use, on a group's place in a cluster.
In-network aggregation is in `innetwork.py`, measured tables are in `tables.py`.

A price is a fixed time and bytes at a rate, so that whoever replays many flows at once can share the rate. n ranks, S
bytes as in `emulator.workload.graph.Collective`: the whole buffer. Forms: Thakur et al., IJHPCA 2005; Patarasuk and
Yuan, JPDC 2009 (ring); Sanders et al., Parallel Computing 2009 (two trees).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from emulator import datafile
from emulator.cluster import tables
from emulator.cluster.cluster import Cluster
from emulator.cluster.topology import Place
from switchml.errors import ConfigError

ALGORITHMS = ("auto", "ring", "tree", "halving-doubling", "hierarchical", "switchml")
OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce", "barrier", "p2p")


@dataclass(frozen=True)
class Price:
    """`fixed_s` and then `bytes` at `bytes_per_s`."""

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

    def plus(self, other: Price) -> Price:
        """One after the other; the bytes are those of the slower one."""
        slow, fast = (
            (self, other) if self.bytes / self.bytes_per_s >= other.bytes / other.bytes_per_s else (other, self)
        )
        return Price(
            self.fixed_s + other.fixed_s + fast.bytes / fast.bytes_per_s,
            slow.bytes,
            slow.bytes_per_s,
            self.leaving_bytes + other.leaving_bytes,
            all(one.once_a_leaf for one in (self, other) if one.leaving_bytes),
        )

    def leaves(self, bytes: float, once_a_leaf: bool = False) -> Price:
        """The same, so many bytes of which go through the ports of nodes."""
        return replace(self, leaving_bytes=bytes, once_a_leaf=once_a_leaf)


FREE = Price(0.0)


def price(cluster: Cluster, operation: str, size_bytes: float, where: Place, algorithm: str = "auto") -> Price:
    """What `operation` over `size_bytes` takes among the ranks of `where`. `algorithm` concerns all-reduce only;
    "auto" takes the faster of ring and tree, as NCCL's tuner means to. Raises ConfigError for unknown names."""
    if operation not in OPERATIONS:
        raise ConfigError(datafile.unknown("collective", operation, OPERATIONS))
    if algorithm not in ALGORITHMS:
        raise ConfigError(datafile.unknown("all-reduce", algorithm, ALGORITHMS))
    if where.ranks <= 1:
        return FREE
    if operation == "all_reduce":
        if algorithm == "switchml":
            from emulator.cluster.innetwork import aggregate

            return aggregate(cluster, size_bytes, where)
        if algorithm == "auto":
            candidates = ("ring",) if where.nodes == 1 else ("ring", "tree")
            return min((_ALL_REDUCE[name](cluster, size_bytes, where) for name in candidates), key=lambda p: p.seconds)
        return _ALL_REDUCE[algorithm](cluster, size_bytes, where)
    return _OTHERS[operation](cluster, size_bytes, where)


def node_rate(cluster: Cluster, where: Place, pattern: str) -> float:
    """Bytes a second each way that the ranks which a group has on one node get of its ports, with the node's other
    groups taking theirs."""
    mine = where.per_node / cluster.accelerators_per_node
    return (
        cluster.between.node_bytes_per_s * mine * cluster.between.share(where, cluster.accelerators_per_node, pattern)
    )


def latency_s(cluster: Cluster, where: Place, steps: float) -> float:
    """Fixed time: the library's start inside the node, and `steps` messages between nodes."""
    hops = cluster.between.hops(where.span or where.nodes)
    inside = cluster.inside.latency_s + cluster.inside.latency_per_rank_s * min(
        where.ranks, cluster.accelerators_per_node
    )
    return inside + steps * hops * cluster.between.hop_s


def _wire(cluster: Cluster, moved: float, size_bytes: float) -> float:
    """Seconds of a ring inside a node that sends `moved` bytes a rank and reads `size_bytes` of buffer."""
    return moved / cluster.inside.bytes_per_s + size_bytes / cluster.inside.local_bytes_per_s


def _bound(size_bytes: float, fixed_s: float, *transfers_s: float) -> Price:
    """The slowest of several pipelined transfers."""
    slowest = max(transfers_s)
    return Price(fixed_s, size_bytes, size_bytes / slowest) if slowest > 0 else Price(fixed_s)


def _ring(cluster: Cluster, size_bytes: float, where: Place, passes: float = 2.0) -> Price:
    """2(n-1)/n S past every rank, hence also out of every node. `passes` 1: reduce-scatter or all-gather, half of
    it."""
    n = where.ranks
    moved = passes * (n - 1) / n * size_bytes
    inside = _wire(cluster, moved, size_bytes * passes / 2)
    measured = _measured(cluster.folder, cluster.inside.tables) if cluster.inside.tables else {}
    if where.nodes == 1 and n in measured:
        latency, rate = measured[n].at(size_bytes)
        return Price(latency, size_bytes, rate * 2.0 / passes)
    if where.nodes == 1:
        return _bound(size_bytes, latency_s(cluster, where, 0), inside)
    between = moved / node_rate(cluster, where, "ring") + size_bytes * passes / 2 / cluster.inside.local_bytes_per_s
    found = _bound(size_bytes, latency_s(cluster, where, passes * (where.nodes - 1)), inside, between)
    return found.leaves(moved * where.nodes, once_a_leaf=True)


@cache
def _measured(folder: str, name: str) -> dict[int, tables.Curve]:
    """Curves fitted to a folder of nccl-tests tables, by number of ranks."""
    path = Path(name) if Path(name).is_absolute() else Path(folder) / name
    found: dict[int, tables.Curve] = {}
    for table in tables.read_all(path):
        if table.ranks in found:
            raise ConfigError(f"{path} has two tables of {table.ranks} ranks; put those of one machine into a folder")
        found[table.ranks] = tables.fit(table.size_bytes, table.seconds)
    return found


def _tree(cluster: Cluster, size_bytes: float, where: Place) -> Price:
    """Two binary trees over nodes, a chain inside each, half of the buffer along each tree. An inner node passes on
    twice what it has, so 2 S leave and enter it; with two nodes each has but one neighbour and S does."""
    chain = _wire(cluster, 2.0 * size_bytes if where.per_node > 1 else 0.0, size_bytes)
    if where.nodes == 1:
        return _bound(size_bytes, latency_s(cluster, where, 0), chain)
    volume = 1.0 if where.nodes == 2 else 2.0
    between = volume * size_bytes / node_rate(cluster, where, "tree") + size_bytes / cluster.inside.local_bytes_per_s
    fixed = latency_s(cluster, where, 2 * math.ceil(math.log2(where.nodes)))
    ring_inside = _wire(cluster, 2 * (where.per_node - 1) / where.per_node * size_bytes, size_bytes)
    return _bound(size_bytes, fixed, ring_inside, between).leaves(volume * size_bytes * where.nodes)


def _halving_doubling(cluster: Cluster, size_bytes: float, where: Place) -> Price:
    """Recursive halving, then doubling: log2 n steps each way. Ranks beyond a power of two first hand their buffer to
    a partner and get the sum back (Thakur et al., section 4.4)."""
    n = 2 ** int(math.log2(where.ranks))
    moved = 2.0 * (n - 1) / n * size_bytes + (2.0 * size_bytes if where.ranks > n else 0.0)
    inside = _wire(cluster, moved, size_bytes)
    if where.nodes == 1:
        return _bound(size_bytes, latency_s(cluster, where, 0), inside)
    nodes = 2 ** int(math.log2(where.nodes))
    crossing = where.per_node * (2.0 * (nodes - 1) / nodes * size_bytes / where.per_node)
    crossing += 2.0 * size_bytes if where.ranks > n else 0.0
    between = crossing / node_rate(cluster, where, "pairs")
    found = _bound(size_bytes, latency_s(cluster, where, 2 * math.ceil(math.log2(where.nodes))), inside + between)
    return found.leaves(crossing * where.nodes)


def _hierarchical(cluster: Cluster, size_bytes: float, where: Place) -> Price:
    """Reduce-scatter inside nodes, all-reduce of each shard between them, all-gather inside: one after the other."""
    if where.nodes == 1 or where.per_node == 1:
        return _ring(cluster, size_bytes, where)
    shards = where.per_node
    inside = Place(shards, 1, shards, 1)
    # Each rank's shard goes along a rail of its own; together they are S / shards for each of `shards` ports' shares.
    rail = Place(where.nodes, where.nodes, 1, where.span)
    between = _ring(cluster, size_bytes / shards, rail)
    between = between.leaves(between.leaving_bytes * shards, once_a_leaf=True)
    return _ring(cluster, size_bytes, inside, 2.0).plus(between)


def _scatter(cluster: Cluster, size_bytes: float, where: Place) -> Price:
    return _ring(cluster, size_bytes, where, 1.0)


def _all_to_all(cluster: Cluster, size_bytes: float, where: Place) -> Price:
    """Each rank sends S/n to every other: what stays inside the node and what leaves it go at the same time."""
    n, near = where.ranks, where.per_node
    inside = _wire(cluster, size_bytes * (near - 1) / n, size_bytes / 2)
    fixed = latency_s(cluster, where, 1)
    if where.nodes == 1:
        return _bound(size_bytes, fixed, inside)
    crossing = near * size_bytes * (n - near) / n
    found = _bound(size_bytes, fixed, inside, crossing / node_rate(cluster, where, "all"))
    return found.leaves(crossing * where.nodes)


def _broadcast(cluster: Cluster, size_bytes: float, where: Place) -> Price:
    """A pipelined chain: S into and out of every rank."""
    inside = _wire(cluster, size_bytes, 0.0)
    if where.nodes == 1:
        return _bound(size_bytes, latency_s(cluster, where, 0), inside)
    between = size_bytes / node_rate(cluster, where, "ring")
    found = _bound(size_bytes, latency_s(cluster, where, where.nodes - 1), inside, between)
    return found.leaves(size_bytes * where.nodes, once_a_leaf=True)


def _barrier(cluster: Cluster, size_bytes: float, where: Place) -> Price:
    return Price(latency_s(cluster, where, 2 * math.ceil(math.log2(max(2, where.nodes)))))


def _p2p(cluster: Cluster, size_bytes: float, where: Place) -> Price:
    """One rank to one other; between nodes it has its accelerator's share of the ports."""
    if where.nodes == 1:
        return _bound(size_bytes, cluster.inside.latency_s, size_bytes / cluster.inside.bytes_per_s)
    fixed = cluster.inside.latency_s + cluster.between.hops(where.span or where.nodes) * cluster.between.hop_s
    # Through the sender's port, and through the receiver's.
    return _bound(size_bytes, fixed, size_bytes / node_rate(cluster, where, "pairs")).leaves(2 * size_bytes)


_ALL_REDUCE = {"ring": _ring, "tree": _tree, "halving-doubling": _halving_doubling, "hierarchical": _hierarchical}
_OTHERS = {
    "reduce_scatter": _scatter,
    "all_gather": _scatter,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "reduce": _broadcast,
    "barrier": _barrier,
    "p2p": _p2p,
}
