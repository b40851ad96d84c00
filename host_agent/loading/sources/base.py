"""The interface of a data source of a planned loader: a length and `read(indices)`."""

import threading
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np


@runtime_checkable
class Source(Protocol):
    """A data set. May also have `sample_bytes` (size of its largest sample), and `traffic`."""

    def __len__(self) -> int:
        """Number of samples."""
        ...

    def read(self, indices: Sequence[int], /) -> Sequence[Any]:
        """Read the samples of sorted `indices`, in this order: arrays, numbers, bytes, or tuples and dictionaries of
        them. The result may contain an exception in place of a sample that cannot be read; raising an exception fails
        all of them. Called by several threads."""
        ...


class SourceChanged(OSError):
    """A file has changed since its source was opened; a retry does not help."""


class Traffic:
    """Counters of reads from storage and the bytes read, including unwanted ones in between. Thread-safe."""

    def __init__(self) -> None:
        self.reads = 0
        self.bytes = 0
        self._lock = threading.Lock()

    def add(self, reads: int, size_bytes: int) -> None:
        """Add to the counters."""
        with self._lock:
            self.reads += reads
            self.bytes += size_bytes


def joined(starts: np.ndarray, ends: np.ndarray, gap: int, most: int) -> list[tuple[int, int]]:
    """Group ranges that are read at once: (first, end) positions in sorted int64 `starts` and `ends`. Adjacent ranges
    are joined if at most `gap` units are between them, as long as the group spans at most `most`."""
    groups, first = [], 0
    for at in range(1, len(starts) + 1):
        if at < len(starts) and starts[at] - ends[at - 1] <= gap and ends[at] - starts[first] <= most:
            continue
        groups.append((first, at))
        first = at
    return groups


def size_of(sample: Any) -> int:
    """Size of a sample in bytes, counting only its arrays, tensors, bytes and strings."""
    if isinstance(sample, dict):
        return sum(size_of(each) for each in sample.values())
    if isinstance(sample, tuple | list):
        return sum(size_of(each) for each in sample)
    if isinstance(sample, bytes | bytearray | str):
        return len(sample)
    return int(getattr(sample, "nbytes", 8))


def owned(sample: Any) -> Any:
    """Copy of a sample that does not refer to a larger piece of memory."""
    if isinstance(sample, np.ndarray) and sample.base is not None:
        return sample.copy()
    if isinstance(sample, dict):
        return {key: owned(value) for key, value in sample.items()}
    if type(sample) in (tuple, list):
        return type(sample)(owned(each) for each in sample)
    return sample
