"""Aligns the clocks of machines from their traces: computes the offset of each host's clock such that no effect comes
before its cause. Sources:

- messages recorded at both ends: the least difference between arrival and departure, in both directions; the true
  offset is estimated as the middle, as in NTP (RFC 5905). A capture's ranks ping rank 0 (host_agent/profile/clocks.py).
  Packets count, too: a result that a rank received depends on what all others had sent before,
- sends and receives: a receive can't end before its send began (dPRO, MLSys 2022, section 4.1),
- collectives: no rank ends before the last one began, which gives a middle between both directions for each message
  size; and all end at nearly the same time, so the median difference of ends is that of clocks. The scatter of the
  samples determines their weights.

All of it is one linear program: causality as constraints, the differences as a sum of absolute values, each divided by
its error. In sufficiently long traces, clocks also have a drift rate.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np

from emulator.traces.collectives import Key, ambiguous_groups, key_of
from emulator.traces.events import COMMUNICATION, RankTrace, WireWhat
from emulator.traces.readers.tables import Numbers
from switchml.errors import TraceError

MIN_DRIFT_S = 20.0
"""Shorter traces do not show clock drift: at 50 ppm that is a millisecond."""
WORTH_SAYING_S = 1e-3
SLACK_COST = 1e3
"""Cost per second of violated causality, relative to a second of difference between ends."""
MAX_TRANSFERS = 2000
MIDDLE_ERROR = 1 / 6
"""Error of the middle between two bounds, relative to their distance: as observed in captures on one machine."""
MIN_ERROR_S, MIN_END_ERROR_S = 1e-6, 5e-4
"""Lower limits of the errors of clock differences: from messages; from spans of collectives, whose threads wake up
systematically later on some hosts."""


@dataclass(frozen=True)
class Clocks:
    """Result of `align`."""

    offset_s: np.ndarray
    """float64 (ranks,): to be added to a trace's clock; 0 for the first host."""
    drift: np.ndarray
    """float64 (ranks,): additional seconds for each second since `since_s`."""
    since_s: float = 0.0
    """Reference time of the drift on the first trace's clock, from its epoch."""
    error_s: float = 0.0
    """Approximate error of the least certain pair of clocks."""
    assumptions: list[str] = field(default_factory=list)

    def shift_s(self, traces: Sequence[RankTrace], at_s: Sequence[float]) -> np.ndarray:
        """Return the offsets, float64 (ranks,), to add to times of each trace near `at_s` (in its own clock) to convert
        them to the first one's clock."""
        base_s = epochs_s(traces)
        at = np.asarray(at_s, np.float64) + base_s - self.since_s
        return base_s + self.offset_s + self.drift * at


def epochs_s(traces: Sequence[RankTrace]) -> np.ndarray:
    """Return each trace's epoch relative to the first one's, float64 (ranks,); if files lack it, iterations are assumed
    to begin together."""
    if all(trace.epoch_s for trace in traces):
        return np.array([trace.epoch_s - traces[0].epoch_s for trace in traces])
    return np.array([traces[0].steps[0, 0] - trace.steps[0, 0] for trace in traces])


def align(traces: Sequence[RankTrace]) -> Clocks:
    """Return the clock offsets of `traces`, sorted by rank; one for each host. Raises TraceError if the program has no
    solution."""
    hosts = _hosts(traces)
    count = int(hosts.max()) + 1
    none = Clocks(np.zeros(len(traces)), np.zeros(len(traces)))
    if count == 1:
        return none
    observations, base_s = _Observations(), epochs_s(traces)
    _observe_messages(observations, traces, hosts, base_s)
    _observe_transfers(observations, traces, hosts, base_s)
    at_s = [row[2] for row in (*observations.differences, *observations.bounds)]
    if not at_s:
        missing = "nothing in the traces tells how the clocks of their hosts differ: they are taken as they are"
        return replace(none, assumptions=[missing])
    since_s = float(np.median(at_s))
    theta, rate = _solve(observations, count, since_s, with_drift=np.ptp(at_s) >= MIN_DRIFT_S)
    error_s = max(observations.errors_s, default=0.0)
    about = [f"clocks of hosts are aligned to about {error_s * 1e3:.1f} ms"] if error_s > WORTH_SAYING_S else []
    return Clocks(theta[hosts], rate[hosts], since_s, error_s, about)


