"""Limits of values in traces, far above any job: larger values indicate damage, or an attempt to exhaust the reader."""

from switchml.errors import TraceError

MAX_RANKS = 1 << 20
LONGEST_S = 1e11
"""Largest time: some 3,000 years."""
MAX_BYTES = 1e18
"""Largest message, copy or tensor."""


def check_ranks(source: object, count: int) -> int:
    """Return `count`; TraceError if that is more than any job's number of ranks. `source`: the file with the number."""
    if not 0 <= count <= MAX_RANKS:
        raise TraceError(f"{source} refers to {count:,} ranks; the limit is {MAX_RANKS:,}")
    return count
