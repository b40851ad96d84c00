"""Elementary edits of a joined iteration's graph, of which changes are composed. Each takes a `Joined` and returns
another; nothing is modified in place. `arrange` is the general one; the others are special cases of it.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from emulator.jobs.workload.graph import NO_MICRO_BATCH, NO_TRANSFER, Graph, Kind, Ops, Order, appended
from emulator.jobs.workload.graph import rows as picked
from emulator.traces.events import LaneKind
from emulator.traces.joined import GAP, Joined
from switchml.errors import ConfigError

OP_DEFAULTS = {"kind": Kind.COMPUTE, "collective": 0, "flops": 0.0, "bytes": 0.0, "priority": 0, "is_source": False}


def positive(value: float | None, what: str) -> float:
    """Return `value`; ConfigError if it is not above 0."""
    if value is None or not 0 < value < float("inf"):
        raise ConfigError(f"{what}: {value} is invalid; expected a number above 0")
    return float(value)


# Queries


def durations(joined: Joined) -> np.ndarray:
    """Return the duration of each op alone, float64 (ops,); 0 for members of collectives."""
    alone = joined.graph.ops.transfer == NO_TRANSFER
    return np.where(alone, joined.costs.op_type_s[joined.graph.ops.op_type], 0.0)


def computes(joined: Joined) -> np.ndarray:
    """Return which ops compute, bool (ops,): an accelerator's kernels if there are any, else the host's operators."""
    own = (joined.graph.op_kind() == Kind.COMPUTE) & (joined.graph.ops.transfer == NO_TRANSFER)
    on_device = own & is_on_device(joined)
    return on_device if on_device.any() else own


def is_on_device(joined: Joined) -> np.ndarray:
    """Return which ops' events ran on an accelerator, bool (ops,)."""
    return joined.lane_kinds() == LaneKind.DEVICE


