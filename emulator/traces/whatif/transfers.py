"""Cost of an all-reduce by size: a fixed time and bytes at a rate, fitted to a trace's own all-reduces. Overlapping
ones share the network, so the fit uses the time during which any was in progress, not the individual durations.
"""

import numpy as np

from emulator.jobs.workload.costs import NO_ROUTE, Costs
from emulator.jobs.workload.graph import Collective
from emulator.traces.intervals import busy
from emulator.traces.joined import Joined
from emulator.traces.network import TransferCost
from emulator.traces.whatif.edits import latest, with_costs
from switchml.errors import GraphError

MIN_FIXED_S = 3e-4
"""Minimum fixed time of a small all-reduce between hosts; half of the shortest traced one if that is less."""

MIN_LEFT = 0.05
"""Minimum share of a collective's duration that remains when its transfer is made faster."""


def repeated_s(transfer: TransferCost, ready_s: np.ndarray, size_bytes: np.ndarray) -> np.ndarray:
    """Return the time that sequential all-reduces, ready at `ready_s`, lose to guessed exponents, float64. While one
    queues behind others, their packets announce its exponents."""
    lost_s = np.zeros(len(size_bytes))
    free_s = -np.inf
    for i in np.argsort(ready_s, kind="stable").tolist() if transfer.repeat_share else ():
        begun_s = max(free_s, ready_s[i])
        announced = (begun_s - ready_s[i]) * transfer.bytes_per_s
        guessed = min(size_bytes[i], max(transfer.guessed_bytes - announced, 0.0))
        lost_s[i] = transfer.repeat_share * guessed / transfer.bytes_per_s
        free_s = begun_s + transfer.seconds(size_bytes[i]) + lost_s[i]
    return lost_s


def all_reduces(joined: Joined) -> np.ndarray:
    """Return the transfers that are all-reduces among several ranks, int64."""
    graph = joined.graph
    is_it = graph.op_types.collective[graph.transfers.op_type] == Collective.ALL_REDUCE
    return np.flatnonzero(is_it & (graph.groups.size[graph.transfers.group] > 1))


def transfer_s(costs: Costs) -> np.ndarray:
    """Return the duration of each transfer without contention, float64 (transfers,)."""
    return costs.transfer_fixed_s + costs.transfer_bytes / costs.transfer_bytes_per_s


def transfer_bytes(joined: Joined) -> np.ndarray:
    """Return message sizes, float64 (transfers,)."""
    graph = joined.graph
    return graph.op_types.bytes[graph.transfers.op_type]


def fit(joined: Joined, transfers: np.ndarray | None = None, most_bytes_per_s: float = np.inf) -> TransferCost:
    """Fit the cost of `transfers` (default: all all-reduces), by least squares with non-negative terms.
    `most_bytes_per_s`: the network's maximum rate, if known, as few noisy durations may suggest more. Raises GraphError
    if no transfer has a size and a duration."""
    count, moved, busy_s = _stretches(joined, transfers)
    fixed_s, per_byte_s = _least_squares(count, moved, busy_s)
    if per_byte_s < 1 / most_bytes_per_s:
        per_byte_s = 1 / most_bytes_per_s
        fixed_s = max(0.0, float(np.mean((busy_s - moved * per_byte_s) / count)))
    assumed = ""
    least_s = min(MIN_FIXED_S, 0.5 * float((busy_s / count).min()))
    if fixed_s < least_s:
        fixed_s = least_s
        per_byte_s = max((busy_s.sum() - fixed_s * count.sum()) / moved.sum(), 1 / most_bytes_per_s, 1e-15)
        assumed = (
            f"sizes of all-reduces do not tell latency from rate, so {fixed_s * 1e6:.0f} µs of each are assumed to be "
            "its fixed cost"
        )
    if per_byte_s <= 0:
        per_byte_s = 1e-15
    return TransferCost(float(fixed_s), float(1.0 / per_byte_s), assumed)


def changed_s(elapsed_s: np.ndarray, was_s: np.ndarray | float, now_s: np.ndarray | float) -> np.ndarray:
    """Return the durations of collectives that took `elapsed_s` after the model's estimate changes from `was_s` to
    `now_s`, float64."""
    return np.maximum(elapsed_s + now_s - was_s, MIN_LEFT * np.minimum(now_s, elapsed_s))


def used_bytes_per_s(joined: Joined) -> float:
    """Return the bytes of all all-reduces over the time during which any was in progress."""
    _, moved, busy_s = _stretches(joined, None)
    return float(moved.sum() / busy_s.sum())


def _stretches(joined: Joined, transfers: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return `busy` of `transfers` that move bytes."""
    transfers = all_reduces(joined) if transfers is None else transfers
    size = transfer_bytes(joined)[transfers]
    elapsed_s = transfer_s(joined.costs)[transfers]
    seen = (size > 0) & (elapsed_s > 0)
    if not seen.any():
        raise GraphError("the trace has no all-reduce with a size and a duration: the cost of one is unknown")
    transfers, size, elapsed_s = transfers[seen], size[seen], elapsed_s[seen]
    began_s = arrivals_s(joined)[transfers]
    if np.isnan(began_s).any():
        began_s = np.concatenate([[0.0], np.cumsum(elapsed_s[:-1])])
    return busy(began_s, elapsed_s, size)


def arrivals_s(joined: Joined) -> np.ndarray:
    """Return the traced arrival of each transfer's last member, float64 (transfers,)."""
    return latest(joined.graph, joined.start_s)


def _least_squares(count: np.ndarray, moved: np.ndarray, busy_s: np.ndarray) -> tuple[float, float]:
    """Return non-negative (seconds each, seconds per byte) for busy_s ≈ count · a + moved · b, with errors relative to
    busy_s."""
    rows = np.stack([count / busy_s, moved / busy_s], axis=1)
    ones = np.ones(len(busy_s))
    if len(ones) > 1 and np.linalg.matrix_rank(rows / rows.max(axis=0), tol=1e-6) == 2:
        fixed_s, per_byte_s = np.linalg.lstsq(rows, ones, rcond=None)[0]
        if fixed_s >= 0 and per_byte_s > 0:
            return float(fixed_s), float(per_byte_s)
        if per_byte_s <= 0:
            return float(rows[:, 0].sum() / (rows[:, 0] ** 2).sum()), 0.0
    return 0.0, float(rows[:, 1].sum() / (rows[:, 1] ** 2).sum())


def repriced(joined: Joined, transfer: TransferCost, transfers: np.ndarray | None = None) -> Joined:
    """Set the cost of `transfers` (default: all all-reduces) to that of `transfer` for their sizes, with announced
    exponents."""
    transfers = all_reduces(joined) if transfers is None else transfers
    return with_costs(
        joined,
        transfers,
        transfer_fixed_s=transfer.fixed_s,
        transfer_bytes=transfer_bytes(joined)[transfers],
        transfer_bytes_per_s=transfer.bytes_per_s,
        transfer_route=NO_ROUTE,
    )
