"""Steps that don't wait for stragglers, as in Trio-ML: in a job with a deadline, sums end without the ranks that are
late (docs/protocol.md, section 13), and a late gradient goes into a later step.

    agent = HostAgent.join(address, job="demo", rank=rank, world_size=4, deadline_s=0.05)
    rounds = PartialRounds(agent, parameters.size)
    while step < steps:
        # often one; several after a slow step of this rank
        for each in rounds.contribute(gradient(parameters), steps - step):
            parameters -= rate * each.mean
            step += 1

Which ranks a sum holds depends on time, and so do its bits: two runs differ. All ranks of one run have the same bits.

1. What the program contributes goes through the memory: the sum takes all of it, or what is late stays there (error
   feedback). None is lost or counted twice.
2. A rank that is behind, as all of its round came too late, takes the next ones at once, until one takes its memory.

Trio-ML: M. Yang et al., "Using Trio: Juniper Networks' Programmable Chipset for Emerging In-Network Applications",
SIGCOMM 2022, section 5.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from host_agent.base import Agent
from host_agent.calls import Late
from switchml.errors import ConfigError


@dataclass(frozen=True)
class Round:
    """What a round came to, the same on all ranks: `mean`, float32[numel]. `ranks`: the fewest in any part of it;
    `late`: which part of this rank's own gradient was too late for it, from 0 to 1."""

    mean: npt.NDArray[np.float32]
    ranks: int
    late: float


class PartialRounds:
    """One rank's part in a job with a deadline, whose every call is a round of `numel` float32 values; all ranks have
    one of these. Raises ConfigError if the job has no deadline."""

    def __init__(self, agent: Agent, numel: int):
        if numel < 1 or not agent.deadline_s:
            raise ConfigError(f"numel {numel}, deadline {agent.deadline_s:g} s: expected at least 1, and above 0")
        self._agent = agent
        self._late = Late(np.zeros(numel, np.float32))

    def contribute(self, gradient: npt.NDArray[np.float32], most: int) -> list[Round]:
        """Add this rank's gradient (float32[numel]); returns the rounds that are done since the last call, at least
        one. `most`: how many rounds are left to take, so that a rank that catches up ends where the others do. Raises
        the job's error: LeftBehind, where results are gone that this rank has missed."""
        late, memory = self._late, self._late.values
        if gradient.shape != memory.shape or gradient.dtype != np.float32:
            raise ConfigError(f"{gradient.dtype}{list(gradient.shape)}: expected float32[{memory.size}]")
        memory += gradient
        rounds: list[Round] = []
        while not rounds or (late.is_behind and len(rounds) < most):
            mean = self._agent.allreduce(memory, "mean", late=late)
            rounds.append(Round(mean, late.ranks, late.late_chunks / late.chunks))
        return rounds

    def memory(self) -> npt.NDArray[np.float32]:
        """A copy of what waits for the next round."""
        return self._late.values.copy()
