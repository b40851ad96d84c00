"""A segment of shared memory for tests of both sides."""

import os

import pytest

from switchml.net import shm


@pytest.fixture
def job():
    """`job(ranks, slots)`: a segment of its own, and its name."""
    fds = []

    def make(ranks: int = 2, slots: int = 4) -> tuple[shm.Segment, str]:
        segment, fd, name = shm.create(ranks, slots)
        fds.append(fd)
        return segment, name

    yield make
    for fd in fds:
        os.close(fd)
