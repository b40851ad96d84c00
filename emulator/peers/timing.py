"""When collectives begin and end for this rank and for absent ones, computed in this rank's process. The absent ranks
run the same program as this one, each at its own pace: where this rank computes d seconds, rank p computes d times its
pace; where this one waits for a collective, they do. A collective begins when its last member has come and the
communicator is done with the one before; `emulator.jobs.replay` makes the same of the program as a graph.
"""

from dataclasses import dataclass

import numpy as np

OWN = 0
"""This rank's place in the arrays; absent ranks follow."""


class Progress:
    """How far this rank and the absent ones have come. Arrays (1 + absent,): this rank first."""

    def __init__(self, rank: int, absent: np.ndarray, pace: np.ndarray):
        """`pace`: float64 (1 + absent,), over that of this machine times the scale of all; of this rank 1."""
        self.ranks = np.concatenate([[rank], absent]).astype(np.int64)
        self.pace = np.asarray(pace, np.float64)
        self.at_s = np.zeros(len(self.ranks))
        self.draw = np.ones(len(self.ranks))
        """Noise on the pace, for this iteration."""

    def compute(self, seconds: float) -> None:
        """This rank computed for so long."""
        self.at_s += seconds * self.pace * self.draw

    def wait(self, end_s: np.ndarray) -> None:
        """All wait for what ends at `end_s` (1 + absent,) for each of them."""
        np.maximum(self.at_s, end_s, out=self.at_s)


@dataclass(frozen=True)
class CollectiveTimes:
    """When one collective began and ended."""

    came_s: float
    """When this rank was ready and its communicator free."""
    start_s: float
    """When the last member was."""
    end_s: np.ndarray
    """(1 + absent,): when it was over for each rank."""


class CommunicatorTimes:
    """A communicator: one collective after the other."""

    def __init__(self, progress: Progress, members: np.ndarray, speaks_for: np.ndarray):
        """bool (1 + absent,) both. `members`: of the group. `speaks_for`: whose arrival this process decides; where
        several ranks are real, each plays a share of the absent ones."""
        self._members = members
        self._speaks_for = members & speaks_for
        self._free_s = np.zeros(len(progress.ranks))

    def arrive(self, at_s: np.ndarray) -> tuple[np.ndarray, float]:
        """Ranks come at `at_s`. Returns when each is ready for it, and the last of those this process speaks for."""
        ready_s = np.maximum(at_s, self._free_s)
        return ready_s, float(ready_s[self._speaks_for].max())

    def complete(self, ready_s: np.ndarray, last_s: float, seconds: float) -> CollectiveTimes:
        """It takes `seconds` from `last_s` on. Ranks outside the group have groups of their own that do the same."""
        end_s = ready_s + seconds
        end_s[self._members] = last_s + seconds
        self._free_s = end_s
        return CollectiveTimes(float(ready_s[OWN]), last_s, end_s)


def blocked(from_s: float, times: list[CollectiveTimes]) -> tuple[float, float]:
    """Of a wait from `from_s` on for all of `times`: seconds (in their transfers, until other ranks had come)."""
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
