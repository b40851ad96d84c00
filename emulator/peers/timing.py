"""Start and end times of collectives for this rank and for absent ones, computed in this rank's process. Absent ranks
run the same program as this one, each at its own pace: where this rank computes d seconds, rank p computes d times its
pace; where this rank waits for a collective, so do they. A collective begins when its last member has arrived and the
communicator's previous collective has ended; `emulator.jobs.replay` gives the same times for the program as a graph.
"""

from dataclasses import dataclass

import numpy as np

OWN = 0
"""Index of this rank in the arrays; absent ranks follow."""


class Progress:
    """Current time of this rank and the absent ones. Arrays (1 + absent,): this rank first."""

    def __init__(self, rank: int, absent: np.ndarray, pace: np.ndarray):
        """`pace`: float64 (1 + absent,), compute time relative to this rank's; 1 for this rank."""
        self.ranks = np.concatenate([[rank], absent]).astype(np.int64)
        self.pace = np.asarray(pace, np.float64)
        self.at_s = np.zeros(len(self.ranks))
        self.draw = np.ones(len(self.ranks))
        """Noise factor on the pace, for this iteration."""

    def compute(self, seconds: float) -> None:
        """Advance all ranks by compute time, `seconds` on this rank."""
        self.at_s += seconds * self.pace * self.draw

    def wait(self, end_s: np.ndarray) -> None:
        """Advance each rank to `end_s` (1 + absent,), if later."""
        np.maximum(self.at_s, end_s, out=self.at_s)


@dataclass(frozen=True)
class CollectiveTimes:
    """Start and end of a collective."""

    came_s: float
    """Time at which this rank was ready and its communicator free."""
    start_s: float
    """Time at which the last member was ready."""
    end_s: np.ndarray
    """(1 + absent,): end for each rank."""


class CommunicatorTimes:
    """Times of a communicator, which runs one collective after the other."""

    def __init__(self, progress: Progress, members: np.ndarray, speaks_for: np.ndarray):
        """Both bool (1 + absent,). `members`: of the group. `speaks_for`: ranks whose arrival this process determines;
        several real ranks divide the absent ones among them."""
        self._members = members
        self._speaks_for = members & speaks_for
        self._free_s = np.zeros(len(progress.ranks))

    def arrive(self, at_s: np.ndarray) -> tuple[np.ndarray, float]:
        """Add arrivals at `at_s`. Return when each rank is ready, and the last of those that this process
        determines."""
        ready_s = np.maximum(at_s, self._free_s)
        return ready_s, float(ready_s[self._speaks_for].max())

    def complete(self, ready_s: np.ndarray, last_s: float, seconds: float) -> CollectiveTimes:
        """Complete a collective that takes `seconds` from `last_s` on. Ranks outside the group have equivalent
        groups."""
        end_s = ready_s + seconds
        end_s[self._members] = last_s + seconds
        self._free_s = end_s
        return CollectiveTimes(float(ready_s[OWN]), last_s, end_s)


def blocked(from_s: float, times: list[CollectiveTimes]) -> tuple[float, float]:
    """Split a wait from `from_s` for all of `times` into seconds (of transfer, of waiting for other ranks)."""
    transfer_s = peers_s = 0.0
    at_s = from_s
    for each in sorted(times, key=lambda each: each.end_s[OWN]):
        end_s = float(each.end_s[OWN])
        if end_s > at_s:
            missing_s = max(0.0, min(end_s, each.start_s) - max(at_s, each.came_s))
            peers_s += missing_s
            transfer_s += end_s - at_s - missing_s
            at_s = end_s
    return transfer_s, peers_s