def _hosts(traces: Sequence[RankTrace]) -> np.ndarray:
    """Return the clock number of each trace, from 0, int64 (ranks,)."""
    numbers = Numbers()
    return np.array([numbers[trace.host or f"rank {trace.rank}"] for trace in traces])


@dataclass
class _Observations:
    """Observations of differences between clocks a and b."""

    differences: list[tuple[int, int, float, float, float]] = field(default_factory=list)
    """(a, b, at, value, error): an estimate of θ_a − θ_b."""
    bounds: list[tuple[int, int, float, float]] = field(default_factory=list)
    """(a, b, at, upper bound)."""
    errors_s: list[float] = field(default_factory=list)
    """Error for each pair of hosts with observations."""


def _observe_messages(
    observations: _Observations, traces: Sequence[RankTrace], hosts: np.ndarray, base_s: np.ndarray
) -> None:
    ends = message_ends(traces, base_s)
    for i, j in _pairs(sorted(ends)):
        if hosts[i] == hosts[j]:
            continue
        a, b, errors_s = int(hosts[i]), int(hosts[j]), []
        for there, back in both_ways(ends[i], ends[j], MIN_DRIFT_S / 2):
            # arrived at j − left at i ≥ θ_i − θ_j, and vice versa.
            observations.bounds += [(a, b, there.at_s, there.elapsed_s), (b, a, back.at_s, back.elapsed_s)]
            errors_s.append(max(abs(there.elapsed_s + back.elapsed_s) * MIDDLE_ERROR, MIN_ERROR_S))
            at_s = (there.at_s + back.at_s) / 2
            observations.differences.append((a, b, at_s, (there.elapsed_s - back.elapsed_s) / 2, errors_s[-1]))
        if errors_s:
            observations.errors_s.append(max(errors_s))