def on_stream(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Return the op before and after on each op's stream in graph order, int64 (ops,) each; -1: none."""
    count = len(graph.ops)
    order = np.argsort(graph.ops.stream, kind="stable")
    same = np.diff(graph.ops.stream[order]) == 0
    previous, following = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    previous[order[1:][same]] = order[:-1][same]
    following[order[:-1][same]] = order[1:][same]
    return previous, following


def by_rank(graph: Graph, ops: np.ndarray, row: np.ndarray, seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return how often each rank runs `ops`, int (n,), of each row, int (n,), and their total duration: int64 and
    float64 (rows, ranks)."""
    ranks = len(graph.ranks)
    cell, cells = row * ranks + graph.op_rank()[ops], (int(row.max(initial=-1)) + 1) * ranks
    count, total_s = np.bincount(cell, minlength=cells), np.bincount(cell, seconds, minlength=cells)
    return count.reshape(-1, ranks), total_s.reshape(-1, ranks)


def latest(graph: Graph, at_s: np.ndarray) -> np.ndarray:
    """Return the maximum of `at_s`, float64 (ops,), over each transfer's members, float64 (transfers,); -inf without
    members."""
    last_s, members = np.full(len(graph.transfers), -np.inf), graph.ops.transfer != NO_TRANSFER
    with np.errstate(invalid="ignore"):  # NaN for an op that was not traced
        np.maximum.at(last_s, graph.ops.transfer[members], at_s[members])
    return last_s


def edges(ops: Ops) -> tuple[np.ndarray, np.ndarray]:
    """Return each dependency's op, and the op that it depends on, int64 (dependencies,) each."""
    return np.repeat(np.arange(len(ops)), np.diff(ops.dep_start)), ops.deps.astype(np.int64)


# Columns


def with_table(joined: Joined, table: str, **columns: object) -> Joined:
    """Return the graph with these columns of `table` ("ops", "op_types", …)."""
    changed = dataclasses.replace(getattr(joined.graph, table), **columns)
    return dataclasses.replace(joined, graph=dataclasses.replace(joined.graph, **{table: changed}))


def with_costs(joined: Joined, transfers: np.ndarray, **values: np.ndarray | float) -> Joined:
    """Set the cost of the collectives `transfers`, int (n,): column of `Costs` → a number, or an array (n,)."""
    columns = {name: getattr(joined.costs, name).copy() for name in values}
    for name, value in values.items():
        columns[name][transfers] = value
    return dataclasses.replace(joined, costs=dataclasses.replace(joined.costs, **columns))


def with_durations(joined: Joined, ops: np.ndarray, seconds: np.ndarray) -> Joined:
    """Set the duration of `ops`, int (n,), without members of collectives, to `seconds`, float64 (n,)."""
    rows = joined.graph.ops.op_type[ops]
    names = joined.graph.op_types.name
    joined, first = with_rows(joined, [names[row] for row in rows], rows, seconds=seconds)
    op_type = joined.graph.ops.op_type.copy()
    op_type[ops] = first + np.arange(len(rows))
    return with_table(joined, "ops", op_type=op_type)


def with_transfer_seconds(joined: Joined, transfers: np.ndarray, seconds: np.ndarray | float) -> Joined:
    """Set the duration of the collectives `transfers`, regardless of their bytes."""
    return with_costs(joined, transfers, transfer_fixed_s=seconds, transfer_bytes=0.0)


# Rows


def with_rows(
    joined: Joined, names: Sequence[str], rows: np.ndarray | None = None, *, seconds: np.ndarray, **columns: object
) -> tuple[Joined, int]:
    """Append op types, one for each of `names`, and return the number of the first: copies of `rows`, int (n,), or rows
    of `OP_DEFAULTS`, except for `columns`. An op of such a row takes `seconds`, float64 (n,)."""
    op_types = joined.graph.op_types
    values = {name: getattr(op_types, name)[rows] for name in OP_DEFAULTS} if rows is not None else OP_DEFAULTS
    longer = appended(op_types, name=list(names), **(values | columns | {"seconds": seconds}))
    graph = dataclasses.replace(joined.graph, op_types=longer)
    costs = dataclasses.replace(joined.costs, op_type_s=np.concatenate([joined.costs.op_type_s, seconds]))
    return dataclasses.replace(joined, graph=graph, costs=costs), len(op_types)


def with_streams(joined: Joined, name: str) -> Joined:
    """Add a stream on each rank; that of rank r has the number `len(streams) + r`."""
    ranks = np.arange(len(joined.graph.ranks))
    longer = appended(joined.graph.streams, rank=ranks, name=[name] * len(ranks), order=Order.PROGRAM)
    return dataclasses.replace(joined, graph=dataclasses.replace(joined.graph, streams=longer))


def with_transfers(joined: Joined, numbers: np.ndarray) -> Joined:
    """Return only the collectives `numbers`, int (n,), in this order, possibly repeated. Ops keep their transfer
    numbers."""
    columns = ("transfer_fixed_s", "transfer_bytes", "transfer_bytes_per_s", "transfer_route")
    costs = dataclasses.replace(joined.costs, **{name: getattr(joined.costs, name)[numbers] for name in columns})
    graph = dataclasses.replace(joined.graph, transfers=picked(joined.graph.transfers, numbers))
    return dataclasses.replace(joined, graph=graph, costs=costs)


# Ops


def arrange(
    joined: Joined,
    order: np.ndarray,
    owner: np.ndarray,
    on: np.ndarray,
    *,
    op_type: np.ndarray | Sequence[int] = (),
    stream: np.ndarray | Sequence[int] = (),
    transfer: np.ndarray | int = NO_TRANSFER,
) -> Joined:
    """Return the ops `order`: numbers of present ops and, from `len(ops)` on, of new ones with these rows. Op
    `owner[i]` depends on op `on[i]`, in the same numbers; pairs with an op that is not in `order` are omitted."""
    ops, more = joined.graph.ops, len(op_type)
    place = np.full(len(ops) + more, -1, np.int64)
    place[order] = np.arange(len(order))
    owner, on = place[owner], place[on]
    both = (owner >= 0) & (on >= 0)
    pairs = np.unique(owner[both] * len(order) + on[both])
    owner, on = np.divmod(pairs, max(len(order), 1))

    def column(old: np.ndarray, new: Any) -> np.ndarray:
        return (np.concatenate([old, np.broadcast_to(new, more)]) if more else old)[order].astype(old.dtype)

    arranged = Ops(
        op_type=column(ops.op_type, op_type),
        stream=column(ops.stream, stream),
        transfer=column(ops.transfer, transfer),
        micro_batch=column(ops.micro_batch, NO_MICRO_BATCH),
        dep_start=np.searchsorted(owner, np.arange(len(order) + 1)).astype(np.int64),
        deps=on.astype(np.int32),
    )
    return dataclasses.replace(
        joined,
        graph=dataclasses.replace(joined.graph, ops=arranged),
        event=column(joined.event, GAP),
        start_s=column(joined.start_s, np.nan),
        end_s=column(joined.end_s, np.nan),
        gradients=[(int(place[op]), bucket, at) for op, bucket, at in joined.gradients if place[op] >= 0],
        earlier=_kept(joined.earlier, place),
    )


def _kept(earlier: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Return `Joined.earlier` of the remaining ops, with their new numbers."""
    stays = place[earlier[:, 0]] >= 0
    return np.stack([place[earlier[stays, 0]], earlier[stays, 1]], axis=1)


def with_edges(joined: Joined, owner: np.ndarray, on: np.ndarray) -> Joined:
    """Return the same ops with other dependencies: op `owner[i]` depends on op `on[i]`."""
    return arrange(joined, np.arange(len(joined.graph.ops)), owner, on)


def reorder(joined: Joined, key: np.ndarray) -> Joined:
    """Sort ops by `key`, float64 (ops,), stably. Streams run ops in that order."""
    return arrange(joined, np.argsort(key, kind="stable"), *edges(joined.graph.ops))


def append(
    joined: Joined, name: str, kind: Kind, seconds: np.ndarray, stream: np.ndarray, key: np.ndarray, owner, on
) -> Joined:
    """Add ops on `stream`, int (n,), with duration `seconds` at the position of `key`, both float64 (n,); op i of the
    old graph has the key i. All dependencies are (`owner`, `on`); new ops are numbered from `len(ops)` on."""
    count = len(joined.graph.ops)
    joined, first = with_rows(joined, [name] * len(seconds), kind=kind, seconds=np.asarray(seconds, np.float64))
    order = np.argsort(np.concatenate([np.arange(count), key]), kind="stable")
    return arrange(joined, order, owner, on, op_type=first + np.arange(len(seconds)), stream=stream)


def before(joined: Joined, ops: np.ndarray, name: str, kind: Kind, seconds: np.ndarray) -> Joined:
    """Insert an op before each of `ops` on its stream: it takes over the dependencies, and the op depends on it."""
    new, number, owner, on = _inserted(joined, ops)
    pairs = np.append(number[owner], ops), np.append(on, new)
    return append(joined, name, kind, seconds, joined.graph.ops.stream[ops], ops - 0.5, *pairs)


def after(joined: Joined, ops: np.ndarray, name: str, kind: Kind, seconds: np.ndarray) -> Joined:
    """Insert an op after each of `ops` on its stream: it depends on the op, and takes over the op's dependents."""
    new, number, owner, on = _inserted(joined, ops)
    pairs = np.append(owner, new), np.append(number[on], ops)
    moved = dataclasses.replace(
        joined, gradients=[(int(number[op]), bucket, at) for op, bucket, at in joined.gradients]
    )
    return append(moved, name, kind, seconds, joined.graph.ops.stream[ops], ops + 0.5, *pairs)


def _inserted(joined: Joined, ops: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return numbers of one new op for each of `ops`; numbers of all ops, with `ops` replaced by the new ones; and
    `edges`."""
    number = np.arange(len(joined.graph.ops))
    number[ops] = new = len(number) + np.arange(len(ops))
    return new, number, *edges(joined.graph.ops)


def drop(joined: Joined, ops: np.ndarray) -> Joined:
    """Remove `ops`, and collectives left empty. Dependents of a removed op, and its successor on the stream, inherit
    its dependencies."""
    graph = joined.graph
    is_dropped = np.zeros(len(graph.ops), bool)
    is_dropped[ops] = True
    previous, _ = on_stream(graph)
    waits: dict[int, set[int]] = {}  # removed op → the remaining ops that it depended on
    events: dict[int, set[int]] = {op: set() for op in np.flatnonzero(is_dropped).tolist()}  # … its earlier events
    for op, event in joined.earlier[is_dropped[joined.earlier[:, 0]]].tolist():
        events[op].add(event)
    for first in np.flatnonzero(is_dropped).tolist():
        stack = [first]
        while stack:
            op = stack[-1]
            deps = [dep for dep in (*graph.ops.before(op).tolist(), int(previous[op])) if dep >= 0]
            open_deps = [dep for dep in deps if is_dropped[dep] and dep not in waits]
            if not open_deps:
                waits[op] = set().union(*(waits[dep] if is_dropped[dep] else {dep} for dep in deps))
                events[op].update(*(events[dep] for dep in deps if is_dropped[dep]))
                stack.pop()
            stack += open_deps
    owner, on = edges(graph.ops)
    through = np.flatnonzero(is_dropped[on] & ~is_dropped[owner])
    behind = np.flatnonzero((previous >= 0) & ~is_dropped & is_dropped[previous])
    by_order = graph.streams.order[graph.ops.stream] == Order.PROGRAM
    follow = list(
        zip(np.append(owner[through], behind).tolist(), np.append(on[through], previous[behind]).tolist(), strict=True)
    )
    earlier = [(op, event) for op, dropped in follow for event in events[dropped]]
    joined = dataclasses.replace(
        joined, earlier=np.concatenate([joined.earlier, np.array(earlier, np.int64).reshape(-1, 2)])
    )
    bridges = [
        (op, dep)
        for op, dropped in follow
        for dep in waits[dropped]
        if graph.ops.stream[dep] != graph.ops.stream[op] or not by_order[op]  # otherwise implied by the stream's order
    ]
    more = np.array(bridges, np.int64).reshape(-1, 2)
    stays = np.flatnonzero(~is_dropped)
    return without_empty(arrange(joined, stays, np.append(owner, more[:, 0]), np.append(on, more[:, 1])))


def without_empty(joined: Joined) -> Joined:
    """Remove collectives without members."""
    transfer = joined.graph.ops.transfer
    number = np.full(len(joined.graph.transfers) + 1, NO_TRANSFER, np.int32)  # the last entry is for NO_TRANSFER
    used = np.unique(transfer[transfer != NO_TRANSFER])
    number[used] = np.arange(len(used))
    listed = [(op, int(number[bucket]), size) for op, bucket, size in joined.gradients]
    changed = with_table(with_transfers(joined, used), "ops", transfer=number[transfer])
    return dataclasses.replace(changed, gradients=listed)
