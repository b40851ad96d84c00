"""Heap memory for the profiler. While it runs, its many small records are allocated between the job's tensors, which
then no longer fit where they were in the previous iteration: the heap grows with each iteration, by some 10 MB for a
transformer of 40 ms, and touching new memory is most of the cost of a capture.

So a capture begins by growing the heap at once, with chunks that it touches and frees. A chunk above them keeps the C
library from returning them to the system until the capture is over. This applies only to jobs whose iterations touch no
new memory by themselves: others would become faster by it, by 20 % for a small CNN, and a trace must not show that.
"""

import ctypes
import resource
import sys

RESERVE_BYTES = 128 << 20
SETTLED_FAULTS = 100
"""A job whose iterations have fewer page faults than this touches no new memory."""
_CHUNK_BYTES = 100_000
"""Small enough that glibc takes it from the heap (M_MMAP_THRESHOLD is 128 KiB or more)."""


class Reserve:
    """`nbytes` of heap memory that this process has touched and freed, retained until `release`. Does nothing without
    glibc."""

    def __init__(self, nbytes: int) -> None:
        self._pin = None
        if not nbytes or not sys.platform.startswith("linux"):
            return
        self._c = ctypes.CDLL(None)
        self._c.malloc.restype, self._c.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        self._c.free.restype, self._c.free.argtypes = None, [ctypes.c_void_p]
        chunks = [chunk for _ in range(nbytes // _CHUNK_BYTES) if (chunk := self._c.malloc(_CHUNK_BYTES))]
        self._pin = self._c.malloc(_CHUNK_BYTES)
        for chunk in chunks:
            ctypes.memset(chunk, 0, _CHUNK_BYTES)
            self._c.free(chunk)

    def release(self) -> None:
        """Allow the C library to return the memory."""
        if self._pin is not None:
            self._c.free(self._pin)
            self._pin = None


def page_faults() -> int:
    """Number of page faults of this process so far, each for 4 KiB that it had not touched before."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
