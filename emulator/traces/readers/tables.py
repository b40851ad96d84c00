"""Tables in which readers collect events, and their conversion to `Events`: compact growing tables, so that ten million
events take hundreds of megabytes rather than thousands; numbers for names; nesting of events.
"""

from array import array
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from emulator.traces.events import NONE, Events

SLACK_S = 2e-9
"""Maximum excess of a child's end over its parent's, as profilers round starts and durations separately."""
DTYPES = {
    "name": np.int32, "what": np.int8, "lane": np.int32, "start_s": np.float64, "duration_s": np.float64,
    "parent": np.int32, "collective": np.int8, "group": np.int32, "sequence": np.int64, "peer": np.int32,
    "bytes": np.float64, "gradient": np.bool_,
}  # fmt: skip
"""Column types of `Events`, in order."""
OTHERWISE = {"collective": 0, "group": NONE, "sequence": NONE, "peer": NONE, "bytes": 0.0, "gradient": False}
"""Columns that are usually unset, with their defaults."""
_CHUNK = 1 << 16
"""Number of events converted to Python objects at a time."""


class Columns:
    """Growable columns: `Columns(start="d", lane="i")` has an `array.array` of that type code for each name."""

    def __init__(self, **codes: str) -> None:
        self._codes = codes
        for name, code in codes.items():
            setattr(self, name, array(code))

    if TYPE_CHECKING:  # the columns

        def __getattr__(self, name: str) -> array[Any]: ...

    def arrays(self) -> dict[str, np.ndarray]:
        """Return each column as a NumPy array over the same memory."""
        columns = ((name, getattr(self, name), np.dtype(code)) for name, code in self._codes.items())
        return {name: np.frombuffer(column, dtype) if column else np.empty(0, dtype) for name, column, dtype in columns}


class Numbers(dict):
    """Assigns numbers: `numbers[key]` is the number of keys before it, from 0."""

    def __missing__(self, key: Hashable) -> int:
        self[key] = number = len(self)
        return number


def occurrences(keys: Iterable[Hashable]) -> list[int]:
    """Return the number of preceding equal keys for each."""
    counts: Counter[Hashable] = Counter()
    before = []
    for key in keys:
        before.append(counts[key])
        counts[key] += 1
    return before


def in_order(lane: np.ndarray, start_s: np.ndarray, duration_s: np.ndarray) -> np.ndarray:
    """Return the order of `Events` as indexes, int64 (events,)."""
    return np.lexsort((-duration_s, start_s, lane))


def table(**columns: Any) -> Events:
    """Build Events from ordered columns (arrays or lists); default values are those of OTHERWISE, and `parent` from
    nesting."""
    count = len(columns["lane"])
    columns = {name: np.full(count, value, DTYPES[name]) for name, value in OTHERWISE.items()} | columns
    columns = {name: np.asarray(column, DTYPES[name]) for name, column in columns.items()}
    if "parent" not in columns:
        start_s = columns["start_s"]
        columns["parent"] = parents(columns["lane"], start_s, start_s + columns["duration_s"])
    return Events(**columns)


def joined(parts: Sequence[Events]) -> Events:
    """Return the concatenation of several tables."""
    return Events(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in DTYPES})


def parents(lane: np.ndarray, start_s: np.ndarray, end_s: np.ndarray) -> np.ndarray:
    """Return the innermost enclosing event of each, int32 (events,), NONE at the top. Inputs (events,), sorted by lane,
    start, and outer before inner. Events that overlap without one enclosing the other are siblings."""
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
