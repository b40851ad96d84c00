"""Break-even of in-network aggregation: the all-reduce by switches compared with the best host-based algorithm, over
group sizes, tensor sizes and clusters. All times are from `collectives.cost`.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from emulator.cluster.algorithms import HIERARCHIES
from emulator.cluster.cluster import Cluster, Switch
from emulator.cluster.collectives import cost
from emulator.cluster.fabric import NO_LEAVES
from emulator.cluster.innetwork import DENSE, Streaming
from emulator.cluster.topology import Fabric, place
from host_agent import tensors
from switchml.errors import ConfigError

T = TypeVar("T", Fabric, Switch)
BY_HOSTS = ("ring", "tree", "nvls", "hierarchical", "halving-doubling")
"""Algorithms that need no switch outside the nodes; nvls only where nodes have NVLink SHARP."""


@dataclass(frozen=True)
class Comparison:
    """In-network and host-based times of one all-reduce of `size_bytes` over `gpus` accelerators of `cluster`, in
    seconds."""

    cluster: str
    gpus: int
    size_bytes: int
    by_switches_s: float
    hierarchy: str
    """Hierarchy with the lower in-network time: "node" (a node's ranks reduce first) or "none"."""
    by_hosts_s: dict[str, float]
    """Seconds by algorithm of BY_HOSTS."""

    @property
    def best(self) -> str:
        """The fastest algorithm of `by_hosts_s`."""
        return min(self.by_hosts_s, key=self.by_hosts_s.__getitem__)

    @property
    def speedup(self) -> float:
        """Best host-based time over the in-network time; above 1, in-network aggregation is faster."""
        return self.by_hosts_s[self.best] / self.by_switches_s


def compare(
    cluster: Cluster, gpus: int, size_bytes: int, streaming: Streaming = DENSE, dtype: str = "float32"
) -> Comparison:
    """Compare one all-reduce by switches and by hosts. Raises ConfigError where the cluster is smaller than `gpus`.

    dtype: of the tensor; each lane of the switch holds one element, whatever its type (streaming.wire_bytes).
    """
    cluster.nodes(gpus)
    where = place(gpus, 1, cluster.accelerators_per_node)
    in_lanes = size_bytes / tensors.ITEM_BYTES[dtype] * 4
    by_switches = {
        how: cost(cluster, "all_reduce", in_lanes, where, "switchml", how, streaming).seconds
        for how in HIERARCHIES
        if how != "auto"
    }
    hierarchy = min(by_switches, key=by_switches.__getitem__)
    by_hosts = {
        name: cost(cluster, "all_reduce", size_bytes, where, name).seconds
        for name in BY_HOSTS
        if name != "nvls" or cluster.inside.multicast_bytes_per_s
    }
    return Comparison(cluster.name, gpus, size_bytes, by_switches[hierarchy], hierarchy, by_hosts)


def table(
    clusters: Iterable[Cluster],
    gpus: Sequence[int],
    sizes_bytes: Sequence[int],
    streaming: Streaming = DENSE,
    dtype: str = "float32",
) -> list[Comparison]:
    """Return `compare` for every combination of the arguments, clusters outermost, sizes innermost."""
    return [
        compare(cluster, count, size, streaming, dtype)
        for cluster in clusters
        for count in gpus
        for size in sizes_bytes
    ]


def changed(
    cluster: Cluster, port_bps: float | None = None, oversubscription: float | None = None, slots: int | None = None
) -> Cluster:
    """Return `cluster` with another port rate (bits per second in each direction), leaf oversubscription or number of
    switch slots; None: unchanged. Raises ConfigError where the fabric has no leaves."""
    if oversubscription is not None and cluster.between.kind in NO_LEAVES:
        raise ConfigError(
            f"oversubscription: {cluster.name} is a {cluster.between.kind}; expected a cluster with leaves, such as "
            "h100-ethernet"
        )
    between = {"port_bps": port_bps, "oversubscription": oversubscription}
    return dataclasses.replace(
        cluster, between=_with(cluster.between, between), switch=_with(cluster.switch, {"slots": slots})
    )


def _with(described: T, changes: Mapping[str, Any]) -> T:
    return dataclasses.replace(described, **{key: value for key, value in changes.items() if value is not None})
