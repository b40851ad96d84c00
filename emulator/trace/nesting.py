"""Which event encloses which on a lane, from nothing but starts and ends."""

from __future__ import annotations

import numpy as np

from emulator.trace.events import NONE

SLACK_S = 2e-9
"""Profilers round starts and durations on their own; so far may a child end after its parent."""


def parents(lane: np.ndarray, start_s: np.ndarray, end_s: np.ndarray) -> np.ndarray:
    """int32 (events,): the innermost event that encloses each, NONE at the top. All (events,), sorted by lane, start,
    and outer before inner. Events that overlap without one enclosing the other are siblings."""
    parent = np.full(len(lane), NONE, np.int32)
    stack: list[int] = []
    ends = end_s.tolist()
    starts = start_s.tolist()
    last_lane = NONE
    for event, on in enumerate(lane.tolist()):
        if on != last_lane:
            stack.clear()
            last_lane = on
        end = ends[event]
        while stack and (ends[stack[-1]] <= starts[event] or ends[stack[-1]] < end - SLACK_S):
            stack.pop()
        if stack:
            parent[event] = stack[-1]
        stack.append(event)
    return parent
