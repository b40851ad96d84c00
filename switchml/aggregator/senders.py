"""Which rank of which job sends from an endpoint: a hash table that the aggregator's compiled loops look up."""

import numpy as np

from switchml.runtime.jit import int64, kernel

TABLE = 65536
"""Entries of the table; at most half are used, so that a look-up ends soon."""
MAX_SENDERS = TABLE // 2
_HASH, _HASH_SHIFT = 0x9E3779B97F4A7C15, 48
"""Fibonacci hashing (Knuth): the top 16 bits of the product number the table's entries."""


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
    """Make the table, uint64[TABLE, 2], anew from (endpoint, job << 16 | rank) pairs."""
    senders[:] = 0
    for key, value in endpoints:
        at = ((key * _HASH) & 0xFFFFFFFFFFFFFFFF) >> _HASH_SHIFT
        while senders[at, 0]:
            at = (at + 1) % TABLE
        senders[at] = (key, value)
