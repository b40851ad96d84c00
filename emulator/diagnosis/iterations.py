"""What one rank did in each of its traced iterations: which events belong to which, and how long each name ran by
itself. That is where the spread of a finding, and the significance of a difference, come from.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from emulator.traces.events import NONE, RankTrace, What

OWN = (What.COMPUTE, What.LAUNCH, What.CODEC, What.COPY)
"""What a rank does without anyone else."""


@dataclass(frozen=True)
class Iterations:
    """Arrays (events,) are those of `trace.events`."""

    trace: RankTrace
    count: int
    number: np.ndarray
    """int64 (events,): the iteration in which it starts, NONE outside of all."""
    self_s: np.ndarray
    """float64 (events,): its duration without that of the events inside it."""

    def sums(self, values: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """float64 (iterations,): `values` of the `chosen` events, summed in each."""
        inside = chosen & (self.number >= 0)
        return np.bincount(self.number[inside], values[inside], minlength=self.count)

    def own_s(self) -> np.ndarray:
        """float64 (iterations,): seconds of work of its own."""
        return self.sums(self.self_s, np.isin(self.trace.events.what, OWN))

    def duration_s(self) -> np.ndarray:
        """float64 (iterations,)."""
        return self.trace.steps[:, 1] - self.trace.steps[:, 0]


def iterations(trace: RankTrace) -> Iterations:
    """Sort events into iterations."""
    events, steps = trace.events, trace.steps
    number = np.searchsorted(steps[:, 0], events.start_s + 1e-12, side="right") - 1
    inside = number >= 0
    inside[inside] = events.start_s[inside] < steps[number[inside], 1]
    self_s = events.duration_s.copy()
    nested = np.flatnonzero(events.parent != NONE)
    np.subtract.at(self_s, events.parent[nested], events.duration_s[nested])
    return Iterations(trace, len(steps), np.where(inside, number, NONE), np.maximum(self_s, 0.0))
