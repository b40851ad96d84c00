"""Limits of what a trace may say, far above any job: what exceeds them is damaged, or meant to exhaust its reader."""

from switchml.errors import TraceError

MOST_RANKS = 1 << 20
LONGEST_S = 1e11
"""Of a time: some 3,000 years."""
MOST_BYTES = 1e18
"""Of one message, copy or tensor."""


def check_ranks(source: object, count: int) -> int:
    """`count` ranks; TraceError where that is more than any job has. `source`: the file that says so."""
    if not 0 <= count <= MOST_RANKS:
        raise TraceError(f"{source} speaks of {count:,} ranks; the limit is {MOST_RANKS:,}")
    return count