def _observe_transfers(
    observations: _Observations, traces: Sequence[RankTrace], hosts: np.ndarray, base_s: np.ndarray
) -> None:
    met: dict[Key, list[tuple[int, float, float, float]]] = defaultdict(list)
    ambiguous = ambiguous_groups(traces)
    for host, trace, from_s in zip(hosts.tolist(), traces, base_s.tolist(), strict=True):
        for event in np.flatnonzero(np.isin(trace.events.what, COMMUNICATION)).tolist():
            columns = (trace.events.start_s, trace.events.duration_s, trace.events.bytes)
            start_s, duration_s, size = (float(column[event]) for column in columns)
            row = (host, start_s + from_s, start_s + from_s + duration_s, size)
            met[key_of(trace, event, ambiguous)].append(row)
    several = [members for members in met.values() if len({host for host, *_ in members}) > 1]
    every = max(1, len(several) // MAX_TRANSFERS)
    pairs: dict[tuple[int, int], list[tuple[float, ...]]] = defaultdict(list)
    for members in several[::every]:
        begun: dict[int, float] = {}
        done: dict[int, float] = {}
        for host, start_s, end_s, _ in members:
            begun[host] = max(begun.get(host, -np.inf), start_s)
            done[host] = min(done.get(host, np.inf), end_s)
        size = members[0][3]
        for a, b in permutations(begun, 2):
            # b's end comes after a's start: end_b + θ_b ≥ start_a + θ_a
            observations.bounds.append((a, b, begun[a], done[b] - begun[a]))
            if a < b:
                pairs[a, b].append((size, begun[a], done[a], begun[b], done[b]))
    by_messages = bool(observations.errors_s)
    for (a, b), rows in pairs.items():
        error_s = _observe_pair(observations, a, b, np.array(rows))
        if not by_messages:
            observations.errors_s.append(error_s)


def _observe_pair(observations: _Observations, a: int, b: int, rows: np.ndarray) -> float:
    """Add estimates from the collectives of two hosts and return their error; rows (size, begun at a, done at a, begun
    at b, done at b)."""
    size, begun_a, done_a, begun_b, done_b = rows.T
    if np.ptp(done_a) >= MIN_DRIFT_S:
        ends_s = done_b - done_a
        error_s = max(_error_of_median_s(ends_s), MIN_END_ERROR_S)
        each_s = error_s * len(rows)
        observations.differences += [(a, b, at, value, each_s) for at, value in zip(done_a, ends_s, strict=True)]
        return error_s
    estimates = []
    for one in np.unique(size):
        mine = size == one
        ends_s = (done_b - done_a)[mine]
        there_s, back_s = (done_b - begun_a)[mine].min(), (done_a - begun_b)[mine].min()
        estimates.append((float(np.median(ends_s)), max(_error_of_median_s(ends_s), MIN_ERROR_S)))
        estimates.append((float(there_s - back_s) / 2, max(float(there_s + back_s) * MIDDLE_ERROR, MIN_ERROR_S)))
    values_s, errors_s = np.array(estimates).T
    shares = errors_s**-2.0
    error_s = max(float(shares.sum() ** -0.5), MIN_END_ERROR_S)
    observations.differences.append((a, b, float(np.median(done_a)), float(shares @ values_s / shares.sum()), error_s))
    return error_s


def _error_of_median_s(values_s: np.ndarray) -> float:
    """Return the standard error, from the median deviation; a single value has a nominal error of 1 ms."""
    deviation_s = float(np.median(np.abs(values_s - np.median(values_s))))
    if len(values_s) < 2:
        return 1e-3
    return 1.86 * deviation_s / float(np.sqrt(len(values_s)))


def _solve(
    observations: _Observations, count: int, since_s: float, *, with_drift: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return offsets and rates, float64 (hosts,) each. Variables: each θ, rate, absolute difference and slack."""
    from scipy.optimize import linprog
    from scipy.sparse import bmat, coo_matrix, diags, eye, hstack

    *differences, value, error_s = np.array(observations.differences, np.float64).reshape(-1, 5).T
    *bounds, at_most = np.array(observations.bounds, np.float64).reshape(-1, 4).T

    def clocks(a: np.ndarray, b: np.ndarray, at_s: np.ndarray) -> Any:
        """Return rows of θ_a − θ_b at given times."""
        row, sign = np.arange(len(a)), np.ones(len(a))
        pairs = coo_matrix((np.r_[sign, -sign], (np.r_[row, row], np.r_[a, b].astype(int))), (len(a), count))
        return hstack([pairs, diags(at_s - since_s) @ pairs])

    difference, absolute, slack = clocks(*differences), -eye(len(value)), -eye(len(at_most))
    # (θ_a − θ_b) − value and its negative are at most the absolute value.
    matrix = bmat([[difference, absolute, None], [-difference, absolute, None], [clocks(*bounds), None, slack]])
    cost = np.r_[np.zeros(2 * count), error_s.min(initial=1.0) / error_s, np.full(len(at_most), SLACK_COST)]
    free, fixed, rest = (None, None), (0.0, 0.0), (0.0, None)
    drifts = (-5e-4, 5e-4) if with_drift else fixed
    limits = [fixed, *[free] * (count - 1), fixed, *[drifts] * (count - 1), *[rest] * (len(cost) - 2 * count)]
    solution = linprog(cost, A_ub=matrix.tocsr(), b_ub=np.r_[value, -value, at_most], bounds=limits, method="highs")
    if not solution.success:
        raise TraceError(f"the clocks of the traces can't be aligned: {solution.message}")
    return solution.x[:count], solution.x[count : 2 * count]


# Messages


class Ends(NamedTuple):
    """One rank's ends of messages that were recorded at both ends, by its own clock: pings, and packets of the switchml
    transport, whose results arrive after the other ranks have sent their parts. Sorted by message, without duplicates.
    """

    sent: np.ndarray  # int64 (messages,): message numbers, the same for all ranks
    sent_s: np.ndarray  # float64 (messages,): time just before departure
    came: np.ndarray
    came_s: np.ndarray


class Least(NamedTuple):
    """The fastest message from one rank to another, by their clocks."""

    at_s: float
    elapsed_s: float


def message_ends(traces: Sequence[RankTrace], base_s: np.ndarray) -> dict[int, Ends]:
    """Return the message ends by index of the trace, for traces that have any. `base_s`: added to each trace's
    times."""
    wires = [trace.wire for trace in traces if trace.wire is not None and len(trace.wire)]
    width = [1 + max((int(getattr(wire, name).max()) for wire in wires), default=0) for name in _TRANSACTION]
    by_trace = {}
    for place, trace in enumerate(traces):
        if any(table is not None and len(table) for table in (trace.pings, trace.wire)):
            sent, came = (_ends(trace, is_sent, width, base_s[place]) for is_sent in (True, False))
            by_trace[place] = Ends(*sent, *came)
    return by_trace


def _pairs(ranks: list[int]) -> Iterator[tuple[int, int]]:
    """Yield each rank with the first, which all ping, and with the preceding one."""
    for place, rank in enumerate(ranks[1:], start=1):
        yield ranks[0], rank
        if place > 1:
            yield ranks[place - 1], rank


def both_ways(one: Ends, other: Ends, window_s: float) -> list[tuple[Least, Least]]:
    """Return the fastest messages between two ranks in both directions, for each time window with both."""
    there, back = _transit_s(one, other), _transit_s(other, one)
    if not len(there[0]) or not len(back[0]):
        return []
    first_s = min(there[0].min(), back[0].min())
    quickest = [_least(*direction, first_s, window_s) for direction in (there, back)]
    return [(quickest[0][window], quickest[1][window]) for window in sorted(quickest[0].keys() & quickest[1].keys())]


_TRANSACTION = ("job", "tensor", "chunk", "version")


def _ends(trace: RankTrace, is_sent: bool, width: list[int], base_s: float) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers (of pings: below 0) and times of sent or received messages, without retransmitted transactions,
    whose ends can't be matched."""
    keys, times_s = [np.empty(0, np.int64)], [np.empty(0)]
    if trace.pings is not None:
        mine = trace.pings.is_sent == is_sent
        keys.append(-1 - trace.pings.message[mine])
        times_s.append(trace.pings.at_s[mine])
    if trace.wire is not None:
        mine = trace.wire.what == (WireWhat.SENT if is_sent else WireWhat.RECEIVED)
        key = np.zeros(np.count_nonzero(mine), np.int64)
        for name, count in zip(_TRANSACTION, width, strict=True):
            key = key * count + getattr(trace.wire, name)[mine]
        keys.append(key)
        times_s.append(trace.wire.at_s[mine])
    unique, first, counts = np.unique(np.concatenate(keys), return_index=True, return_counts=True)
    return unique[counts == 1], np.concatenate(times_s)[first[counts == 1]] + base_s


def _transit_s(source: Ends, target: Ends) -> tuple[np.ndarray, np.ndarray]:
    """Return departure times and durations of messages, by two clocks."""
    _, left, came = np.intersect1d(source.sent, target.came, assume_unique=True, return_indices=True)
    return source.sent_s[left], target.came_s[came] - source.sent_s[left]


def _least(left_s: np.ndarray, elapsed_s: np.ndarray, first_s: float, window_s: float) -> dict[int, Least]:
    """Return the fastest message of each window."""
    window = ((left_s - first_s) // window_s).astype(int)
    order = np.lexsort((elapsed_s, window))
    windows, quickest = np.unique(window[order], return_index=True)
    best = order[quickest]
    return {int(w): Least(float(left_s[i]), float(elapsed_s[i])) for w, i in zip(windows, best, strict=True)}
