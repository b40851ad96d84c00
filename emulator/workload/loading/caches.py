"""Buffers of samples in memory, played on real index lists: the least recently used sample is evicted, or, where the
future is known, the one that is needed last (Belady 1966; optimal when each miss costs the same; `solar.py` does). Next
uses are positions in the whole run's list of accesses; NEVER is behind all of them.
"""

from __future__ import annotations

import numpy as np

from switchml.runtime.jit import kernel

NEVER = np.iinfo(np.int64).max


@kernel
def next_uses(accesses, samples):
    """int64 (accesses,): for each access the position of the next one to the same sample, NEVER where there is none."""
    following = np.empty(len(accesses), np.int64)
    upcoming = np.full(samples, NEVER, np.int64)
    for position in range(len(accesses) - 1, -1, -1):
        sample = accesses[position]
        following[position] = upcoming[sample]
        upcoming[sample] = position
    return following


@kernel
def lru_misses(accesses, samples, capacity):
    """bool (accesses,): which miss a buffer of `capacity` samples that evicts the least recently used."""
    misses = np.zeros(len(accesses), np.bool_)
    older, newer = np.full(samples + 1, -1, np.int64), np.full(samples + 1, -1, np.int64)
    head = samples  # of a ring: newer[head] is the oldest sample, older[head] the newest
    older[head] = newer[head] = head
    count = 0
    for position in range(len(accesses)):
        sample = accesses[position]
        if newer[sample] >= 0:
            newer[older[sample]], older[newer[sample]] = newer[sample], older[sample]
        else:
            misses[position] = True
            if capacity == 0:
                continue
            if count == capacity:
                oldest = newer[head]
                newer[head], older[newer[oldest]] = newer[oldest], head
                newer[oldest] = older[oldest] = -1
            else:
                count += 1
        newest = older[head]
        newer[newest] = older[head] = sample
        older[sample], newer[sample] = newest, head
    return misses


@kernel
def push(uses, entries, size, use, sample):
    """Add (`use`, `sample`) to the heap that has the latest use on top; returns its new size."""
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if uses[parent] >= use:
            break
        uses[at], entries[at] = uses[parent], entries[parent]
        at = parent
    uses[at], entries[at] = use, sample
    return size + 1


@kernel
def pop(uses, entries, size):
    """Take the entry with the latest use off the heap; returns its new size. Read it at place 0 before."""
    size -= 1
    use, sample = uses[size], entries[size]
    at = 0
    child = 1
    while child < size:
        if child + 1 < size and uses[child + 1] > uses[child]:
            child += 1
        if uses[child] <= use:
            break
        uses[at], entries[at] = uses[child], entries[child]
        at = child
        child = 2 * at + 1
    uses[at], entries[at] = use, sample
    return size
