"""Training steps that don't wait for stragglers, as in Trio-ML: in a job with a deadline, sums end without late ranks
(docs/protocol.md, section 13), and a late gradient is added to a later step.

    agent = HostAgent.join(address, job="demo", rank=rank, world_size=4, deadline_s=0.05)
    rounds = PartialRounds(agent, parameters.size)
    while step < steps:
        # usually one round; several after a slow step of this rank
        for each in rounds.contribute(gradient(parameters), steps - step):
            parameters -= rate * each.mean
            step += 1

The ranks that a sum includes depend on timing, and so do its bits: two runs differ. All ranks of one run have identical
bits.

1. Contributions pass through an error-feedback buffer: the sum takes all of it, or the part that is late stays in it.
   No contribution is lost or counted twice.
2. A rank that is behind, because all of its contribution to a round came too late, takes the next rounds at once, until
   one includes its buffer.

Trio-ML: M. Yang et al., "Using Trio: Juniper Networks' Programmable Chipset for Emerging In-Network Applications",
SIGCOMM 2022, section 5.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from host_agent.base import Agent
from host_agent.calls import LateContributions
from switchml.errors import ConfigError


@dataclass(frozen=True)
class Round:
    """Result of a round: `mean`, float32[numel], and `ranks`, the smallest number of ranks in any part of it, are the
    same on all ranks; `late`: share of this rank's own gradient that was too late for it, from 0 to 1."""

    mean: npt.NDArray[np.float32]
    ranks: int
    late: float


class PartialRounds:
    """One rank's part in a job with a deadline, whose every call is a round of `numel` float32 values; all ranks have
    such an object. Raises ConfigError if the job has no deadline."""

    def __init__(self, agent: Agent, numel: int):
        if numel < 1 or not agent.deadline_s:
            raise ConfigError(f"numel {numel}, deadline {agent.deadline_s:g} s: expected at least 1, and above 0")
        self._agent = agent
        self._late = LateContributions(np.zeros(numel, np.float32))

    def contribute(self, gradient: npt.NDArray[np.float32], most: int) -> list[Round]:
        """Add this rank's gradient (float32[numel]); returns the rounds completed since the last call, at least one.
        `most`: number of remaining rounds, so that a rank that catches up ends where the others do. Raises the job's
        error: LeftBehind if results that this rank has missed are no longer available."""
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
        """A copy of the contributions that wait for the next round."""
        return self._late.values.copy()
