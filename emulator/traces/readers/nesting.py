"""Which event encloses which on a lane, from nothing but starts and ends."""

from __future__ import annotations

import numpy as np

from emulator.traces.events import NONE

SLACK_S = 2e-9
"""Profilers round starts and durations on their own; so far may a child end after its parent."""


_CHUNK = 1 << 16
"""Events that are Python objects at a time."""


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
