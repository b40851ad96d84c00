"""Whether threads take locks in one order: who waits for a lock while holding another one is noted, and a circle among
those pairs is a dead-lock that only needs its moment."""

from __future__ import annotations

import threading
from typing import Any


class LockOrder:
    """`watch` puts a lock's stand-in in its place; `pairs` has (held, wanted) by name, of all threads."""

    def __init__(self) -> None:
        self.pairs: set[tuple[str, str]] = set()
        self._held = threading.local()

    def watch(self, name: str, lock: Any) -> WatchedLock:
        return WatchedLock(self, name, lock)

    def held(self) -> list[str]:
        """What the calling thread holds, in the order of taking."""
        if not hasattr(self._held, "names"):
            self._held.names = []
        return self._held.names

    def circle(self) -> list[str]:
        """Locks of which each was wanted by a thread that held the one before it, the first as the last; empty if there
        is one order for all."""
        after: dict[str, set[str]] = {}
        for first, then in self.pairs:
            after.setdefault(first, set()).add(then)

        def search(path: list[str]) -> list[str]:
            for then in after.get(path[-1], ()):
                if then in path:
                    return [*path[path.index(then) :], then]
                if found := search([*path, then]):
                    return found
            return []

        return next((found for first in after if (found := search([first]))), [])


class WatchedLock:
    """A lock, used as a context, that notes what its thread holds already."""

    def __init__(self, order: LockOrder, name: str, lock: Any) -> None:
        self._order, self._name, self._lock = order, name, lock

    def __enter__(self) -> None:
        held = self._order.held()
        if self._name not in held:  # a lock of its own is taken again without waiting
            self._order.pairs.update((other, self._name) for other in held)
        self._lock.acquire()
        held.append(self._name)

    def __exit__(self, *_: object) -> None:
        self._order.held().remove(self._name)
        self._lock.release()
