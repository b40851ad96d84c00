"""Segments of shared memory (switchml/net/shm.py) for tests that play both sides."""

from switchml.net import shm

CAPACITY = 1024
"""Places of a ring of a job with 4 slots."""


def packet(segment: shm.Segment, rank: int, slot: int = 0) -> int:
    """Address of a rank's packet."""
    return shm.packets_of(segment, rank)[slot].ctypes.data


def row(segment: shm.Segment, slot: int = 0) -> int:
    """Address of a result."""
    return shm.pool_rows(segment)[slot].ctypes.data
