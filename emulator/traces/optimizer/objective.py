"""Evaluates settings: replays the job with all passes applied. Passes that change ranks' compute are applied to the
whole job, once for each combination; those that only change the reduction of gradients, to the coarsened job.
"""

import dataclasses
from dataclasses import dataclass, field

import numpy as np

from emulator.jobs.replay.engine import Replayed, replay
from emulator.traces.joined import Joined
from emulator.traces.optimizer import cuts
from emulator.traces.optimizer.coarsen import coarsen
from emulator.traces.optimizer.machine import Machine
from emulator.traces.optimizer.passes import COMMUNICATION, COMPUTE, TRACED, Setting, apply
from emulator.traces.whatif.gradients import gradients
from emulator.traces.whatif.recompute import activations


@dataclass(frozen=True)
class Evaluation:
    """Result of a setting. `iteration_s`: of the whole iteration. `sample_s`: for as many samples as one traced
    iteration takes. `worst_s`: the same if each untraced all-reduce takes `Machine.uncertainty_s` longer, hidden or
    not; this is minimized. `memory_bytes`: of a rank, 0 without a limit."""

    setting: Setting
    iteration_s: float
    sample_s: float
    worst_s: float
    memory_bytes: float = 0.0
    fits: bool = True


@dataclass
class Objective:
    """Evaluates and caches settings of one job. `evaluated`: number of replays."""

    joined: Joined
    machine: Machine
    evaluated: int = 0
    _coarse: dict[Setting, Joined] = field(default_factory=dict)
    _ready: dict[Setting, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    _cut: dict[tuple, tuple[tuple[int, ...], tuple[str, ...]]] = field(default_factory=dict)
    _known: dict[Setting, Evaluation] = field(default_factory=dict)

    def __call__(self, setting: Setting) -> Evaluation:
        """Evaluate a setting. Raises ConfigError or GraphError if it can't be applied to this job."""
        if setting not in self._known:
            self.evaluated += 1
            job = apply(COMMUNICATION, self.coarse(setting), setting, self.machine)
            elapsed_s = replay(job.graph, job.costs).makespan_s
            never_traced = setting.buckets or setting.allreduce or setting.codec
            worst_s = elapsed_s + self.machine.uncertainty_s * (len(gradients(job).transfers) if never_traced else 0)
            memory_bytes = self.memory_bytes(setting)
            limit = self.machine.memory.limit
            self._known[setting] = Evaluation(
                setting,
                elapsed_s,
                elapsed_s / setting.samples,
                worst_s / setting.samples,
                memory_bytes,
                not limit or memory_bytes <= limit,
            )
        return self._known[setting]

    @property
    def error(self) -> float:
        """Relative error of the replay of the unchanged job: smaller differences are not significant."""
        return abs(self(TRACED).iteration_s / self.joined.iteration_s - 1)

    def coarse(self, setting: Setting) -> Joined:
        """Return the coarsened job with the setting's compute passes."""
        key = _compute(setting)
        if key not in self._coarse:
            self._coarse[key] = coarsen(self._computed(key))
        return self._coarse[key]

    def cut(self, setting: Setting, codecs: tuple[str, ...]) -> Setting:
        """Return the setting with the buckets of `cuts.fastest`, each with one of `codecs` ("" is none)."""
        key = (_compute(setting), setting.allreduce, codecs)
        if key not in self._cut:
            if key[0] not in self._ready:
                self._ready[key[0]] = cuts.ready(self.coarse(setting))
            options = cuts.choices(self.machine, setting.allreduce, codecs)
            self._cut[key] = cuts.fastest(*self._ready[key[0]], options, self.machine.uncertainty_s)
        caps, chosen = self._cut[key]
        return dataclasses.replace(setting, buckets=caps, codec=chosen if any(chosen) else ())

    def _computed(self, setting: Setting) -> Joined:
        return apply(COMPUTE, self.joined, setting, self.machine)

    def whole(self, setting: Setting) -> Joined:
        """Return the whole job with all passes, for reports and for tests of `coarsen`."""
        return apply(COMMUNICATION, self._computed(setting), setting, self.machine)

    def replayed(self, setting: Setting) -> Replayed:
        """Return the whole job's replay."""
        job = self.whole(setting)
        return replay(job.graph, job.costs)

    def memory_bytes(self, setting: Setting) -> float:
        """Return the memory of a rank: states, and the setting's activations; 0 without a limit."""
        memory = self.machine.memory
        if not memory.limit:
            return 0.0
        states = self.machine.states_bytes(self.joined)
        activations_bytes = memory.activations * setting.batch
        if setting.precision:
            states, activations_bytes = states / 2, activations_bytes / 2
        return states + (activations(activations_bytes, self.joined) if setting.recompute else activations_bytes)


def _compute(setting: Setting) -> Setting:
    """Return the part of a setting that changes ranks' compute."""
    return dataclasses.replace(TRACED, **{one.name: getattr(setting, one.name) for one in COMPUTE})
