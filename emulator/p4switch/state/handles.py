"""Handles as BMv2 assigns them: the smallest free number, and for table entries a version in the upper byte; and
locking decorators."""

import heapq
from collections.abc import Callable, Mapping
from functools import wraps
from threading import RLock
from typing import Concatenate, ParamSpec, Protocol, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

INDEX_BITS = 24


class HandleTable(dict[int, T]):
    """Objects by their handles."""

    def __init__(self) -> None:
        super().__init__()
        self._free: list[int] = []
        self._next = 0

    @property
    def next_handle(self) -> int:
        """The smallest free number."""
        return self._free[0] if self._free else self._next

    @property
    def end(self) -> int:
        """Upper bound: all numbers in use are below it."""
        return self._next

    def add(self, item: T) -> int:
        """Store an object under the smallest free number; returns that number."""
        handle = self.next_handle
        if self._free:
            heapq.heappop(self._free)
        else:
            self._next += 1
        self[handle] = item
        return handle

    def release(self, handle: int) -> None:
        """Remove an object and free its number."""
        del self[handle]
        heapq.heappush(self._free, handle)

    def restore(self, items: Mapping[int, T]) -> None:
        super().clear()
        self.update(items)
        self._next = max(self, default=-1) + 1
        self._free = [number for number in range(self._next) if number not in self]

    def clear(self) -> None:
        self.restore({})


def entry_handle(version: int, index: int) -> int:
    """Handle of an entry: 8 bits of version above 24 bits of index."""
    return (version & 0xFF) << INDEX_BITS | index


def index_of(handle: int) -> int:
    return handle & ((1 << INDEX_BITS) - 1)


def version_of(handle: int) -> int:
    return handle >> INDEX_BITS & 0xFF


class Lockable(Protocol):
    """A part of the switch's state; all parts share one lock."""

    lock: RLock


class Versioned(Lockable, Protocol):
    """A part that counts its changes."""

    version: int


L = TypeVar("L", bound=Lockable)
V = TypeVar("V", bound=Versioned)


def locked(method: Callable[Concatenate[L, P], T]) -> Callable[Concatenate[L, P], T]:
    """Decorator: run the method under `self.lock`."""

    @wraps(method)
    def with_lock(self: L, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self.lock:
            return method(self, *args, **kwargs)

    return with_lock


def changing(method: Callable[Concatenate[V, P], T]) -> Callable[Concatenate[V, P], T]:
    """Decorator: run the method under `self.lock`, then increment `self.version`."""

    @wraps(method)
    def with_version(self: V, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self.lock:
            result = method(self, *args, **kwargs)
            self.version += 1
            return result

    return with_version
