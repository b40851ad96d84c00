"""Searches for the setting with which a job takes least time for its samples.

1. Each pass alone, also those that may not be used: what they would gain. 2. Along the critical path: of the passes
that act on a part of it, the one that gains most, repeatedly until none gains; buckets come from `cuts.py` each time.
3. Where few combinations are left, all of them (exact, as where the space is a path); else Optuna (TPE) proposes, and
buckets are improved around what it proposes: the best of so many trials.
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
"""What a settings file can make a job do without changing what it computes."""
CAPS = tuple(int(mib * MIB) for mib in (0.25, 0.5, 1, 2, 3, 5, 8, 12, 18, 25, 50, 100))
MICRO_BATCHES = (1, 2, 4, 8)
BATCHES = (1.0, 0.5, 2.0, 4.0, 8.0, 16.0)
CLIMBS, MOST_MOVES = 9, 3
"""Settings tried around each proposal, and bucket borders moved in each: replays are cheaper than proposals."""
GAIN = 1e-6
"""A share of the time; less is no gain."""
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
"""Parts of the critical path (`emulator.jobs.replay.parts`) that a pass can shorten; recomputation only makes room."""

Progress = Callable[[int, float], None]
"""Called with (settings evaluated, best seconds so far)."""


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """`lists`: whether each bucket may have its own cap (torch 2.13). `allreduces`, `codecs`: candidates."""

    passes: tuple[str, ...] = DEFAULT_ALLOW
    lists: bool = True
    allreduces: tuple[str, ...] = ("switchml",)
    codecs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        named(self.passes)
        if not self.passes:
            raise ConfigError("no pass is allowed, so there is nothing to search")
        if "codec" in self.passes and not self.codecs:
            raise ConfigError("compression is allowed, but no codec")

    def only(self, name: str) -> Allowed:
        """The same for one pass alone."""
        return Allowed(passes=(name,), lists=self.lists, allreduces=self.allreduces, codecs=self.codecs)

    def values(self, machine: Machine) -> dict[str, list]:
        """Field → values, the traced one first; buckets left out."""
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
    """Every setting of these fields."""
    return (Setting(**dict(zip(values, chosen, strict=True))) for chosen in itertools.product(*values.values()))


def runs(sizes: np.ndarray) -> Iterator[tuple[int, ...]]:
    """Caps of every way to cut gradients into runs."""
    for cut in itertools.product((0, 1), repeat=len(sizes) - 1):
        yield caps_of(sizes, np.cumsum([0, *cut]))


@dataclass
class SearchResult:
    """`in_file`: the best without what is only advised. `steps`: along the critical path. `how`: what it rests on."""

    traced: Evaluation
    best: Evaluation
    in_file: Evaluation
    alone: dict[str, Evaluation] = field(default_factory=dict)
    """Pass → its best with nothing else changed."""
    steps: list[tuple[str, Evaluation]] = field(default_factory=list)
    how: str = ""
    evaluated: int = 0
    wall_s: float = 0.0
    interrupted: bool = False

    @property
    def gain(self) -> float:
        """Share of the time for a sample that is saved."""
        return self.gain_of(self.best)

    @property
    def predicted_speedup(self) -> float:
        """How many times as fast the job is with the settings file."""
        return self.traced.sample_s / self.in_file.sample_s

    def gain_of(self, evaluation: Evaluation, at_worst: bool = False) -> float:
        """Share of the traced job's time for a sample that `evaluation` saves."""
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
    """At most `trials` settings or `time_budget_s` seconds after the passes alone; Ctrl-C ends it with the best so
    far. What is found in the end gains with each of its parts more than the replay is off by, even at worst."""
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
    """No trials or no time left."""


@dataclass
class Search:
    """A search under way."""

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
        """Settings that this search has had replayed."""
        return self.objective.evaluated - self.before

    def until_spent(self, *stages: Callable[[], None]) -> None:
        """Run these until one of them finds the budget spent."""
        try:
            for stage in stages:
                stage()
        except _Spent:
            self.result.how = self.result.how or "the budget ended before the space did"

    def judge(self, setting: Setting) -> Evaluation:
        """Its evaluation; the best so far is kept."""
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
        """Leave out of the best setting what does not gain this share of its time."""
        for name in self.result.best.setting.changed():
            bare = dataclasses.replace(self.result.best.setting, **{name: getattr(TRACED, name)})
            evaluation = self.objective(bare if name != "buckets" else dataclasses.replace(bare, codec=bare.codec[:1]))
            if evaluation.fits and evaluation.worst_s <= self.result.best.worst_s * (1 + least):
                self.result.best = evaluation

    # Each pass alone

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
        """`base` with other values of one field."""
        if name == "buckets":
            yield from self.bucketed(base, tuple(dict.fromkeys(base.codec)) or ("",))
            return
        for value in allowed.values(self.objective.machine).get(name, []):
            if value != getattr(base, name):
                yield dataclasses.replace(base, **{name: value})

    def bucketed(self, base: Setting, codecs: tuple[str, ...]) -> Iterator[Setting]:
        """`base` with other buckets: uniform caps, and, where a list may be given, the best along the path."""
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
        """Which codecs the buckets of `setting` may choose from: all that may be used, where it has any."""
        return ("", *self.allowed.codecs) if setting.codec else ("",)

    # Everywhere

    def everywhere(self, seed: int) -> None:
        values = self.allowed.values(self.objective.machine)
        cut = "buckets" in self.allowed.passes
        if cut and self.allowed.lists and "codec" in values:
            values["codec"] = [(), self.allowed.codecs]  # which of them, is decided bucket by bucket
        left = self.trials - self.evaluated
        if left <= 0:
            raise _Spent
        count, cuttings = math.prod(map(len, values.values())), 2 ** (len(self.sizes) - 1)
        if not cut or (self.allowed.lists and self.is_path):
            if count <= left:
                for setting in combinations(values):
                    self.judge(self.objective.cut(setting, self.codecs(setting)) if cut else setting)
                most = f", at most {cuts.MOST_BUCKETS}" if len(self.sizes) > cuts.MOST_BUCKETS else ""
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
        """TPE over the fields, and over how buckets are made: along the path, by one cap, or near the best known."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        rng = np.random.default_rng(seed)
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, multivariate=True))
        total = float(self.sizes.sum())
        methods = ["traced", *(["cap"] if cut else []), *(["path", "best"] if cut and self.allowed.lists else [])]

        def proposal(trial: optuna.Trial) -> Setting:
            """What Optuna wants next."""
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
        for _ in range(4 * max(left, 0)):  # what is known already costs no trial of ours
            trial = study.ask()
            evaluation = self.judge(proposal(trial))
            if cut and self.allowed.lists:
                evaluation = self.climb(evaluation, rng)
            study.tell(trial, evaluation.worst_s if evaluation.fits else 10 * self.result.traced.worst_s)

    def climb(self, evaluation: Evaluation, rng: np.random.Generator) -> Evaluation:
        """The best of a setting and some in which a few borders between its buckets are moved, one after the other."""
        for moves in rng.integers(1, MOST_MOVES + 1, CLIMBS):
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
