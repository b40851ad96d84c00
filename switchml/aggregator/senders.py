"""Hash table from sending endpoint to rank and job, used by the aggregator's compiled loops."""

import numpy as np

from switchml.runtime.jit import int64, kernel

TABLE = 65536
"""Number of entries of the table; at most half are used, so that look-ups are short."""
MAX_SENDERS = TABLE // 2
_HASH, _HASH_SHIFT = 0x9E3779B97F4A7C15, 48
"""Fibonacci hashing (Knuth): the top 16 bits of the product are the index in the table."""


@kernel(forceinline=True)
def find_sender(senders: np.ndarray, key: np.uint64) -> int:
    """Value stored for an endpoint, or -1. Linear probing."""
    at = int64((key * np.uint64(_HASH)) >> np.uint64(_HASH_SHIFT))
    while senders[at, 0] != 0:
        if senders[at, 0] == key:
            return int64(senders[at, 1])
        at = (at + 1) % TABLE
    return -1


def fill_senders(senders: np.ndarray, endpoints: list[tuple[int, int]]) -> None:
    """Rebuild the table, uint64[TABLE, 2], from (endpoint, job << 16 | rank) pairs."""
    senders[:] = 0
    for key, value in endpoints:
        at = ((key * _HASH) & 0xFFFFFFFFFFFFFFFF) >> _HASH_SHIFT
        while senders[at, 0]:
            at = (at + 1) % TABLE
        senders[at] = (key, value)
