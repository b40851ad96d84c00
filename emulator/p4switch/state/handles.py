"""Handles as BMv2 assigns them: the smallest free number, and for table entries a version in the upper byte."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from functools import wraps

INDEX_BITS = 24


class Handles:
    """A set of numbers in use; `take` returns the smallest free one."""

    def __init__(self) -> None:
        self.used: set[int] = set()
        self._free: list[int] = []
        self._next = 0

    def take(self) -> int:
        """Mark the smallest free number as used and return it."""
        if self._free:
            number = heapq.heappop(self._free)
        else:
            number, self._next = self._next, self._next + 1
        self.used.add(number)
        return number

    def release(self, number: int) -> None:
        """Free a number in use."""
        self.used.remove(number)
        heapq.heappush(self._free, number)

    def clear(self) -> None:
        """Free all."""
        self.__init__()

    def restore(self, used: Iterable[int]) -> None:
        """Mark exactly these numbers as used."""
        self.used = set(used)
        self._next = max(self.used, default=-1) + 1
        self._free = [number for number in range(self._next) if number not in self.used]


def entry_handle(version: int, index: int) -> int:
    """An entry's handle: 8 bits of version above 24 bits of index."""
    return (version & 0xFF) << INDEX_BITS | index


def index_of(handle: int) -> int:
    """The index within a handle."""
    return handle & ((1 << INDEX_BITS) - 1)


def version_of(handle: int) -> int:
    """The version within a handle."""
    return handle >> INDEX_BITS & 0xFF


def locked(method: Callable) -> Callable:
    """A method that holds `self.lock` while it runs."""

    @wraps(method)
    def with_lock(self, *args, **kwargs):
        with self.lock:
            return method(self, *args, **kwargs)

    return with_lock
