"""What if: a traced iteration with one thing changed. Every function takes a `Joined` and returns another; they can
follow one another in any order. What a change does not concern keeps its traced duration.

    faster = changes.bandwidth(joined, factor=2)
    replay(faster.graph, faster.costs).makespan_s
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from emulator.cluster import cluster as clusters
from emulator.traces.events import LaneKind
from emulator.traces.joined import GAP, Joined
from emulator.traces.kernels import on_matrix_units
from emulator.whatif import contention as competition
from emulator.whatif import network as networks
from emulator.whatif import transfers
from emulator.whatif.buckets import rebucket
from emulator.whatif.editing import in_front, op_seconds, with_meeting_seconds, with_seconds
from emulator.whatif.network import Network
from emulator.workload.graph import NO_MEETING, Kind
from switchml.errors import ConfigError

# The network


def with_network(joined: Joined, *, link_bps: float | None = None, per_host: int = 0) -> Joined:
    """The same, with what is known of its network: the rate of each host's link, ranks on each host."""
    return dataclasses.replace(joined, network=networks.fit(joined, link_bps, per_host))


def bandwidth(joined: Joined, *, bps: float | None = None, factor: float | None = None) -> Joined:
    """Links of `bps`, or `factor` times what they carry."""
    network = networks.known(joined)
    rate = bps / 8 if bps is not None else network.link_bytes_per_s * _positive(factor, "bandwidth")
    return networks.on(joined, dataclasses.replace(network, link_bytes_per_s=rate))


def latency(joined: Joined, *, seconds: float | None = None, factor: float | None = None) -> Joined:
    """Each step of a collective takes `seconds` besides its bytes, or `factor` times what it did."""
    network = networks.known(joined)
    each_s = seconds if seconds is not None else network.latency_s * _positive(factor, "latency")
    return networks.on(joined, dataclasses.replace(network, latency_s=each_s))


def allreduce(joined: Joined, algorithm: str = "", hierarchy: str = "") -> Joined:
    """All-reduces by another of `emulator.cluster.algorithms.ALGORITHMS` and HIERARCHIES, with the same links and the
    same costs of a step and a byte. Empty: as they are, and for a new algorithm "auto"."""
    network = networks.known(joined)
    hierarchy = hierarchy or (network.hierarchy if algorithm in ("", network.algorithm) else "auto")
    changed = dataclasses.replace(network, algorithm=algorithm or network.algorithm, hierarchy=hierarchy)
    return networks.on(joined, changed)


def cluster(joined: Joined, name: str) -> Joined:
    """The network of a cluster, built in or a TOML file, whose nodes the ranks fill in their order."""
    return networks.on(joined, Network.of_cluster(clusters.load(name), networks.known(joined)))


def ranks(joined: Joined, count: int) -> Joined:
    """As many ranks in data parallel: groups of all ranks grow or shrink, each rank does what it did, and collectives
    cost what they cost among so many. Which rank is slow, and by how much, stays as traced."""
    if count < 1:
        raise ConfigError(f"{count} ranks: expected at least 1")
    graph = joined.graph
    before = networks.world_size(joined)
    sizes = graph.groups.size.copy()
    whole = sizes == before
    if not whole.any():
        raise ConfigError(f"no group of the trace has all {before} ranks: nothing says what more of them would do")
    sizes[whole] = count
    changed = networks.on(joined, networks.known(joined), sizes)
    weight = changed.graph.ranks.weight * (count / before)
    graph = dataclasses.replace(changed.graph, ranks=dataclasses.replace(changed.graph.ranks, weight=weight))
    more = f"{count} ranks in place of {before}: by symmetry, without more spread among them"
    return dataclasses.replace(changed, graph=graph, assumptions=[*changed.assumptions, more])


def buckets(joined: Joined, caps_bytes: Sequence[float]) -> Joined:
    """DDP's buckets for these caps, of which the last repeats (`bucket_cap_mb=c`: one cap; its default: 1 MiB, then 25
    MiB). Where the iteration knows its `competition`, operators that all-reduces no longer disturb take less time."""
    joined = networks.one_at_a_time(joined)
    network = networks.known(joined)
    ops = joined.graph.ops
    reduces = np.flatnonzero(np.isin(ops.meeting, transfers.all_reduces(joined)))
    gaps = reduces[reduces > 0] - 1  # between a call and its all-reduce: the new ones' prices include it
    alone = (ops.stream[gaps] == ops.stream[gaps + 1]) & (ops.meeting[gaps] == NO_MEETING) & (joined.event[gaps] == GAP)
    joined = with_seconds(joined, gaps[alone], np.zeros(int(alone.sum())))
    world = networks.world_size(joined)
    if joined.competition is not None:
        joined = competition.relieved(joined)
    changed = dataclasses.replace(rebucket(joined, caps_bytes, network.transfer(world)), network=network)
    return changed if changed.competition is None else competition.disturbed(changed)


