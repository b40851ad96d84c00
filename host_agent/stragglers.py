"""Sums that don't wait for stragglers: after a deadline a round is done with the ranks that are there, as in Trio-ML.

    with PartialRounds(agent, numel, deadline_s=0.05) as rounds:
        while step < steps:
            for each in rounds.contribute(gradient(parameters)):  # often one; several after a slow step of this rank
                parameters -= rate * each.mean
                step += 1

Nothing new is on the wire. A rank's process is there although its program is late: a thread takes part in its stead,
with what the rank's memory holds, which is nothing or a gradient that came too late for its own round. So every
aggregator and switch adds partial sums, every rank has all results, with the same bits, and an all-reduce of a bit for
each rank says who is in them. A process that is stopped, or cut off, still holds up the others.

Which ranks a sum holds depends on time, and so do its bits: two runs differ.

1. A round begins on a rank when its program contributes, or at the deadline, counted from the end of the last round, or
   from when the program took it. Where the program has not taken an earlier round yet, it begins at once.
2. The rank adds its memory to the round, and clears it. What the program contributes goes through the memory, too: an
   on-time gradient leaves it at once, a late one with the next round (error feedback).
3. The sum is divided by the number of ranks with something in it. Rounds with nothing don't count; the next one has
   twice the deadline, so that ranks that all pause don't keep the network busy.

Trio-ML: M. Yang et al., "Using Trio: Juniper Networks' Programmable Chipset for Emerging In-Network Applications",
SIGCOMM 2022, section 5.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from host_agent.base import Agent
from switchml.errors import ConfigError, JobError

SHORTEST_PAUSE_S = 1e-3
LONGEST_PAUSE_S = 1.0
"""How long after an empty round the next one may wait."""


@dataclass(frozen=True)
class Round:
    """What a round came to, the same on all ranks. `mean`: float32[numel], over `ranks`, those that are in it."""

    mean: npt.NDArray[np.float32]
    ranks: tuple[int, ...]


class PartialRounds:
    """One rank's part in a job whose every call is a round of `numel` float32 values; all ranks have one of these.

    `deadline_s` is this rank's own, say one and a half times a usual step. The agent belongs to it: `close` (or the
    end of `with`) leaves the job.
    """

    def __init__(self, agent: Agent, numel: int, deadline_s: float):
        if numel < 1 or not deadline_s >= 0:
            raise ConfigError(f"numel {numel}, deadline_s {deadline_s}: expected at least 1, and not below 0")
        self.deadline_s = deadline_s
        self._agent = agent
        self._memory, self._spare = np.zeros(numel, np.float32), np.zeros(numel, np.float32)
        self._has_memory = self._is_here = self._is_waiting = self._closing = False
        self._done: deque[Round] = deque()
        self._error: Exception | None = None
        self._since, self._pause_s = time.monotonic(), 0.0
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"switchml-rounds-{agent.rank}", daemon=True)
        self._thread.start()

    def __enter__(self) -> PartialRounds:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def contribute(self, gradient: npt.NDArray[np.float32]) -> list[Round]:
        """Add this rank's gradient (float32[numel]); returns the rounds that are done since the last call, at least
        one. If some were done already, the gradient is late, and this returns at once. Raises the job's error."""
        with self._change:
            if gradient.shape != self._memory.shape or gradient.dtype != np.float32:
                raise ConfigError(f"{gradient.dtype}{list(gradient.shape)}: expected float32[{self._memory.size}]")
            self._memory += gradient
            self._has_memory = True
            self._is_here = not self._done
            self._is_waiting = True
            self._change.notify_all()
            self._change.wait_for(lambda: self._done or self._error is not None)
            self._is_waiting = False
            if not self._done:
                assert self._error is not None
                raise self._error
            rounds = list(self._done)
            self._done.clear()
            self._is_here, self._since = False, time.monotonic()
            return rounds

    def memory(self) -> npt.NDArray[np.float32]:
        """A copy of what waits for the next round."""
        with self._change:
            return self._memory.copy()

    def close(self) -> None:
        """Leave the job. What is in the memory is lost. May be called twice."""
        with self._change:
            self._closing = True
            self._change.notify_all()
        self._agent.leave()
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._await_begin():
                self._take_part()
            error: Exception = JobError("this rank has left the job")
        except Exception as reason:
            error = reason
        with self._change:
            self._error = error
            self._change.notify_all()

    def _await_begin(self) -> bool:
        """Wait until this rank's next round begins (step 1); False at the end."""
        with self._change:
            while not self._closing and not self._is_here:
                is_behind = self._done and not self._is_waiting and not self._pause_s
                left_s = 0.0 if is_behind else self._since + max(self.deadline_s, self._pause_s) - time.monotonic()
                if left_s <= 0:
                    break
                self._change.wait(min(left_s, threading.TIMEOUT_MAX))
            return not self._closing

    def _take_part(self) -> None:
        """Steps 2 and 3."""
        present: npt.NDArray[np.int32] = np.zeros(self._agent.world_size, np.int32)
        with self._change:
            values, self._memory = self._memory, self._spare
            present[self._agent.rank], self._has_memory, self._is_here = self._has_memory, False, False
        sums: Any = self._agent.allreduce(values, async_op=True)
        ranks = np.flatnonzero(self._agent.allreduce(present))
        total: npt.NDArray[np.float32] = sums.wait()
        values[:] = 0
        with self._change:
            self._spare, self._since = values, time.monotonic()
            if ranks.size:
                total /= np.float32(ranks.size)
                self._done.append(Round(total, tuple(map(int, ranks))))
                self._pause_s = 0.0
            else:
                self._pause_s = min(max(2 * max(self._pause_s, self.deadline_s), SHORTEST_PAUSE_S), LONGEST_PAUSE_S)
            self._change.notify_all()
