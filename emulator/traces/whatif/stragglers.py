"""What-if changes: slower ranks, or a straggler as fast as the others."""

from collections.abc import Iterable

import numpy as np

from emulator.jobs.workload.graph import NO_TRANSFER
from emulator.traces.events import LaneKind
from emulator.traces.joined import Joined
from emulator.traces.whatif.edits import by_rank, durations, positive, with_durations
from emulator.traces.whatif.serial import one_at_a_time
from switchml.errors import ConfigError


def slow(joined: Joined, factors: dict[int, float]) -> Joined:
    """Scale the duration of a rank's own ops, gaps included, by rank → factor."""
    _check_ranks(joined, factors)
    joined = one_at_a_time(joined)
    for rank, factor in factors.items():
        own = _own(joined, rank)
        joined = with_durations(joined, own, durations(joined)[own] * positive(factor, f"slowing rank {rank}"))
    return joined


def without_straggler(joined: Joined, rank: int) -> Joined:
    """Make a rank as fast as the median of the others: its total time for each kind of operation becomes theirs."""
    _check_ranks(joined, [rank])
    joined = one_at_a_time(joined)
    graph = joined.graph
    if len(graph.ranks) < 2:
        raise ConfigError("a single rank has no others to compare with")
    seconds = durations(joined)
    name = graph.op_types.by_name()[1][graph.ops.op_type]
    alone = np.flatnonzero(graph.ops.transfer == NO_TRANSFER)
    times, total_s = by_rank(graph, alone, name[alone], seconds[alone])
    number = _number(joined, rank)
    own_s = total_s[:, number]
    # Ranks without an operation are no measure of its speed.
    others_s = np.delete(np.where(times > 0, total_s, own_s[:, None]), number, axis=1)
    scale = np.divide(np.median(others_s, axis=1), own_s, out=np.ones(len(own_s)), where=own_s > 0)
    own = _own(joined, rank)
    return with_durations(joined, own, seconds[own] * scale[name[own]])


def _own(joined: Joined, rank: int) -> np.ndarray:
    """Return a rank's own ops, without those of its transports, int64."""
    graph, number = joined.graph, _number(joined, rank)
    transports = {lane.name for lane in joined.traces[number].lanes if lane.kind == LaneKind.TRANSPORT}
    is_transport = np.array([name in transports for name in graph.streams.name], bool)[graph.ops.stream]
    return np.flatnonzero((graph.op_rank() == number) & (graph.ops.transfer == NO_TRANSFER) & ~is_transport)


def _number(joined: Joined, rank: int) -> int:
    """Return the graph number of a rank of the job."""
    return int(np.flatnonzero(joined.graph.ranks.device == rank)[0])


def _check_ranks(joined: Joined, ranks: Iterable[int]) -> None:
    for rank in ranks:
        if rank not in joined.graph.ranks.device:
            there = ", ".join(map(str, joined.graph.ranks.device.tolist()))
            raise ConfigError(f"rank {rank} was not traced; there are {there}")
