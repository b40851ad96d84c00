"""Searches the setting with the least time per sample.

1. Each pass by itself, including those that are not allowed, to show their potential.
2. Along the critical path: of the passes that affect a part on it, the one with the largest gain, repeatedly until none
   gains; buckets are recomputed by `cuts.py` each time.
3. If few combinations remain, all of them (exact, as where the space is a path); otherwise Optuna (TPE) proposes, and
   buckets near its proposals are improved, up to a number of trials.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from emulator.jobs.replay.critical import critical_path
from emulator.traces.optimizer import cuts
from emulator.traces.optimizer.machine import Machine
from emulator.traces.optimizer.objective import Evaluation, Objective
from emulator.traces.optimizer.passes import PASSES, TRACED, Setting, in_file, named
from emulator.traces.whatif.buckets import MIB, assign, caps_of
from emulator.traces.whatif.gradients import gradients
from switchml.errors import ConfigError

DEFAULT_ALLOW = ("buckets", "allreduce")
"""Passes that a settings file can apply without changing results."""
CAPS = tuple(int(mib * MIB) for mib in (0.25, 0.5, 1, 2, 3, 5, 8, 12, 18, 25, 50, 100))
MICRO_BATCHES = (1, 2, 4, 8)
BATCHES = (1.0, 0.5, 2.0, 4.0, 8.0, 16.0)
CLIMBS, MAX_MOVES = 9, 3
"""Settings tried near each proposal, and bucket boundaries moved in each: replays are cheaper than proposals."""
GAIN = 1e-6
"""Minimum relative gain."""
ACTS_ON = {
    "buckets": ("exposed communication", "compression"),
    "allreduce": ("exposed communication",),
    "codec": ("exposed communication", "compression"),
    "priority": ("exposed communication",),
    "precision": ("compute", "exposed communication"),
    "batch": ("exposed communication", "host"),
    "fuse": ("compute", "host"),
    "recompute": (),
    "accumulate": ("exposed communication",),
}
"""Parts of the critical path (`emulator.jobs.replay.parts`) that a pass can shorten; recomputation only saves memory.
"""

Progress = Callable[[int, float], None]
"""Called with (settings evaluated, best seconds so far)."""


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """The search space. `lists`: whether each bucket may have a separate cap (torch 2.13). `allreduces`, `codecs`:
    candidates."""

    passes: tuple[str, ...] = DEFAULT_ALLOW
    lists: bool = True
    allreduces: tuple[str, ...] = ("switchml",)
    codecs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        named(self.passes)
        if not self.passes:
            raise ConfigError("no pass is allowed: nothing to search")
        if "codec" in self.passes and not self.codecs:
            raise ConfigError("compression is allowed, but no codec")

    def only(self, name: str) -> Allowed:
        """Return the space restricted to one pass."""
        return Allowed(passes=(name,), lists=self.lists, allreduces=self.allreduces, codecs=self.codecs)

    def values(self, machine: Machine) -> dict[str, list]:
        """Return field → values, the traced one first; without buckets."""
        codecs: list[tuple[str, ...]] = [(), *((spec,) for spec in self.codecs)]
        every: dict[str, list] = {
            "precision": ["", "half"],
            "batch": list(BATCHES if machine.memory.limit and machine.memory.activations else BATCHES[:1]),
            "fuse": [False, True],
            "recompute": [False, True] if machine.memory.limit else [False],
            "accumulate": list(MICRO_BATCHES),
            "allreduce": ["", *(each for each in self.allreduces if each != machine.traced_allreduce)],
            "codec": codecs,
            "priority": [False, True],
        }
        return {name: values for name, values in every.items() if name in self.passes and len(values) > 1}


def combinations(values: dict[str, list]) -> Iterator[Setting]:
    """Return every setting of these fields."""
    return (Setting(**dict(zip(values, chosen, strict=True))) for chosen in itertools.product(*values.values()))


def runs(sizes: np.ndarray) -> Iterator[tuple[int, ...]]:
    """Yield the caps of every division of gradients into runs."""
    for cut in itertools.product((0, 1), repeat=len(sizes) - 1):
        yield caps_of(sizes, np.cumsum([0, *cut]))


@dataclass
class SearchResult:
    """Result of the search. `in_file`: the best without advice-only passes. `steps`: along the critical path. `how`:
    the method."""

    traced: Evaluation
    best: Evaluation
    in_file: Evaluation
    alone: dict[str, Evaluation] = field(default_factory=dict)
    """Pass → its best setting with nothing else changed."""
    steps: list[tuple[str, Evaluation]] = field(default_factory=list)
    how: str = ""
    evaluated: int = 0
    wall_s: float = 0.0
    interrupted: bool = False

    @property
    def gain(self) -> float:
        """Share of the time per sample that is saved."""
        return self.gain_of(self.best)

    @property
    def predicted_speedup(self) -> float:
        """Predicted speed-up of the job with the settings file."""
        return self.traced.sample_s / self.in_file.sample_s

    def gain_of(self, evaluation: Evaluation, at_worst: bool = False) -> float:
        """Return the share of the traced job's time per sample that `evaluation` saves."""
        return 1 - (evaluation.worst_s if at_worst else evaluation.sample_s) / self.traced.sample_s