def codec(joined: Joined, wire_share: float, bytes_per_s: float, name: str = "codec") -> Joined:
    """Gradients compressed before each all-reduce: `wire_share` of their bytes are sent, and compressing and
    decompressing together take a rank one second for each `bytes_per_s` bytes."""
    _positive(wire_share, "a codec's share of bytes sent")
    _positive(bytes_per_s, "a codec's rate")
    joined = networks.one_at_a_time(joined)
    network = networks.known(joined)
    graph = joined.graph
    reduces = transfers.all_reduces(joined)
    sizes = graph.works.bytes[graph.meetings.work[reduces]]
    took_s = transfers.meeting_s(joined.costs)[reduces]
    groups = graph.groups.size[graph.meetings.group[reduces]]
    saved_s = [
        network.seconds(size, int(count)) - network.seconds(size * wire_share, int(count))
        for size, count in zip(sizes, groups, strict=True)
    ]
    seconds = np.maximum(took_s - saved_s, networks.LEAST_LEFT * took_s)
    joined = with_meeting_seconds(joined, reduces, seconds)
    members = np.flatnonzero(np.isin(graph.ops.meeting, reduces))
    spent_s = graph.works.bytes[graph.ops.work[members]] / bytes_per_s
    return dataclasses.replace(in_front(joined, members, name, Kind.CODEC, spent_s.tolist()), network=network)


# Machines


def accelerator(joined: Joined, matrix: float, memory: float | None = None) -> Joined:
    """Compute `matrix` times as fast; `memory`: for operators that are not matrix products (default: the same). On
    traces of accelerators it is their kernels, else what hosts run."""
    memory = matrix if memory is None else memory
    joined = networks.one_at_a_time(joined)
    which = computes(joined)
    is_matrix = on_matrix_units(joined.graph.works.name)[joined.graph.ops.work[which]]
    factor = np.where(is_matrix, _positive(matrix, "accelerator"), _positive(memory, "accelerator"))
    return with_seconds(joined, which, op_seconds(joined)[which] / factor)


def slow(joined: Joined, factors: dict[int, float]) -> Joined:
    """Rank → how many times longer all it does itself takes, gaps included."""
    _known_ranks(joined, factors)
    joined = networks.one_at_a_time(joined)
    for rank, factor in factors.items():
        which = _own(joined, rank)
        joined = with_seconds(joined, which, op_seconds(joined)[which] * _positive(factor, f"slowing rank {rank}"))
    return joined


def without_straggler(joined: Joined, rank: int) -> Joined:
    """A rank as fast as the median of the others, each kind of operation by itself: what it did of an operation in all
    becomes what the others did of it in all."""
    _known_ranks(joined, [rank])
    joined = networks.one_at_a_time(joined)
    others = [place for place in range(len(joined.graph.ranks)) if joined.graph.ranks.device[place] != rank]
    if not others:
        raise ConfigError("a single rank has no others to be as fast as")
    seconds, op_rank, names = op_seconds(joined), joined.graph.op_rank(), joined.graph.works.name
    sums: list[dict[str, float]] = [{} for _ in range(len(joined.graph.ranks))]
    for op in np.flatnonzero(joined.graph.ops.meeting == NO_MEETING).tolist():
        name = names[joined.graph.ops.work[op]]
        of_rank = sums[op_rank[op]]
        of_rank[name] = of_rank.get(name, 0.0) + float(seconds[op])
    which = _own(joined, rank)
    own = sums[_place(joined, rank)]
    scale = []
    for op in which.tolist():
        name = names[joined.graph.ops.work[op]]
        typical_s = float(np.median([sums[place].get(name, own[name]) for place in others]))
        scale.append(typical_s / own[name] if own[name] else 1.0)
    return with_seconds(joined, which, seconds[which] * np.array(scale))


def computes(joined: Joined) -> np.ndarray:
    """int64: the ops that compute: kernels of accelerators where there are any, else operators on hosts."""
    graph = joined.graph
    own = (graph.op_kind() == Kind.COMPUTE) & (graph.ops.meeting == NO_MEETING)
    rank = graph.op_rank()
    on_device = np.zeros(len(own), bool)
    for place, trace in enumerate(joined.traces):
        mine = np.flatnonzero(own & (rank == place) & (joined.event != GAP))
        if len(mine) and len(trace.lanes):
            kinds = np.array([int(lane.kind) for lane in trace.lanes])
            on_device[mine] = kinds[trace.events.lane[joined.event[mine]]] == LaneKind.DEVICE
    return np.flatnonzero(on_device if on_device.any() else own)


def _own(joined: Joined, rank: int) -> np.ndarray:
    """What a rank does by itself: not what its transports do."""
    graph, place = joined.graph, _place(joined, rank)
    lanes = joined.traces[place].lanes
    transports = {lane.name for lane in lanes if lane.kind == LaneKind.TRANSPORT}
    is_transport = np.array([name in transports for name in graph.streams.name], bool)[graph.ops.stream]
    return np.flatnonzero((graph.op_rank() == place) & (graph.ops.meeting == NO_MEETING) & ~is_transport)


def _place(joined: Joined, rank: int) -> int:
    """Where a rank of the job stands in the graph."""
    return int(np.flatnonzero(joined.graph.ranks.device == rank)[0])


def _known_ranks(joined: Joined, ranks) -> None:
    for rank in ranks:
        if rank not in joined.graph.ranks.device:
            there = ", ".join(map(str, joined.graph.ranks.device.tolist()))
            raise ConfigError(f"rank {rank} was not traced; there are {there}")


def _positive(value: float | None, what: str) -> float:
    if value is None or not 0 < value < np.inf:
        raise ConfigError(f"{what}: {value} makes no sense; expected a number above 0")
    return float(value)


__all__ = [
    "Network", "accelerator", "allreduce", "bandwidth", "buckets", "codec", "computes", "latency", "ranks", "slow",
    "with_network", "without_straggler",
]  # fmt: skip
