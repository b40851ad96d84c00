"""Two more buffers of samples that tests compare with those of `emulator.jobs.workload.loading`: first in first out,
and Belady's optimum."""

from __future__ import annotations

import numpy as np

from host_agent.loading.heap import next_uses, pop, push
from switchml.runtime.jit import kernel


@kernel
def fifo_misses(accesses, samples, capacity):
    """bool (accesses,): the same of a buffer that evicts what came first."""
    misses = np.zeros(len(accesses), np.bool_)
    is_buffered = np.zeros(samples, np.bool_)
    ring = np.full(max(capacity, 1), -1, np.int64)
    at = 0
    for position in range(len(accesses)):
        sample = accesses[position]
        if is_buffered[sample]:
            continue
        misses[position] = True
        if capacity == 0:
            continue
        if ring[at] >= 0:
            is_buffered[ring[at]] = False
        ring[at] = sample
        is_buffered[sample] = True
        at = (at + 1) % capacity
    return misses


@kernel
def belady_misses(accesses, samples, capacity):
    """bool (accesses,): the same of a buffer that knows the future; it also leaves out what it would evict at once."""
    misses = np.zeros(len(accesses), np.bool_)
    following = next_uses(accesses, samples, 1)
    use_of = np.full(samples, -1, np.int64)  # next use of what is held, −1: not held
    uses, entries = np.empty(len(accesses) + 1, np.int64), np.empty(len(accesses) + 1, np.int64)
    size, count = 0, 0
    for position in range(len(accesses)):
        sample, use = accesses[position], following[position]
        if use_of[sample] < 0:
            misses[position] = True
            if count == capacity:
                while size and use_of[entries[0]] != uses[0]:  # used since: this entry is out of date
                    size = pop(uses, entries, size)
                if size == 0 or uses[0] <= use:
                    continue
                use_of[entries[0]] = -1
                size = pop(uses, entries, size)
            else:
                count += 1
        use_of[sample] = use
        size = push(uses, entries, size, use, sample)
    return misses