def search(
    objective: Objective,
    allowed: Allowed,
    *,
    trials: int = 1000,
    seed: int = 0,
    time_budget_s: float = np.inf,
    progress: Progress = lambda evaluated, best_s: None,
) -> SearchResult:
    """Search with at most `trials` settings or `time_budget_s` seconds, after the individual passes; Ctrl-C ends it
    with the best so far. Each part of the result gains more than the replay's error, even in the worst case."""
    began_s = time.perf_counter()
    traced = objective(TRACED)
    result = SearchResult(traced, traced, traced)
    running = Search(objective, allowed, result, trials, began_s + time_budget_s, progress)
    try:
        running.until_spent(running.alone, running.along_the_path, lambda: running.everywhere(seed))
    except KeyboardInterrupt:
        result.interrupted, result.how = True, "interrupted: the best until then"
    result.evaluated = running.evaluated
    running.trim(max(objective.error, GAIN))
    result.in_file = objective(in_file(result.best.setting))
    result.wall_s = time.perf_counter() - began_s
    return result


class _Spent(Exception):
    """The budget of trials or time is spent."""


@dataclass
class Search:
    """A search in progress."""

    objective: Objective
    allowed: Allowed
    result: SearchResult
    trials: int
    until_s: float
    progress: Progress

    def __post_init__(self) -> None:
        self.before = self.objective.evaluated
        self.is_path = cuts.is_path(self.objective.joined)
        self.sizes = gradients(self.objective.joined).bytes

    @property
    def evaluated(self) -> int:
        """Number of settings replayed by this search."""
        return self.objective.evaluated - self.before

    def until_spent(self, *stages: Callable[[], None]) -> None:
        """Run the stages until the budget is spent."""
        try:
            for stage in stages:
                stage()
        except _Spent:
            self.result.how = self.result.how or "the budget ended before the space did"

    def judge(self, setting: Setting) -> Evaluation:
        """Evaluate a setting, and keep it if it is the best so far."""
        if self.evaluated >= self.trials or time.perf_counter() > self.until_s:
            raise _Spent
        evaluation = self.objective(setting)
        if evaluation.fits and (
            not self.result.best.fits or evaluation.worst_s < self.result.best.worst_s * (1 - GAIN)
        ):
            self.result.best = evaluation
        self.progress(self.evaluated, self.result.best.sample_s)
        return evaluation

    def trim(self, least: float) -> None:
        """Remove parts of the best setting that gain less than this share of its time."""
        for name in self.result.best.setting.changed():
            bare = dataclasses.replace(self.result.best.setting, **{name: getattr(TRACED, name)})
            evaluation = self.objective(bare if name != "buckets" else dataclasses.replace(bare, codec=bare.codec[:1]))
            if evaluation.fits and evaluation.worst_s <= self.result.best.worst_s * (1 + least):
                self.result.best = evaluation

    # Individual passes

    def alone(self) -> None:
        for one in PASSES:
            if one.name == "codec" and not self.allowed.codecs:
                continue
            proposals = self.proposals(TRACED, one.name, self.allowed.only(one.name))
            if fitting := [evaluation for evaluation in map(self.objective, proposals) if evaluation.fits]:
                self.result.alone[one.name] = best = min(fitting, key=lambda evaluation: evaluation.worst_s)
                if one.name in self.allowed.passes:
                    self.judge(best.setting)

    def proposals(self, base: Setting, name: str, allowed: Allowed) -> Iterator[Setting]:
        """Yield `base` with other values of one field."""
        if name == "buckets":
            yield from self.bucketed(base, tuple(dict.fromkeys(base.codec)) or ("",))
            return
        for value in allowed.values(self.objective.machine).get(name, []):
            if value != getattr(base, name):
                yield dataclasses.replace(base, **{name: value})

    def bucketed(self, base: Setting, codecs: tuple[str, ...]) -> Iterator[Setting]:
        """Yield `base` with other buckets: uniform caps, and, if lists are allowed, the best along the path."""
        for cap in CAPS:
            if cap < 2 * self.sizes.sum():
                yield dataclasses.replace(base, buckets=(cap,), codec=base.codec[:1])
        if self.allowed.lists:
            yield self.objective.cut(base, codecs)

    # Along the critical path

    def along_the_path(self) -> None:
        while True:
            now = self.result.best
            part_s = critical_path(self.objective.replayed(now.setting)).by_part
            on_it = {part for part, seconds in part_s.items() if seconds > 0}
            candidates: list[tuple[str, Evaluation]] = []
            for name in self.allowed.passes:
                if not on_it.isdisjoint(ACTS_ON[name]):
                    for setting in self.proposals(now.setting, name, self.allowed):
                        candidates.append((name, self.judge(setting)))
                        if "buckets" in self.allowed.passes and self.allowed.lists and name != "buckets":
                            cut = self.objective.cut(setting, self.codecs(setting))
                            candidates.append((f"{name}, buckets", self.judge(cut)))
            if self.result.best is now:
                return
            self.result.steps.append(next(step for step in candidates if step[1] is self.result.best))

    def codecs(self, setting: Setting) -> tuple[str, ...]:
        """Return the codecs available to buckets of `setting`: all allowed ones, if it uses any."""
        return ("", *self.allowed.codecs) if setting.codec else ("",)

    # Whole space

    def everywhere(self, seed: int) -> None:
        values = self.allowed.values(self.objective.machine)
        cut = "buckets" in self.allowed.passes
        if cut and self.allowed.lists and "codec" in values:
            values["codec"] = [(), self.allowed.codecs]  # selected for each bucket
        left = self.trials - self.evaluated
        if left <= 0:
            raise _Spent
        count, cuttings = math.prod(map(len, values.values())), 2 ** (len(self.sizes) - 1)
        if not cut or (self.allowed.lists and self.is_path):
            if count <= left:
                for setting in combinations(values):
                    self.judge(self.objective.cut(setting, self.codecs(setting)) if cut else setting)
                most = f", at most {cuts.MAX_BUCKETS}" if len(self.sizes) > cuts.MAX_BUCKETS else ""
                buckets = f"exact: every combination, each with the best buckets{most}"
                self.result.how = buckets if cut else "exact: all tried"
                return
        elif self.allowed.lists and cuttings * count <= left and "codec" not in values:
            for setting in combinations(values):
                for caps in runs(self.sizes):
                    self.judge(dataclasses.replace(setting, buckets=caps))
            self.result.how = "exact: every combination with every way to cut"
            return
        self.by_optuna(values, cut, left, seed)

    def by_optuna(self, values: dict[str, list], cut: bool, left: int, seed: int) -> None:
        """Run TPE over the fields, and over the choice of buckets: along the path, by one cap, or near the best
        known."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        rng = np.random.default_rng(seed)
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, multivariate=True))
        total = float(self.sizes.sum())
        methods = ["traced", *(["cap"] if cut else []), *(["path", "best"] if cut and self.allowed.lists else [])]

        def proposal(trial: optuna.Trial) -> Setting:
            """Return Optuna's next proposal."""
            chosen = {name: each[trial.suggest_categorical(name, range(len(each)))] for name, each in values.items()}
            base = Setting(**chosen)
            method = trial.suggest_categorical("buckets", methods)
            if method == "cap":
                caps = (int(trial.suggest_float("cap", min(float(self.sizes.min()), total / 2), total, log=True)),)
                return dataclasses.replace(base, buckets=caps, codec=base.codec[:1])
            if method == "path":
                return self.objective.cut(base, self.codecs(base))
            if method == "best":
                return dataclasses.replace(base, buckets=self.result.best.setting.buckets, codec=base.codec[:1])
            return base

        self.result.how = "Optuna (TPE): the best of all trials"
        for _ in range(4 * max(left, 0)):  # known settings do not count as trials
            trial = study.ask()
            evaluation = self.judge(proposal(trial))
            if cut and self.allowed.lists:
                evaluation = self.climb(evaluation, rng)
            study.tell(trial, evaluation.worst_s if evaluation.fits else 10 * self.result.traced.worst_s)

    def climb(self, evaluation: Evaluation, rng: np.random.Generator) -> Evaluation:
        """Return the best of a setting and some in which a few bucket boundaries are moved, one after the other."""
        for moves in rng.integers(1, MAX_MOVES + 1, CLIMBS):
            bucket = assign(self.sizes, evaluation.setting.buckets or (self.sizes.sum(),))
            cut = np.diff(bucket)
            if not len(cut):
                break
            cut[rng.integers(0, len(cut), moves)] ^= 1
            caps = caps_of(self.sizes, np.concatenate([[0], np.cumsum(cut)]))
            other = self.judge(
                dataclasses.replace(evaluation.setting, buckets=caps, codec=evaluation.setting.codec[:1])
            )
            if other.fits and other.worst_s < evaluation.worst_s:
                evaluation = other
        return evaluation
