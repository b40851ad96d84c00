"""The two priority queues of `calendar.py`, as kernels over its tables. The *agenda* holds the next event time of each
item (streams, then ranks): a binary heap that tracks each item's position, so that a time can be changed. The *line* of
a stream holds the ops that are ready to run on it: a pairing heap threaded through the table of ops.
"""

import numpy as np

from switchml.runtime.jit import kernel

ITEM = np.dtype([("at_s", "f8"), ("place", "i4"), ("size", "i4")], align=True)
"""An item's event time, and its position in the heap (−1: not in it). `size` of item 0: number of items in the heap."""


def empty_agenda(items: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (ITEM table, heap of item numbers) for `items` items, none of which is in the heap."""
    table = np.zeros(items, ITEM)
    table["place"] = -1
    return table, np.zeros(items, np.int32)


@kernel(forceinline=True)
def put(items, heap, item, at_s):
    """Set the event time of `item` to `at_s`, inserting it if necessary."""
    place = items[item].place
    if place < 0:
        place = items[0].size
        items[0].size += 1
    items[item].at_s = at_s
    while place > 0:
        parent = (place - 1) >> 1
        other = heap[parent]
        if items[other].at_s <= at_s:
            break
        heap[place] = other
        items[other].place = place
        place = parent
    _sink(items, heap, item, place)


@kernel(forceinline=True)
def take(items, heap):
    """Remove and return the item with the earliest event time."""
    first = heap[0]
    items[first].place = -1
    items[0].size -= 1
    if items[0].size:
        _sink(items, heap, heap[items[0].size], 0)
    return first


@kernel(forceinline=True)
def _sink(items, heap, item, place):
    """Place `item` at `place` or below, so that no item under it is earlier."""
    at_s = items[item].at_s
    size = items[0].size
    child = 2 * place + 1
    while child < size:
        if child + 1 < size and items[heap[child + 1]].at_s < items[heap[child]].at_s:
            child += 1
        other = heap[child]
        if items[other].at_s >= at_s:
            break
        heap[place] = other
        items[other].place = place
        place = child
        child = 2 * place + 1
    heap[place] = item
    items[item].place = place


@kernel
def join(ops, one, other):
    """Merge two heaps and return the first op; either may be −1. Order: higher priority, then earlier ready time
    (`start_s`), then position in the graph."""
    if one < 0:
        return other
    if other < 0:
        return one
    is_first = ops[one].priority > ops[other].priority
    if ops[one].priority == ops[other].priority:
        is_first = ops[one].start_s < ops[other].start_s
        if ops[one].start_s == ops[other].start_s:
            is_first = one < other
    if not is_first:
        one, other = other, one
    ops[other].sibling = ops[one].child
    ops[one].child = other
    return one


@kernel
def without_first(ops, first):
    """Remove a heap's first op and return the remaining heap, −1 if empty."""
    # Pair the children from the left, then merge the pairs from the right.
    pairs, child = np.int32(-1), ops[first].child
    while child >= 0:
        second = ops[child].sibling
        rest = np.int32(-1)
        ops[child].sibling = -1
        if second >= 0:
            rest = ops[second].sibling
            ops[second].sibling = -1
        pair = join(ops, child, second)
        ops[pair].sibling = pairs
        pairs, child = pair, rest
    left = np.int32(-1)
    while pairs >= 0:
        after = ops[pairs].sibling
        ops[pairs].sibling = -1
        left = join(ops, left, pairs)
        pairs = after
    ops[first].child = -1
    return left
