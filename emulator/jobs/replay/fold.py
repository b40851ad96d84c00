"""Folds equivalent ranks of any graph, such as imported traces, into one representative each.

Color refinement: ranks start with one color if they run the same ops in the same order at the same cost; then two keep
one color only as long as, op by op, their transfers and dependencies have the same colors. The result is an equitable
partition, and the time of an op depends only on the times of those it waits for: so ops of one color start and end
together, and one rank of each color represents all. Anything that could make equal ranks differ prevents folding:
slowness is part of the first color, and where links are shared or transfers run on streams of order READY, ties are
broken by numbers, so nothing is folded.

In a ring of equal ranks the representative is its own neighbor: it takes part in a transfer twice, on two streams.
Engines replay that like any other graph; only `checks.check` rejects it.
"""

from dataclasses import dataclass, replace

import numpy as np

from emulator.jobs.replay.conditions import Conditions
from emulator.jobs.replay.tables import grouped
from emulator.jobs.workload.costs import NO_ROUTE, Costs
from emulator.jobs.workload.graph import NO_TRANSFER, Graph, Groups, Ops, Order, Transfers, rows


@dataclass(frozen=True)
class Folded:
    """A smaller graph with the makespan of the original."""

    graph: Graph
    costs: Costs
    conditions: Conditions
    representative: np.ndarray
    """int32 (ranks of the original graph,): the rank of `graph` that represents each."""
    op: np.ndarray
    """int32 (ops of the original graph,): the op of `graph` with the same times."""


def fold(graph: Graph, costs: Costs, conditions: Conditions | None = None) -> Folded:
    """Fold ranks as far as times are preserved exactly; a graph that cannot be folded is returned with all its
    ranks."""
    conditions = conditions or Conditions()
    if _is_particular(graph, costs, conditions):
        colour = np.arange(len(graph.ranks))
    else:
        colour = _colours(graph, costs, conditions)
    _, representatives, colour = np.unique(colour, return_index=True, return_inverse=True)
    order = np.argsort(representatives)  # representatives in the order of the graph
    number = np.empty(len(representatives), np.int32)
    number[order] = np.arange(len(representatives))
    return _quotient(graph, costs, conditions, representatives[order], number[colour])


def _is_particular(graph: Graph, costs: Costs, conditions: Conditions) -> bool:
    """Return whether equal ranks may behave differently."""
    chooses = graph.streams.order[graph.ops.stream] == Order.READY
    chosen_transfers = bool(np.any(chooses & (graph.ops.transfer != NO_TRANSFER)))
    moves = conditions.share_links and bool(np.any(costs.transfer_route != NO_ROUTE))
    return bool(conditions.jitter or conditions.comm_jitter or conditions.pauses or chosen_transfers or moves)


# Colors


def _colours(graph: Graph, costs: Costs, conditions: Conditions) -> np.ndarray:
    """Return the color of each rank, uint64 (ranks,): equal where ranks can be folded."""
    ops, rank = graph.ops, graph.op_rank()
    place = _places(rank, len(graph.ranks)).astype(np.uint64)
    stream = _places(graph.streams.rank, len(graph.ranks))[ops.stream]
    slowness = np.ones(len(graph.ranks))
    slowness[list(conditions.slowness)] = list(conditions.slowness.values())
    meets = np.flatnonzero(ops.transfer != NO_TRANSFER)
    transfer = ops.transfer[meets]
    waiting = np.repeat(np.arange(len(ops)), np.diff(ops.dep_start))

    own = _mixed(place, stream, ops.op_type, graph.streams.order[ops.stream])
    colour = _mixed(slowness, graph.ranks.job, graph.ranks.stage)
    colour = _mixed(colour, _summed(own, rank, len(colour)))
    cost = _mixed(graph.transfers.op_type, costs.transfer_fixed_s, costs.transfer_bytes, costs.transfer_bytes_per_s)
    count = 0
    while count < len(colours := np.unique(colour)):
        count = len(colours)
        op = _mixed(colour[rank], place)
        together = _mixed(cost, _summed(op[meets], transfer, len(cost)))
        seen = np.zeros(len(ops), np.uint64)
        seen[meets] = together[transfer]
        seen = _mixed(place, seen, _summed(op[ops.deps], waiting, len(ops)))
        colour = _mixed(colour, _summed(seen, rank, len(colour)))
    return colour


def _places(label: np.ndarray, count: int) -> np.ndarray:
    """Return the index of each entry among those with its label, in order, int64."""
    first, order = grouped(label, count)
    place = np.empty(len(label), np.int64)
    place[order] = np.arange(len(label)) - first[label[order]]
    return place


