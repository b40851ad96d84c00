"""Changes of the network: link rate or latency, all-reduce algorithm, number of ranks. The excess of a collective's
traced time over the model of its network (`network.py`) is kept on the new one.
"""

import dataclasses

import numpy as np

from emulator.cluster import cluster as clusters
from emulator.jobs.workload.graph import Collective
from emulator.traces.joined import Joined
from emulator.traces.network import Network
from emulator.traces.whatif.edits import positive, with_table, with_transfer_seconds
from emulator.traces.whatif.network import network_of, world_size
from emulator.traces.whatif.serial import one_at_a_time
from emulator.traces.whatif.transfers import all_reduces, arrivals_s, changed_s, repeated_s, transfer_bytes, transfer_s
from switchml.errors import ConfigError


def bandwidth(joined: Joined, *, bps: float | None = None, factor: float | None = None) -> Joined:
    """Set the link bandwidth to `bps`, or multiply it by `factor`."""
    network = network_of(joined)
    rate = bps / 8 if bps is not None else network.link_bytes_per_s * positive(factor, "bandwidth")
    return on(joined, dataclasses.replace(network, link_bytes_per_s=rate))


def latency(joined: Joined, *, seconds: float | None = None, factor: float | None = None) -> Joined:
    """Set the latency of each step of a collective to `seconds`, or multiply it by `factor`."""
    network = network_of(joined)
    each_s = seconds if seconds is not None else network.latency_s * positive(factor, "latency")
    return on(joined, dataclasses.replace(network, latency_s=each_s))


def allreduce(joined: Joined, algorithm: str = "", hierarchy: str = "") -> Joined:
    """Use another of `emulator.cluster.algorithms.ALGORITHMS` and HIERARCHIES for all-reduces, with the same links and
    the same costs per step and per byte that a host sends. Empty: unchanged, and hierarchy "auto" for a new algorithm.
    """
    network = network_of(joined)
    hierarchy = hierarchy or (network.hierarchy if algorithm in ("", network.algorithm) else "auto")
    other = dataclasses.replace(network, algorithm=algorithm or network.algorithm, hierarchy=hierarchy)
    if network.cluster is None:  # the hosts' cost was measured, and is proportional to the bytes they send
        count = world_size(joined)
        host_s_per_byte = network.host_s_per_byte * other.volume(count) / max(network.volume(count), 1e-18)
        other = dataclasses.replace(other, host_s_per_byte=host_s_per_byte)
    return on(joined, other)


def cluster(joined: Joined, name: str) -> Joined:
    """Use the network of a cluster, built in or a TOML file, whose nodes the ranks fill in order."""
    return on(joined, Network.of_cluster(clusters.load(name), network_of(joined)))


def ranks(joined: Joined, count: int) -> Joined:
    """Change the number of data-parallel ranks: groups of all ranks change their size, each rank does the same as
    before, and collectives are costed for the new size. Stragglers remain as traced."""
    if count < 1:
        raise ConfigError(f"{count} ranks: expected at least 1")
    traced = world_size(joined)
    sizes = joined.graph.groups.size.copy()
    whole = sizes == traced
    if not whole.any():
        raise ConfigError(f"no group of the trace has all {traced} ranks: larger groups can't be predicted")
    sizes[whole] = count
    changed = on(joined, network_of(joined), sizes)
    weight = changed.graph.ranks.weight * (count / traced)
    more = f"{count} ranks in place of {traced}: by symmetry, without more spread among them"
    return dataclasses.replace(with_table(changed, "ranks", weight=weight), assumptions=[*changed.assumptions, more])


def on(joined: Joined, network: Network, sizes: np.ndarray | None = None) -> Joined:
    """Return the same iteration on another network. `sizes`: new sizes of groups, int (groups,)."""
    traced = network_of(joined)
    is_same = (network.algorithm, network.hierarchy) == (traced.algorithm, traced.hierarchy)
    in_turn = one_at_a_time(joined)
    # Overlapping all-reduces still overlap on other links and among more ranks, and are scaled by the model's ratio.
    overlaps = in_turn is not joined and is_same
    joined = joined if overlaps else in_turn
    graph = joined.graph
    new_sizes = graph.groups.size if sizes is None else np.asarray(sizes, np.int32)
    transfers = np.flatnonzero(graph.op_types.collective[graph.transfers.op_type] != Collective.READ)
    group, collective = graph.transfers.group[transfers], graph.op_types.collective[graph.transfers.op_type[transfers]]
    size = transfer_bytes(joined)[transfers]
    rows = [size.tolist(), graph.groups.size[group].tolist(), new_sizes[group].tolist(), collective.tolist()]
    was_s = np.array([traced.seconds(size, count, kind) for size, count, _, kind in zip(*rows, strict=True)])
    now_s = np.array([network.seconds(size, count, kind) for size, _, count, kind in zip(*rows, strict=True)])
    elapsed_s = transfer_s(joined.costs)[transfers]
    if network.algorithm != traced.algorithm:
        was_s, now_s = (s + repeated_rounds_s(joined, one)[transfers] for s, one in ((was_s, traced), (now_s, network)))
    if overlaps:
        seconds = elapsed_s * np.divide(now_s, was_s, out=np.ones(len(was_s)), where=was_s > 0)
    else:
        seconds = changed_s(elapsed_s, was_s, now_s)
    changed = with_table(with_transfer_seconds(joined, transfers, seconds), "groups", size=new_sizes)
    return dataclasses.replace(changed, network=network)


def repeated_rounds_s(joined: Joined, network: Network) -> np.ndarray:
    """Return the time of all-reduces lost to repeated rounds on a network, float64 (transfers,). The first one's
    exponents are guessed; the others are assumed to queue behind it, so that theirs are announced."""
    lost_s = np.zeros(len(joined.graph.transfers))
    reduces = all_reduces(joined)
    reduces = reduces[np.argsort(arrivals_s(joined)[reduces], kind="stable")]
    size = transfer_bytes(joined)[reduces]
    lost_s[reduces] = repeated_s(network.transfer(world_size(joined)), np.zeros(len(reduces)), size)
    return lost_s
