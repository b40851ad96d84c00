"""State of the event engine as tables of contiguous records: ops, streams, transfers, ranks. `begin` builds them from a
graph and its costs.
"""

from typing import NamedTuple

import numpy as np

from emulator.jobs.replay import fairness, queues
from emulator.jobs.replay.conditions import Flat
from emulator.jobs.replay.fairness import Sharing
from emulator.jobs.workload.costs import Costs
from emulator.jobs.workload.graph import Graph, Kind, Order
from switchml.runtime.jit import kernel

IDLE, ALONE, LATENCY, MOVING, FOLLOWING = range(5)
"""Phases of a stream: idle, or its op waits for its transfer; running an op without a transfer; leading a transfer in
its fixed time; leading it while bytes move; in a transfer that another stream leads."""

OP = np.dtype(
    [
        ("start_s", "f8"),  # when it took its stream; of a queued op, when it became ready; NaN: not yet
        ("end_s", "f8"),  # NaN: not yet
        ("after", "i8"),  # its dependents: from here in `World.after` to where those of the next op begin
        ("waits", "i4"),  # number of ops it still waits for
        ("following", "i4"),  # the next op on a stream in program order, −1: none
        ("stream", "i4"),
        ("op_type", "i4"),
        ("transfer", "i4"),
        ("priority", "i4"),
        ("child", "i4"),  # see queues.join
        ("sibling", "i4"),
    ],
    align=True,
)
STREAM = np.dtype(
    [
        ("remaining", "f8"),  # remaining seconds or bytes of the running op, at `since_s`
        ("since_s", "f8"),
        ("speed", "f8"),  # work seconds per second
        ("rank", "i4"),
        ("running", "i4"),  # the op that holds the stream, −1: none
        ("phase", "i4"),
        ("line", "i4"),  # first queued op, −1: none
        ("parked", "i4"),  # first complete transfer queued for the stream, −1: none
        ("takes_ready", "i4"),  # whether its order is READY
        ("is_dirty", "i4"),  # whether it must choose
    ],
    align=True,
)
TRANSFER = np.dtype(
    [
        ("start_s", "f8"),  # when it began; of a queued one, when it became complete; NaN: not yet
        ("fixed_s", "f8"),  # time before bytes move, or the whole duration without a route
        ("bytes", "f8"),
        ("limit", "f8"),  # bytes/s
        ("member", "i8"),  # its ops: from here in `World.member` to where those of the next one begin
        ("last", "i4"),  # the member that arrived last
        ("left", "i4"),  # members yet to arrive
        ("route", "i4"),  # −1: none
        ("slows", "i4"),  # whether it slows compute
        ("priority", "i4"),
        ("parked", "i4"),  # the next transfer queued for the same stream
    ],
    align=True,
)
RANK = np.dtype(
    [
        ("first", "i8"),  # ops without dependencies: from here in `World.first`
        ("stream", "i8"),  # its streams: from here in `World.rank_stream`
        ("pause", "i8"),  # −1 before its job begins, then twice the number of its next pause, plus 1 inside a pause
        ("slowing", "i4"),  # transfers in progress that slow its compute
        ("is_changed", "i4"),  # whether its speed may have changed
    ],
    align=True,
)
OP_TYPE = np.dtype([("seconds", "f8"), ("is_slowed", "i4")], align=True)
"""Duration of an op running alone, and whether communication slows it."""
CHOICE = np.dtype([("ready_s", "f8"), ("who", "i4"), ("number", "i4"), ("priority", "i4")], align=True)
"""A queued entry: `who` is an op, or −1 − a transfer; `number` is the op that defines its position in the graph."""

DIRTY, CHANGED, EVENTS, ENDED = range(4)
"""Indexes into `World.counts`."""


class World(NamedTuple):
    """Tables and state of a replay; each table has one extra record, so that runs of record i end where those of i + 1
    begin."""

    ops: np.ndarray
    after: np.ndarray  # int32
    streams: np.ndarray
    transfers: np.ndarray
    member: np.ndarray  # int32: the ops of each transfer, in the order of the graph
    ranks: np.ndarray
    rank_stream: np.ndarray  # int32: streams by rank
    first: np.ndarray  # int32: ops by rank
    op_types: np.ndarray
    items: np.ndarray
    heap: np.ndarray
    dirty: np.ndarray  # int32 (streams,): streams that must choose
    changed: np.ndarray  # int32 (ranks,): ranks whose speed may have changed
    choices: np.ndarray  # CHOICE (streams + transfers,): what dirty streams choose from
    choice_order: np.ndarray  # int32: indexes into `choices`
    counts: np.ndarray  # int64 (4,): dirty streams, changed ranks, events, ended ops
    now_s: np.ndarray  # float64 (1,)


