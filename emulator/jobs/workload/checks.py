"""Validates a graph before it is replayed: numbers out of range, cyclic dependencies, collectives with missing members,
communication without a producer on its rank. The first problem is raised, with the names of the affected ops and ranks.
"""

import numpy as np

from emulator.jobs.workload.graph import NO_TRANSFER, Collective, Graph, Kind
from switchml.errors import GraphError
from switchml.runtime.jit import kernel

SHOWN = 5
"""Maximum number of ops or ranks named in a message; the rest is counted."""


def check(graph: Graph) -> None:
    """Raise GraphError for the first inconsistency."""
    _check_numbers(graph)
    _check_acyclic(graph)
    _check_transfers(graph)
    _check_producers(graph)


def _check_numbers(graph: Graph) -> None:
    ops, transfers, groups = graph.ops, graph.transfers, graph.groups
    lengths = {len(ops.op_type), len(ops.stream), len(ops.transfer), len(ops.micro_batch), len(ops.dep_start) - 1}
    if len(lengths) > 1:
        raise GraphError(f"the arrays of ops have different lengths: {sorted(lengths)}")
    if len(ops) and (ops.dep_start[0] != 0 or ops.dep_start[-1] != len(ops.deps) or np.any(np.diff(ops.dep_start) < 0)):
        raise GraphError(f"dep_start must rise from 0 to the {len(ops.deps)} dependencies there are")
    for what, numbers, lowest, count, of in (
        ("an op type", ops.op_type, 0, len(graph.op_types), "op"),
        ("a stream", ops.stream, 0, len(graph.streams), "op"),
        ("a transfer", ops.transfer, NO_TRANSFER, len(transfers), "op"),
        ("an op to wait for", ops.deps, 0, len(ops), "dependency"),
        ("an op type", transfers.op_type, 0, len(graph.op_types), "transfer"),
        ("a group", transfers.group, 0, len(groups), "transfer"),
        ("a rank", groups.ranks, 0, len(graph.ranks), "group member"),
        ("a rank", graph.streams.rank, 0, len(graph.ranks), "stream"),
    ):
        wrong = np.flatnonzero((numbers < lowest) | (numbers >= count))
        if len(wrong):
            raise GraphError(f"{of} {wrong[0]} names {what} {numbers[wrong[0]]}, but there are {count}")
    for name in ("flops", "bytes", "seconds"):
        values = getattr(graph.op_types, name)
        wrong = np.flatnonzero((values < 0) | np.isinf(values))
        if len(wrong):
            what = graph.op_types.name[wrong[0]]
            raise GraphError(f"op type {what!r} has {values[wrong[0]]} {name}; expected at least 0")


def _check_acyclic(graph: Graph) -> None:
    ops = graph.ops
    of_op = np.repeat(np.arange(len(ops), dtype=np.int32), np.diff(ops.dep_start))
    if np.all(ops.deps < of_op):
        return  # every op comes after its dependencies, and streams run ops in order: no cycle
    stuck = np.flatnonzero(_left_over(ops.dep_start, ops.deps, ops.stream, graph.streams.order, len(graph.streams)))
    if len(stuck):
        names = _some(graph.op_name(op) for op in _circle(graph, stuck))
        raise GraphError(f"these ops wait for each other in a cycle: {names}")


@kernel
def _left_over(dep_start, deps, stream, order, streams):
    """Return the ops that are unreachable in dependency order, including the order of program-ordered streams, bool
    (ops,)."""
    count = len(stream)
    waits = np.zeros(count, np.int32)
    out_start = np.zeros(count + 2, np.int64)
    next_on_stream = np.full(count, -1, np.int32)
    last = np.full(streams, -1, np.int32)
    for op in range(count):
        waits[op] += dep_start[op + 1] - dep_start[op]
        for i in range(dep_start[op], dep_start[op + 1]):
            out_start[deps[i] + 2] += 1
        if order[stream[op]] == 0:
            if last[stream[op]] >= 0:
                next_on_stream[last[stream[op]]] = op
                waits[op] += 1
            last[stream[op]] = op
    for op in range(count + 1):
        out_start[op + 1] += out_start[op]
    out = np.empty(len(deps), np.int32)
    for op in range(count):
        for i in range(dep_start[op], dep_start[op + 1]):
            out[out_start[deps[i] + 1]] = op
            out_start[deps[i] + 1] += 1
    stack = np.empty(count, np.int32)
    depth = 0
    for op in range(count):
        if waits[op] == 0:
            stack[depth] = op
            depth += 1
    while depth:
        depth -= 1
        op = stack[depth]
        for i in range(out_start[op], out_start[op + 1]):
            waits[out[i]] -= 1
            if waits[out[i]] == 0:
                stack[depth] = out[i]
                depth += 1
        after = next_on_stream[op]
        if after >= 0:
            waits[after] -= 1
            if waits[after] == 0:
                stack[depth] = after
                depth += 1
    return waits > 0