def _mixed(*columns: np.ndarray) -> np.ndarray:
    """Return a hash of each row, uint64 (SplitMix64's finalizer after each column)."""
    mixed = np.zeros((), np.uint64)
    for column in columns:
        column = np.ascontiguousarray(column)
        bits = column.view(np.uint64) if column.dtype == np.float64 else column.astype(np.int64).view(np.uint64)
        bits = column if column.dtype == np.uint64 else bits
        z = (bits ^ mixed) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed = z ^ (z >> np.uint64(31))
    return mixed


def _summed(values: np.ndarray, label: np.ndarray, count: int) -> np.ndarray:
    """Return the sum of the values of each label, uint64 (count,), independent of their order."""
    sums = np.zeros(count, np.uint64)
    np.add.at(sums, label, values)
    return sums


# The graph of representatives


def _quotient(
    graph: Graph, costs: Costs, conditions: Conditions, representatives: np.ndarray, number: np.ndarray
) -> Folded:
    """Build the graph of the ops of ranks `representatives`; `number` (ranks,) is the representative's index for each
    rank."""
    ops, rank = graph.ops, graph.op_rank()
    is_representative = np.zeros(len(graph.ranks), bool)
    is_representative[representatives] = True
    stays = is_representative[rank]
    chosen = np.flatnonzero(stays)
    # The representative's op at the same position.
    place = _places(rank, len(graph.ranks))
    first, by_rank = grouped(number[rank[chosen]], len(representatives))
    op = by_rank[first[number[rank]] + place]

    transfer, new_transfer = _transfers(ops, op, chosen, len(graph.transfers))
    streams = np.flatnonzero(is_representative[graph.streams.rank])
    stream_number = np.full(len(graph.streams), -1, np.int32)
    stream_number[streams] = np.arange(len(streams))
    counts = np.diff(ops.dep_start)
    waits = np.repeat(stays, counts)
    groups, group = _groups(graph, transfer, number)
    weight = np.bincount(number, weights=graph.ranks.weight, minlength=len(representatives))
    small = Graph(
        op_types=graph.op_types,
        ranks=replace(rows(graph.ranks, representatives), weight=weight),
        streams=replace(rows(graph.streams, streams), rank=number[graph.streams.rank[streams]]),
        groups=groups,
        transfers=Transfers(op_type=graph.transfers.op_type[transfer], group=group),
        ops=Ops(
            op_type=ops.op_type[chosen],
            stream=stream_number[ops.stream[chosen]],
            transfer=new_transfer,
            micro_batch=ops.micro_batch[chosen],
            dep_start=np.concatenate([[0], np.cumsum(counts[chosen])]),
            deps=op[ops.deps[waits]],
        ),
        job_names=graph.job_names,
    )
    each = ("transfer_fixed_s", "transfer_bytes", "transfer_bytes_per_s", "transfer_route")
    small_costs = replace(costs, **{name: getattr(costs, name)[transfer] for name in each})
    slow = {int(number[one]): factor for one, factor in conditions.slowness.items() if is_representative[one]}
    return Folded(small, small_costs, replace(conditions, slowness=slow), number, op)


def _transfers(ops: Ops, op: np.ndarray, chosen: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Merge transfers with the same representatives. Return the first of each (numbers in the original graph), int32;
    and for each chosen op the index of its merged transfer, int32."""
    members = np.flatnonzero(ops.transfer != NO_TRANSFER)
    least = np.full(count, len(op), np.int64)  # a transfer is identified by its first representative
    np.minimum.at(least, ops.transfer[members], op[members])
    named = np.full(len(op) + 1, -1, np.int64)
    # A representative's op is in one transfer only, so all transfers with one identifier are equivalent.
    names, first = np.unique(least, return_index=True)
    is_met = names < len(op)
    names, first = names[is_met], first[is_met]
    named[names] = np.arange(len(names))
    whose = ops.transfer[chosen]
    new = np.full(len(chosen), NO_TRANSFER, np.int32)
    new[whose != NO_TRANSFER] = named[least[whose[whose != NO_TRANSFER]]]
    return first.astype(np.int32), new


def _groups(graph: Graph, transfer: np.ndarray, number: np.ndarray) -> tuple[Groups, np.ndarray]:
    """Return the groups of representatives of the remaining transfers, without duplicates, and the group of each
    transfer."""
    used, group = np.unique(graph.transfers.group[transfer], return_inverse=True)
    members = [np.unique(number[graph.groups.members(one)]) for one in used]
    start = np.concatenate([[0], np.cumsum([len(each) for each in members])]).astype(np.int64)
    return (
        Groups(
            name=[graph.groups.name[one] for one in used],
            start=start,
            ranks=np.concatenate([*members, np.empty(0, np.int32)]).astype(np.int32),
            size=graph.groups.size[used],
        ),
        group.astype(np.int32),
    )
