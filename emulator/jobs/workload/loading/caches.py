"""Simulation of a least-recently-used sample cache on index lists. The cache with knowledge of future accesses is in
the planned loader: `host_agent/loading/`.
"""

import numpy as np

from switchml.runtime.jit import kernel


@kernel
def lru_misses(accesses, samples, capacity):
    """Return which accesses miss a least-recently-used cache of `capacity` samples, bool (accesses,)."""
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
