"""Segments of shared memory (switchml/net/shm.py) for tests that play both sides."""

from switchml.net import shm
from switchml.runtime.jit import kernel

CAPACITY = 1024
"""Places of a ring of a job with 4 slots."""


def packet(segment: shm.Segment, rank: int, slot: int = 0) -> int:
    """Address of a rank's packet."""
    return shm.packets_of(segment, rank)[slot].ctypes.data


def row(segment: shm.Segment, slot: int = 0) -> int:
    """Address of a result."""
    return shm.pool_rows(segment)[slot].ctypes.data


def push_up(segment: shm.Segment, rank: int, address: int, length: int) -> int:
    """Name one of a rank's packets to the aggregator; 0 if the ring is full."""
    return _push_up(segment.at, rank, address, length)


@kernel
def _push_up(at, rank, address, length):
    return shm._push(at, shm._up(at, rank), address, length, 0)
