"""The two priority queues of `calendar.py`, as kernels over arrays. The *agenda* holds the next moment of each item
(streams, then ranks): a binary heap that knows where each item stands, so that a moment can be moved. The *line* of a
stream holds the ops that are ready to take it: a pairing heap threaded through arrays over all ops.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from switchml.jit import kernel


class Agenda(NamedTuple):
    """A heap of items by time."""

    at_s: np.ndarray
    """float64 (items,)."""
    heap: np.ndarray
    """int32 (items,): item numbers."""
    place: np.ndarray
    """int32 (items,): where in `heap` an item stands, −1: nowhere."""
    size: np.ndarray
    """int64 (1,)."""


def empty_agenda(items: int) -> Agenda:
    """An agenda for that many items, with none in it."""
    return Agenda(np.zeros(items), np.zeros(items, np.int32), np.full(items, -1, np.int32), np.zeros(1, np.int64))


@kernel
def put(agenda, item, at_s):
    """Give `item` the moment `at_s`, whether it had one or not."""
    place = agenda.place[item]
    if place < 0:
        place = agenda.size[0]
        agenda.size[0] += 1
    agenda.at_s[item] = at_s
    while place > 0:
        parent = (place - 1) >> 1
        other = agenda.heap[parent]
        if agenda.at_s[other] <= at_s:
            break
        agenda.heap[place] = other
        agenda.place[other] = place
        place = parent
    _sink(agenda, item, place)


@kernel
def take(agenda):
    """Remove and return the item with the earliest moment."""
    first = agenda.heap[0]
    agenda.place[first] = -1
    agenda.size[0] -= 1
    if agenda.size[0]:
        _sink(agenda, agenda.heap[agenda.size[0]], 0)
    return first


@kernel
def _sink(agenda, item, place):
    """Stand `item` at `place` or below, where no earlier one is under it."""
    at_s = agenda.at_s[item]
    size = agenda.size[0]
    child = 2 * place + 1
    while child < size:
        if child + 1 < size and agenda.at_s[agenda.heap[child + 1]] < agenda.at_s[agenda.heap[child]]:
            child += 1
        other = agenda.heap[child]
        if agenda.at_s[other] >= at_s:
            break
        agenda.heap[place] = other
        agenda.place[other] = place
        place = child
        child = 2 * place + 1
    agenda.heap[place] = item
    agenda.place[item] = place


class Lines(NamedTuple):
    """Ops that are ready, a heap for each stream: before whom an op goes is decided by `is_before`."""

    root: np.ndarray
    """int32 (streams,): the op that is next, −1: none."""
    child: np.ndarray
    """int32 (ops,)."""
    sibling: np.ndarray
    """int32 (ops,)."""
    priority: np.ndarray
    """int32 (works,)."""
    work: np.ndarray
    """int32 (ops,)."""
    ready_s: np.ndarray
    """float64 (ops,)."""


@kernel(inline=True)
def is_before(lines, one, other):
    """Higher priority, then ready earlier, then first in the graph."""
    first, second = lines.priority[lines.work[one]], lines.priority[lines.work[other]]
    if first != second:
        return first > second
    if lines.ready_s[one] != lines.ready_s[other]:
        return lines.ready_s[one] < lines.ready_s[other]
    return one < other


@kernel
def join(lines, one, other):
    """The root of two heaps made one; either may be −1."""
    if one < 0:
        return other
    if other < 0:
        return one
    if not is_before(lines, one, other):
        one, other = other, one
    lines.sibling[other] = lines.child[one]
    lines.child[one] = other
    return one


@kernel
def step_up(lines, stream):
    """Remove and return the op that is next on `stream`."""
    op = lines.root[stream]
    # Pair the children from the left, then join the pairs from the right.
    pairs, child = np.int32(-1), lines.child[op]
    while child >= 0:
        second = lines.sibling[child]
        rest = np.int32(-1)
        lines.sibling[child] = -1
        if second >= 0:
            rest = lines.sibling[second]
            lines.sibling[second] = -1
        pair = join(lines, child, second)
        lines.sibling[pair] = pairs
        pairs, child = pair, rest
    rest = np.int32(-1)
    while pairs >= 0:
        after = lines.sibling[pairs]
        lines.sibling[pairs] = -1
        rest = join(lines, rest, pairs)
        pairs = after
    lines.root[stream] = rest
    lines.child[op] = -1
    return op
