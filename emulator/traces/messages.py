"""Messages between ranks with both ends recorded, each by its own rank's clock: pings, and packets of our own
transport, whose results arrive after the other ranks have sent their parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from emulator.traces.events import RankTrace, WireWhat


class Ends(NamedTuple):
    """One rank's. Sorted by message, each of which is there once."""

    sent: np.ndarray  # int64 (messages,): numbers, the same for all ranks
    sent_s: np.ndarray  # float64 (messages,): when it was about to leave
    came: np.ndarray
    came_s: np.ndarray


class Least(NamedTuple):
    """The quickest message from one rank to another, as their clocks say."""

    at_s: float
    took_s: float


def ends(traces: Sequence[RankTrace], base_s: np.ndarray) -> dict[int, Ends]:
    """Place of a trace → its ends, for traces that have any. `base_s`: added to each trace's times."""
    wires = [trace.wire for trace in traces if trace.wire is not None and len(trace.wire)]
    width = [1 + max((int(getattr(wire, name).max()) for wire in wires), default=0) for name in _TRANSACTION]
    by_trace = {}
    for place, trace in enumerate(traces):
        if any(table is not None and len(table) for table in (trace.pings, trace.wire)):
            sent, came = (_ends(trace, is_sent, width, base_s[place]) for is_sent in (True, False))
            by_trace[place] = Ends(*sent, *came)
    return by_trace


def pairs(ranks: list[int]) -> Iterator[tuple[int, int]]:
    """Each rank with the first, which all ping; and with the one before it."""
    for place, rank in enumerate(ranks[1:], start=1):
        yield ranks[0], rank
        if place > 1:
            yield ranks[place - 1], rank


def both_ways(one: Ends, other: Ends, window_s: float) -> list[tuple[Least, Least]]:
    """The quickest messages from one rank to the other and back, in each window of time that has both."""
    there, back = _took(one, other), _took(other, one)
    if not len(there[0]) or not len(back[0]):
        return []
    first_s = min(there[0].min(), back[0].min())
    quickest = [_least(*direction, first_s, window_s) for direction in (there, back)]
    return [(quickest[0][window], quickest[1][window]) for window in sorted(quickest[0].keys() & quickest[1].keys())]


_TRANSACTION = ("job", "tensor", "chunk", "version")


def _ends(trace: RankTrace, is_sent: bool, width: list[int], base_s: float) -> tuple[np.ndarray, np.ndarray]:
    """What was sent, or what came: numbers of messages, of pings below 0; and times. Without transactions that were
    repeated: nothing says which end belongs to which."""
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


def _took(source: Ends, target: Ends) -> tuple[np.ndarray, np.ndarray]:
    """When messages left, and how long they took, by two clocks."""
    _, left, came = np.intersect1d(source.sent, target.came, assume_unique=True, return_indices=True)
    return source.sent_s[left], target.came_s[came] - source.sent_s[left]


def _least(left_s: np.ndarray, took_s: np.ndarray, first_s: float, window_s: float) -> dict[int, Least]:
    """Window → its quickest."""
    window = ((left_s - first_s) // window_s).astype(int)
    order = np.lexsort((took_s, window))
    windows, quickest = np.unique(window[order], return_index=True)
    best = order[quickest]
    return {int(w): Least(float(left_s[i]), float(took_s[i])) for w, i in zip(windows, best, strict=True)}
