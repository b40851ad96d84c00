"""Data structures for buffer eviction with known future accesses: the next use of each sample, and a heap with the
latest use on top.

Evicting the sample whose next use is latest is optimal when each miss costs the same (Belady 1966). Next uses are
positions in the whole run's list of accesses; NEVER is greater than all of them.
"""

import numpy as np

from switchml.runtime.jit import kernel

NEVER = np.iinfo(np.int64).max


@kernel
def next_uses(accesses: np.ndarray, samples: int, batch: int) -> np.ndarray:
    """int64 (accesses,): for each access the position of the next access to the same sample in a later batch of `batch`
    accesses, or NEVER if there is none. Negative accesses are empty positions."""
    following = np.full(len(accesses), NEVER, np.int64)
    upcoming = np.full(samples, NEVER, np.int64)
    for end in range(len(accesses), 0, -batch):
        start = max(end - batch, 0)
        for position in range(start, end):
            if accesses[position] >= 0:
                following[position] = upcoming[accesses[position]]
        for position in range(end - 1, start - 1, -1):
            if accesses[position] >= 0:
                upcoming[accesses[position]] = position
    return following


@kernel
def push(uses: np.ndarray, entries: np.ndarray, size: int, use: int, sample: int) -> int:
    """Push (`use`, `sample`) onto the heap with the latest use on top; returns its new size."""
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
def pop(uses: np.ndarray, entries: np.ndarray, size: int) -> int:
    """Remove the entry with the latest use from the heap; returns its new size. The entry is at index 0 before."""
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
