"""Optimization of a job described for `switchml emulate`: the split and schedule with the least time per
sample, within its accelerators' memory. The global batch is fixed, so that training computes the same.

Every combination is emulated if there are few enough; otherwise Optuna (TPE) proposes them, beginning with the
requested job.
"""

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from emulator import datafile
from emulator.cluster import codecs
from emulator.cluster.algorithms import ALGORITHMS
from emulator.jobs.description import Request, load_cluster, load_model
from emulator.jobs.emulate import emulate
from emulator.jobs.emulation import Emulation
from emulator.jobs.workload.job import RECOMPUTE
from emulator.jobs.workload.models import Transformer
from switchml.errors import ConfigError, EmulationError

MIB = 1 << 20
POWERS = tuple(2**power for power in range(11))
CAPS = tuple(float(cap * MIB) for cap in (1, 5, 25, 100))
ONES = ("split", "schedule", "micro-batch", "recompute", "zero", "allreduce", "buckets")
"""Default search dimensions; without `codec`, which changes results, and `fuse`, which needs a compiler."""

SAME = 1e-9
"""Relative time difference below which times count as equal."""

Change = dict[str, Any]
"""Field of `Job`, or "codec" → value."""


@dataclass(frozen=True)
class Candidate:
    """A job and its emulation. `sample_s`: seconds per sample of the global batch."""

    change: Change
    sample_s: float
    emulation: Emulation = field(repr=False)


@dataclass
class JobSearchResult:
    """Result of the search. `refused`: number of combinations that are invalid or do not fit."""

    requested: Candidate | None
    best: Candidate | None
    alone: dict[str, Candidate] = field(default_factory=dict)
    evaluated: int = 0
    refused: int = 0
    how: str = ""
    wall_s: float = 0.0
    interrupted: bool = False

    @property
    def gain(self) -> float:
        """Share of a sample's time that is saved; 0 if the requested job does not run."""
        return 1 - self.best.sample_s / self.requested.sample_s if self.requested and self.best else 0.0


def axes(requested: Request, names: tuple[str, ...]) -> dict[str, list[Change]]:
    """Return the search dimensions: name → changes. Raises ConfigError for unknown names."""
    job, model = requested.job, load_model(requested)
    is_transformer = isinstance(model, Transformer)
    most_stages = model.layers if isinstance(model, Transformer) else 0
    cluster = load_cluster(requested)
    per_node = cluster.accelerators_per_node
    left_out = {"ps"} if cluster.inside.multicast_bytes_per_s else {"ps", "nvls"}
    splits = [
        {"tp": tp, "pp": pp}
        for tp, pp in itertools.product(POWERS, POWERS)
        if tp <= per_node and job.gpus % (tp * pp) == 0 and pp <= most_stages
    ]
    known: dict[str, list[Change]] = {
        "split": splits or [{}],
        "schedule": [
            {"schedule": "interleaved" if pieces > 1 else schedule, "virtual_stages": pieces}
            for schedule, pieces in [("1f1b", 1), ("gpipe", 1), ("axonn", 1), ("", 2), ("", 4)]
        ]
        if is_transformer
        else [{}],
        "micro-batch": [{"micro_batch": size} for size in POWERS if size <= job.global_batch],
        "recompute": [{"recompute": how} for how in RECOMPUTE],
        "zero": [{"zero": stage} for stage in range(4)],
        "allreduce": [{"allreduce": how} for how in ALGORITHMS if how not in left_out],
        "buckets": [{"bucket_bytes": cap} for cap in CAPS],
        "fuse": [{"fuse": False}] if is_transformer else [{"fuse": False}, {"fuse": True}],
        "codec": [{"codec": name} for name in ("", *codecs.codecs())],
    }
    for name in names:
        if name not in known:
            raise ConfigError(datafile.unknown("change of a job", name, known))
    return {name: known[name] for name in known if name in names}


def changed(requested: Request, change: Change) -> Request:
    """Return `requested` with changed fields. Raises ConfigError for invalid combinations."""
    fields = {key: value for key, value in change.items() if key != "codec"}
    if fields.get("tp") == 1 and "sequence_parallel" in requested.choice.names:
        fields["sequence_parallel"] = False
    job = requested.job.replace(batch=requested.job.global_batch, **fields)
    return dataclasses.replace(requested, job=job, codec=change.get("codec", requested.codec))