def begin(
    graph: Graph, costs: Costs, flat: Flat, fixed_s: np.ndarray, route: np.ndarray, bytes: np.ndarray
) -> tuple[World, Sharing | None]:
    """Return the initial tables, and `Sharing` if any link is used. `fixed_s`, `route` and `bytes` are (transfers,),
    with noise applied."""
    count, streams, transfers, ranks = len(graph.ops), len(graph.streams), len(graph.transfers), len(graph.ranks)
    takes_ready = graph.streams.order == Order.READY
    kinds = graph.op_types.kind

    ops = np.zeros(count + 1, OP)
    ops["start_s"] = ops["end_s"] = np.nan
    ops["child"] = ops["sibling"] = -1
    for name in ("stream", "op_type", "transfer"):
        ops[name][:-1] = getattr(graph.ops, name)
    ops["priority"][:-1] = graph.op_types.priority[graph.ops.op_type]
    after = _link(ops, graph.ops.dep_start, graph.ops.deps, takes_ready)

    table = np.zeros(transfers + 1, TRANSFER)
    table["start_s"], table["last"], table["parked"] = np.nan, -1, -1
    table["member"], member = grouped(graph.ops.transfer, transfers)
    table["left"][:-1] = np.diff(table["member"])
    if flat.slowdown.any():
        table["slows"][:-1] = np.isin(kinds, (Kind.COLLECTIVE, Kind.SEND, Kind.RECV))[graph.transfers.op_type]
    table["priority"][:-1] = graph.op_types.priority[graph.transfers.op_type]
    for name, values in (
        ("fixed_s", fixed_s),
        ("bytes", bytes),
        ("limit", costs.transfer_bytes_per_s),
        ("route", route),
    ):
        table[name][:-1] = values

    rank_table = np.zeros(ranks + 1, RANK)
    first = np.flatnonzero(ops["waits"][:-1] == 0).astype(np.int32)
    rank_table["first"], by_rank = grouped(graph.streams.rank[graph.ops.stream[first]], ranks)
    rank_table["stream"], rank_stream = grouped(graph.streams.rank, ranks)
    rank_table["pause"] = -1

    stream_table = np.zeros(streams + 1, STREAM)
    stream_table["running"] = stream_table["line"] = stream_table["parked"] = -1
    stream_table["rank"][:-1], stream_table["takes_ready"][:-1] = graph.streams.rank, takes_ready

    op_types = np.zeros(len(graph.op_types), OP_TYPE)
    op_types["seconds"], op_types["is_slowed"] = costs.op_type_s, np.isin(kinds, (Kind.COMPUTE, Kind.CODEC))

    items, heap = queues.empty_agenda(streams + ranks)
    for rank in range(ranks):
        queues.put(items, heap, streams + rank, flat.start_s[rank])
    used = route[route >= 0]
    hops = int(np.diff(costs.links.start)[used].max()) if len(used) else 0
    world = World(
        ops=ops,
        after=after,
        streams=stream_table,
        transfers=table,
        member=member,
        ranks=rank_table,
        rank_stream=rank_stream,
        first=first[by_rank],
        op_types=op_types,
        items=items,
        heap=heap,
        dirty=np.zeros(streams, np.int32),
        changed=np.zeros(ranks, np.int32),
        choices=np.zeros(streams + transfers, CHOICE),
        choice_order=np.zeros(streams + transfers, np.int32),
        counts=np.zeros(4, np.int64),
        now_s=np.zeros(1),
    )
    return world, fairness.empty_sharing(costs.links, streams, hops) if len(used) else None


@kernel
def _link(ops, dep_start, deps, takes_ready):
    """Fill in `waits` (including the predecessor on a stream in program order), `following` and `after`; return the
    array that `after` indexes."""
    count = len(ops) - 1
    last = np.full(len(takes_ready), -1, np.int32)
    for op in range(count):
        ops[op].waits = dep_start[op + 1] - dep_start[op]
        ops[op].following = -1
        for i in range(dep_start[op], dep_start[op + 1]):
            ops[deps[i] + 1].after += 1
        stream = ops[op].stream
        if not takes_ready[stream]:
            if last[stream] >= 0:
                ops[last[stream]].following = op
                ops[op].waits += 1
            last[stream] = op
    for op in range(count):
        ops[op + 1].after += ops[op].after
    # Fill each run from its end; afterwards, `after` of an op is the start of its run.
    after = np.empty(len(deps), np.int32)
    for op in range(count - 1, -1, -1):
        for i in range(dep_start[op], dep_start[op + 1]):
            ops[deps[i] + 1].after -= 1
            after[ops[deps[i] + 1].after] = op
    for op in range(count):
        ops[op].after = ops[op + 1].after
    ops[count].after = len(deps)
    return after


@kernel
def grouped(label, count):
    """Return the indexes with each label from 0 to count − 1, as runs: int64 (count + 1,), int32. Negative labels are
    omitted."""
    start = np.zeros(count + 2, np.int64)
    for i in range(len(label)):
        if label[i] >= 0:
            start[label[i] + 2] += 1
    for i in range(count + 1):
        start[i + 1] += start[i]
    who = np.empty(start[count + 1], np.int32)
    for i in range(len(label)):
        if label[i] >= 0:
            who[start[label[i] + 1]] = i
            start[label[i] + 1] += 1
    return start[:-1], who