def _circle(graph: Graph, stuck: np.ndarray) -> list[int]:
    """Return ops that wait for each other, found by walking from a stuck op to its blocker until an op repeats."""
    is_stuck = np.zeros(len(graph.ops), bool)
    is_stuck[stuck] = True
    op, seen = int(stuck[0]), []
    while op not in seen:
        seen.append(op)
        waits_for = [int(other) for other in graph.ops.before(op) if is_stuck[other]]
        same_stream = stuck[(graph.ops.stream[stuck] == graph.ops.stream[op]) & (stuck < op)]
        op = waits_for[0] if waits_for else int(same_stream[-1])
    return seen[seen.index(op) :]


def _check_transfers(graph: Graph) -> None:
    ops, transfers, groups = graph.ops, graph.transfers, graph.groups
    members = np.flatnonzero(ops.transfer != NO_TRANSFER)
    came = np.bincount(ops.transfer[members], minlength=len(transfers))
    expected = np.diff(groups.start)[transfers.group] if len(transfers) else np.empty(0, np.int64)
    for transfer in np.flatnonzero(came != expected)[:1]:
        there = set(graph.streams.rank[ops.stream[ops.transfer == transfer]].tolist())
        missing = [rank for rank in groups.members(transfers.group[transfer]).tolist() if rank not in there]
        group = groups.name[transfers.group[transfer]]
        what = f"{graph.op_types.name[transfers.op_type[transfer]]!r} (transfer {transfer}, {group})"
        raise GraphError(
            f"{what} has {came[transfer]} members, expected {expected[transfer]}"
            + (f"; no op of rank {_some(missing)}" if missing else "; a rank takes part twice")
        )
    # There are as many members as ranks: they are exactly the group's ranks if each (transfer, rank) pair belongs to
    # the group and is unique.
    group = transfers.group[ops.transfer[members]].astype(np.int64)
    rank = graph.streams.rank[ops.stream[members]]
    in_groups = np.repeat(np.arange(len(groups)), np.diff(groups.start)) * len(graph.ranks) + groups.ranks
    stranger = np.flatnonzero(~np.isin(group * len(graph.ranks) + rank, in_groups))
    for i in stranger[:1]:
        name = groups.name[group[i]]
        raise GraphError(f"{graph.op_name(members[i])} takes part in a transfer of {name}, where its rank is no member")
    pairs = np.sort(ops.transfer[members].astype(np.int64) * len(graph.ranks) + rank)
    for pair in pairs[1:][np.diff(pairs) == 0][:1]:
        transfer, rank = divmod(int(pair), len(graph.ranks))
        what = graph.op_types.name[transfers.op_type[transfer]]
        raise GraphError(f"rank {rank} takes part twice in {what!r} ({transfer})")


def _check_producers(graph: Graph) -> None:
    op_types = graph.op_types
    needs_one = np.isin(op_types.kind, (Kind.COLLECTIVE, Kind.SEND)) & ~op_types.is_source
    needs_one &= op_types.collective != Collective.BARRIER
    has_none = np.diff(graph.ops.dep_start) == 0
    orphans = np.flatnonzero(needs_one[graph.ops.op_type] & has_none)
    if len(orphans):
        raise GraphError(
            f"{len(orphans)} communication ops depend on nothing and would start at once, first: "
            f"{graph.op_name(orphans[0])}; give them a dependency, or mark the op type as a source"
        )
    moves = np.isin(op_types.kind, (Kind.COLLECTIVE, Kind.SEND, Kind.RECV))
    alone = np.flatnonzero(moves[graph.ops.op_type] & (graph.ops.transfer == NO_TRANSFER))
    if len(alone):
        raise GraphError(f"{graph.op_name(alone[0])} is communication, but takes part in no transfer")


def _some(names) -> str:
    names = [str(name) for name in names]
    rest = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")