def tables(job_file: Mapping[str, Any], request: Request, change: Change) -> dict[str, Any]:
    """Return a job file's tables with the change, and with the options that were chosen for the job at the start of the
    search."""
    job = changed(request, change).job
    names = {*request.choice.names, *change, "batch"} - {"codec"} | ({"schedule"} if job.virtual_stages > 1 else set())
    over: dict[str, Any] = {"job": {name: getattr(job, name) for name in sorted(names)}}
    return datafile.merge(job_file, over | ({"codec": change["codec"]} if "codec" in change else {}))


def search(
    requested: Request,
    names: tuple[str, ...] = ONES,
    *,
    trials: int = 1000,
    seed: int = 0,
    memory_bytes: float = 0.0,
    time_budget_s: float = float("inf"),
    progress: Callable[[int, float], None] = lambda evaluated, best_s: None,
) -> JobSearchResult:
    """Search the best combination of `names`. `memory_bytes`: limit per accelerator, if below its capacity. Ctrl-C ends
    the search with the best so far. Raises ConfigError if no combination tried runs."""
    began_s = time.perf_counter()
    space = axes(requested, names)
    known: dict[tuple, Candidate | None] = {}
    result = JobSearchResult(None, None)

    def judge(change: Change) -> Candidate | None:
        key = tuple(sorted(change.items()))
        if key not in known:
            known[key] = _candidate(requested, change, memory_bytes)
            result.evaluated += 1
            one = known[key]
            result.refused += one is None
            if one and (result.best is None or one.sample_s < result.best.sample_s):
                result.best = one
            progress(result.evaluated, result.best.sample_s if result.best else float("inf"))
        return known[key]

    try:
        result.requested = judge({})
        for name, changes in space.items():
            worths = [one for change in changes if (one := judge(change))]
            if worths:
                result.alone[name] = min(worths, key=lambda one: one.sample_s)
        if math.prod(map(len, space.values())) <= trials:
            result.how = "exact: every combination"
            for chosen in itertools.product(*space.values()):
                if time.perf_counter() - began_s > time_budget_s:
                    result.how = "the budget ended before the space did"
                    break
                judge({key: value for change in chosen for key, value in change.items()})
        else:
            _by_optuna(space, judge, result, trials, seed, began_s + time_budget_s)
        if result.best:
            result.best = _trimmed(result.best, judge)
    except KeyboardInterrupt:
        result.interrupted, result.how = True, "interrupted: the best until then"
    result.wall_s = time.perf_counter() - began_s
    if result.best is None:
        _candidate(requested, {}, memory_bytes, explain=True)
        raise ConfigError(f"none of {result.evaluated} ways to run this job fits; allow more (recompute, zero, split)")
    return result


def _candidate(requested: Request, change: Change, memory_bytes: float, explain: bool = False) -> Candidate | None:
    """Return None for combinations that are invalid or do not fit; with `explain` raise the error."""
    try:
        emulation = emulate(changed(requested, change))
    except (ConfigError, EmulationError):
        if explain:
            raise
        return None
    if memory_bytes and emulation.memory.total > memory_bytes:
        return None
    return Candidate(change, 1 / emulation.samples_per_s, emulation)


def _trimmed(best: Candidate, judge: Callable[[Change], Candidate | None]) -> Candidate:
    """Remove changes that gain nothing."""
    for key in list(best.change):
        one = judge({name: value for name, value in best.change.items() if name != key})
        if one and one.sample_s <= best.sample_s * (1 + SAME):
            best = one
    return best


def _by_optuna(space, judge, result: JobSearchResult, trials: int, seed: int, until_s: float) -> None:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, multivariate=True))
    for one in result.alone.values():  # the best single changes are good starting points for combinations
        study.enqueue_trial(
            {name: changes.index(one.change) for name, changes in space.items() if one.change in changes},
            skip_if_exists=True,
        )
    result.how = "Optuna (TPE): the best of all trials"
    for _ in range(4 * trials):
        if result.evaluated >= trials or time.perf_counter() > until_s:
            break
        trial = study.ask()
        change: Change = {}
        for name, changes in space.items():
            change |= changes[trial.suggest_categorical(name, range(len(changes)))]
        one = judge(change)
        if one is None:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(trial, one.sample_s)
