"""What a planned loader reads from: an object with a length and `read(indices)`."""

import threading
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np


@runtime_checkable
class Source(Protocol):
    """A data set. It may also have `sample_bytes` (of its largest sample), and `traffic`."""

    def __len__(self) -> int:
        """Samples."""
        ...

    def read(self, indices: Sequence[int], /) -> Sequence[Any]:
        """The samples of sorted `indices`, in this order: arrays, numbers, bytes, or tuples and dictionaries of them.
        In place of a sample that cannot be read it may have the exception; raising one instead fails all of them.
        Several threads call it."""
        ...


class SourceChanged(OSError):
    """A file is not what it was when its source was opened: reading it again does not help."""


class Traffic:
    """Reads of storage and the bytes that they brought, unwanted ones in between included."""

    def __init__(self) -> None:
        self.reads = 0
        self.bytes = 0
        self._lock = threading.Lock()

    def add(self, reads: int, size_bytes: int) -> None:
        """Count these."""
        with self._lock:
            self.reads += reads
            self.bytes += size_bytes


def joined(starts: np.ndarray, ends: np.ndarray, gap: int, most: int) -> list[tuple[int, int]]:
    """Neighbours to read at once: (first, end) places in sorted int64 `starts` and `ends`. Two are joined where at most
    `gap` units lie between them, as long as the whole has at most `most`."""
    groups, first = [], 0
    for at in range(1, len(starts) + 1):
        if at < len(starts) and starts[at] - ends[at - 1] <= gap and ends[at] - starts[first] <= most:
            continue
        groups.append((first, at))
        first = at
    return groups


def size_of(sample: Any) -> int:
    """Bytes of a sample, as far as they count: those of its arrays, tensors and bytes."""
    if isinstance(sample, dict):
        return sum(size_of(each) for each in sample.values())
    if isinstance(sample, tuple | list):
        return sum(size_of(each) for each in sample)
    if isinstance(sample, bytes | bytearray | str):
        return len(sample)
    return int(getattr(sample, "nbytes", 8))


def owned(sample: Any) -> Any:
    """The sample without a view of a larger piece of memory, to be kept."""
    if isinstance(sample, np.ndarray) and sample.base is not None:
        return sample.copy()
    if isinstance(sample, dict):
        return {key: owned(value) for key, value in sample.items()}
    if type(sample) in (tuple, list):
        return type(sample)(owned(each) for each in sample)
    return sample
