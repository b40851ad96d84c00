"""Units of fully sharded weights in a rank's pass (ZeRO 3, torch's FSDP): each unit is gathered ahead of the layers
that need it, and its gradients are reduce-scattered once they are complete. All of this runs on one stream in launch
order, as NCCL runs the collectives of a process group; in an aggregator, gathers have a separate queue
(docs/protocol.md, section 11).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from emulator.jobs.costed import Step
from emulator.jobs.workload.job import Job
from emulator.jobs.workload.sharding import MIN_UNIT_PARAMETERS

ROOT = 0
"""The unit of parameters outside the layers: embedding, projection. It stays gathered from forward to backward."""
LAYER = ("attention", "mlp")


class Launches(Protocol):
    """Interface of a rank's program to a pass over units."""

    job: Job

    def last_compute(self) -> tuple[int, ...]:
        """Return the most recently launched compute op, if any."""

    def gather_unit(
        self, parameters: float, experts: float, micro_batch: int, after: tuple[int, ...], is_forward: bool
    ) -> int:
        """Launch an all-gather; return the op."""

    def reduce_unit(self, parameters: float, experts: float, after: tuple[int, ...]) -> int:
        """Launch a reduce-scatter; return the op."""


class Units:
    """One pass over the steps of a piece. The weights of unit j are gathered once unit j - 1 - prefetch is finished."""

    def __init__(self, rank: Launches, steps: Sequence[Step], is_forward: bool, before: Units | None) -> None:
        self._rank, self._settings = rank, rank.job.fsdp
        self._is_forward = is_forward
        self.unit_of = assign(steps, rank.job)
        self._parameters = [0.0] * (max(self.unit_of) + 1)
        self._trained = [0.0] * len(self._parameters)
        self._experts = [0.0] * len(self._parameters)
        self._left = [0] * len(self._parameters)
        for unit, step in zip(self.unit_of, steps, strict=True):
            self._parameters[unit] += step.parameters + step.frozen_parameters
            self._trained[unit] += step.parameters
            self._experts[unit] += step.expert_parameters
            self._left[unit] += 1
        order = self.unit_of if is_forward else self.unit_of[::-1]
        self._order = [unit for unit in dict.fromkeys(order) if self._parameters[unit]]
        self._gathers: dict[int, tuple[int, ...]] = {}
        if not is_forward:
            kept = self._order if not self._settings.reshard_after_forward else [ROOT]
            self._gathers = {unit: () for unit in kept if unit in self._order}
        self._entered: set[int] = set()
        self.reduced: tuple[int, ...] = before.reduced if before is not None else ()
        """The most recent reduce-scatter."""

    def enter(self, number: int, micro_batch: int) -> tuple[int, ...]:
        """Launch the gathers allowed before step `number`; return the ops that the step waits for."""
        unit = self.unit_of[number]
        if unit in self._entered or not self._parameters[unit]:
            return ()
        self._entered.add(unit)
        ahead = self._order[: self._order.index(unit) + 1 + self._settings.prefetch]
        for one in ahead:
            if one not in self._gathers:
                after = self._rank.last_compute()
                what = self._parameters[one], self._experts[one]
                op = self._rank.gather_unit(*what, micro_batch, after, self._is_forward)
                self._gathers[one] = (op,)
        return self._gathers[unit]

    def leave(self, number: int, last: int) -> None:
        """Process the end of step `number`'s backward pass, whose last op is `last`."""
        unit = self.unit_of[number]
        self._left[unit] -= 1
        if not self._left[unit] and self._trained[unit]:
            self.reduced = (self._rank.reduce_unit(self._trained[unit], self._experts[unit], (last,)),)


def assign(steps: Sequence[Step], job: Job) -> list[int]:
    """Return the unit of each step: ROOT, or numbered from 1 in forward order. A transformer's layers are not divided;
    in other networks, every step is a layer, and a unit has at least MIN_UNIT_PARAMETERS."""
    is_transformer = any(step.name in LAYER for step in steps)
    least = job.fsdp.unit_parameters or (0.0 if is_transformer else MIN_UNIT_PARAMETERS)
    units, unit, layers, parameters = [], 1, 0, 0.0
    for step in steps:
        if is_transformer and step.name not in LAYER:
            units.append(ROOT)
            continue
        units.append(unit)
        parameters += step.parameters + step.frozen_parameters
        if step.name == LAYER[0]:
            continue
        layers += 1
        if parameters >= least if least else layers >= job.fsdp.unit_layers:
            unit, layers, parameters = unit + 1, 0, 0.0
    return units
