"""What readers collect events in, and how these become `Events`: growing tables of numbers, packed so that ten million
events take hundreds of megabytes and not thousands; numbers for names; which event encloses which.
"""

from array import array
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from emulator.traces.events import NONE, Events

SLACK_S = 2e-9
"""Profilers round starts and durations on their own; so far may a child end after its parent."""
DTYPES = {
    "name": np.int32, "what": np.int8, "lane": np.int32, "start_s": np.float64, "duration_s": np.float64,
    "parent": np.int32, "collective": np.int8, "group": np.int32, "sequence": np.int64, "peer": np.int32,
    "bytes": np.float64, "gradient": np.bool_,
}  # fmt: skip
"""Of the columns of `Events`, in their order."""
OTHERWISE = {"collective": 0, "group": NONE, "sequence": NONE, "peer": NONE, "bytes": 0.0, "gradient": False}
"""Columns that most events have nothing in, and what stands there."""
_CHUNK = 1 << 16
"""Events that are Python objects at a time."""


class Columns:
    """`Columns(start="d", lane="i")` has an `array.array` of that type code for each name, to append to."""

    def __init__(self, **codes: str) -> None:
        self._codes = codes
        for name, code in codes.items():
            setattr(self, name, array(code))

    if TYPE_CHECKING:  # the columns

        def __getattr__(self, name: str) -> array[Any]: ...

    def arrays(self) -> dict[str, np.ndarray]:
        """Each column as a NumPy array over the same memory."""
        columns = ((name, getattr(self, name), np.dtype(code)) for name, code in self._codes.items())
        return {name: np.frombuffer(column, dtype) if column else np.empty(0, dtype) for name, column, dtype in columns}


class Numbers(dict):
    """Numbers for names: `numbers[key]` counts the keys before it, from 0."""

    def __missing__(self, key: Hashable) -> int:
        self[key] = number = len(self)
        return number


def occurrences(keys: Iterable[Hashable]) -> list[int]:
    """How many equal keys stand before each."""
    counts: Counter[Hashable] = Counter()
    before = []
    for key in keys:
        before.append(counts[key])
        counts[key] += 1
    return before


def in_order(lane: np.ndarray, start_s: np.ndarray, duration_s: np.ndarray) -> np.ndarray:
    """int64 (events,): places of events in the order of `Events`."""
    return np.lexsort((-duration_s, start_s, lane))


def table(**columns: Any) -> Events:
    """Events of columns (arrays or lists) in order; by default those of OTHERWISE, and `parent` by nesting."""
    count = len(columns["lane"])
    columns = {name: np.full(count, value, DTYPES[name]) for name, value in OTHERWISE.items()} | columns
    columns = {name: np.asarray(column, DTYPES[name]) for name, column in columns.items()}
    if "parent" not in columns:
        start_s = columns["start_s"]
        columns["parent"] = parents(columns["lane"], start_s, start_s + columns["duration_s"])
    return Events(**columns)


def joined(parts: Sequence[Events]) -> Events:
    """The events of several tables behind each other."""
    return Events(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in DTYPES})


def parents(lane: np.ndarray, start_s: np.ndarray, end_s: np.ndarray) -> np.ndarray:
    """int32 (events,): the innermost event that encloses each, NONE at the top. All (events,), sorted by lane, start,
    and outer before inner. Events that overlap without one enclosing the other are siblings."""
    parent = np.full(len(lane), NONE, np.int32)
    open_events: list[tuple[int, float]] = []
    last_lane = NONE
    for first in range(0, len(lane), _CHUNK):
        part = slice(first, first + _CHUNK)
        columns = zip(lane[part].tolist(), start_s[part].tolist(), end_s[part].tolist(), strict=True)
        part_parents = []
        for event, (on, start, end) in enumerate(columns, first):
            if on != last_lane:
                open_events.clear()
                last_lane = on
            while open_events and (open_events[-1][1] <= start or open_events[-1][1] < end - SLACK_S):
                open_events.pop()
            part_parents.append(open_events[-1][0] if open_events else NONE)
            open_events.append((event, end))
        parent[part] = part_parents
    return parent
