"""Chooses unspecified options: a fast candidate among those that fit into memory. Candidates are ranked by the closed
form of their costs; the best of each kind are replayed without noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from emulator.jobs import iteration, replicas
from emulator.jobs.candidates import CHOSEN, OpenJob, Shape
from emulator.jobs.costed import CostedJob, closed_form_s
from emulator.jobs.replay.conditions import Conditions
from emulator.jobs.replay.engine import replay
from emulator.jobs.workload.job import Job
from emulator.jobs.workload.memory import Memory
from emulator.jobs.workload.models import LayerTable
from switchml.errors import ConfigError
from switchml.units import memory_text, time_text

SIMPLER = 1.15
"""A simpler kind of job is chosen if it takes at most this many times as long as the fastest; for layer tables, if it
fits."""
REPLAYED = 4
"""Number of replayed candidates of each kind."""
SHOWN = 10
"""Number of splits in a ranking."""
REPLAYED_OPS = 60_000
"""Largest graph that is replayed for a comparison. Larger ones have so many micro-batches that the overlap of gradient
reduction with compute, which the closed form ignores, hardly matters."""
DATA, SHARDED, SPLIT = range(3)
"""Kinds of jobs, the simplest first: data parallelism, sharded weights (FSDP), all others."""


@dataclass(frozen=True)
class Candidate:
    """A job that fits into memory."""

    job: Job
    costed: CostedJob
    memory_bytes: float
    iteration_s: float

    @property
    def kind(self) -> int:
        """Kind of the job's split: DATA, SHARDED or SPLIT."""
        job = self.job
        if job.tp > 1 or job.pp > 1 or job.zero in (1, 2):
            return SPLIT
        return SHARDED if job.zero == 3 else DATA

    @property
    def sample_s(self) -> float:
        """Seconds per sample."""
        return self.iteration_s / self.job.global_batch

    def replayed(self) -> Candidate:
        """Return the candidate with the time of its replayed graph instead of the closed form."""
        if replicas.ops_about(self.costed) > REPLAYED_OPS:
            return self
        conditions = Conditions(overlap_slowdown=iteration.overlap_slowdown(self.costed))
        seconds = replay(*iteration.build(self.costed), conditions).makespan_s
        return Candidate(self.job, self.costed, self.memory_bytes, seconds)

    def to_json(self) -> dict[str, Any]:
        """Return the chosen fields and the estimates as plain values."""
        named = {name: getattr(self.job, name) for name in CHOSEN} | {"batch": self.job.global_batch}
        figures = {"dp": self.job.dp, "iteration_s": self.iteration_s, "samples_per_s": 1 / self.sample_s}
        return named | figures | {"memory_bytes": self.memory_bytes}


class Choice(NamedTuple):
    """The chosen options, and the alternatives."""

    names: tuple[str, ...] = ()
    """Names of the chosen job fields."""
    best: Candidate | None = None
    """None where there was nothing to compare."""
    alternative: Candidate | None = None
    """The fastest candidate of another kind, or else the second fastest."""
    ranking: tuple[Candidate, ...] = ()
    """The fastest of all splits, if a ranking was requested."""

    def lines(self, job: Job) -> list[str]:
        """Return lines on the options chosen for `job`, and on the alternative."""
        lines = [f"chosen: {texts}"] if (texts := ", ".join(_texts(job, self.names))) else []
        if self.best is not None and self.alternative is not None:
            other = self.alternative
            differing = [name for name in CHOSEN if getattr(other.job, name) != getattr(job, name)]
            slower = other.sample_s / self.best.sample_s - 1
            how = f"{abs(slower):.0%} {'slower' if slower >= 0 else 'faster'}"
            texts = ", ".join(_texts(other.job, differing))
            lines.append(f"instead: {texts}: {time_text(other.iteration_s)} ({how}), {memory_text(other.memory_bytes)}")
        return lines

    def to_json(self, job: Job) -> dict[str, Any]:
        """Return the choice as plain values."""
        return {
            "chosen": {name: getattr(job, name) for name in self.names},
            "alternative": self.alternative.to_json() if self.alternative else None,
            "splits": [one.to_json() for one in self.ranking],
        }


def _texts(job: Job, names: Iterable[str]) -> Iterator[str]:
    """Format values of fields; those of a split together."""
    named = set(names)
    for name in ("precision", "implementation"):
        if name in named:
            yield getattr(job, name)
    if named & {"tp", "pp"}:
        yield split_text(job)
    if "ep" in named and job.ep > 1:
        yield f"ep {job.ep}"
    if "virtual_stages" in named and job.pp > 1:
        yield f"virtual stages {job.virtual_stages}"
    if "counts_loss" in named and job.counts_loss:
        yield "embedding and loss counted as layers"
    if "zero" in named:
        yield f"zero {job.zero}"
    if "sequence_parallel" in named and job.tp > 1:
        yield "sequence-parallel" if job.sequence_parallel else "no sequence-parallel"
    if "micro_batch" in named:
        yield f"micro-batch {job.micro_batch}"
    if named & {"recompute", "recompute_every"}:
        yield f"recompute {job.recomputation}"
    if "gradient_bytes" in named:
        yield f"gradients of {job.gradient_bytes} bytes"


def split_text(job: Job) -> str:
    """Format a split: tp 8 x pp 4 x dp 2."""
    return f"tp {job.tp} x pp {job.pp} x dp {job.dp}"


@dataclass
class CandidateEvaluator:
    """Evaluates candidates. Both functions raise ConfigError for impossible jobs."""

    memory: Callable[[Job], Memory]
    costed: Callable[[Job], CostedJob]
    available: float
    """Memory of an accelerator, bytes."""
    least: tuple[float, Job] | None = None
    """The job with the lowest memory use among those that did not fit."""

    def fitting(self, shapes: Iterable[Shape]) -> Iterator[Candidate]:
        """Yield, for each shape and micro-batch, the job with the least recomputation that fits."""
        for shape in shapes:
            for jobs in shape.loads():
                one = next((found for job in jobs if (found := self._candidate(job))), None)
                if one is None:
                    break
                yield one

    def _candidate(self, job: Job) -> Candidate | None:
        try:
            needed = self.memory(job).total
            if needed > self.available:
                if self.least is None or needed < self.least[0]:
                    self.least = needed, job
                return None
            costed = self.costed(job)
        except ConfigError:
            return None
        return Candidate(job, costed, needed, closed_form_s(costed))


def choose(job: OpenJob, evaluator: CandidateEvaluator, wide: bool = False) -> tuple[Job | None, Choice]:
    """Return the job with all options specified, and the choice; None where no valid job exists. `wide`: the fastest of
    all splits, and a ranking; otherwise the given split where it fits, and the simplest kind that is not much slower.
    If no job fits, the one with the lowest memory use."""
    job = job.settled()
    is_table = isinstance(job.model, LayerTable)
    found = list(evaluator.fitting(job.as_given())) if is_table or (job.has_split and not wide) else []
    for everything in (True,) if wide else (False, True):
        found = found or _split(job, evaluator, everything, wide)
    if not found:
        fallback = evaluator.least[1] if evaluator.least else None
        return fallback, Choice(_chosen(job, fallback))
    ranked = _ranked(found)
    best = ranked[0] if wide else _simple(ranked, math.inf if is_table else SIMPLER)
    others = [one for one in ranked if one is not best]
    alternative = next((one for one in others if one.kind != best.kind), others[0] if others else None)
    ranking = tuple(ranked[:SHOWN]) if wide else ()
    return best.job, Choice(_chosen(job, best.job), best, alternative, ranking)


def _split(job: OpenJob, evaluator: CandidateEvaluator, everything: bool, wide: bool) -> list[Candidate]:
    """Candidates of splits other than the given one: of all if `everything`, else of the most likely. Unless the search
    is `wide`, stages are added only until a job fits without full recomputation, as more stages have a larger bubble.
    """
    found: list[Candidate] = []
    for deeper in job.splits(everything):
        for shapes in deeper:
            fitting = list(evaluator.fitting(shapes))
            found += fitting
            if not wide and any(one.job.recompute != "full" for one in fitting):
                break
    return found


def _ranked(found: list[Candidate]) -> list[Candidate]:
    """Return the best candidates of each kind, replayed, the fastest first."""
    if len(found) == 1:
        return found
    found.sort(key=lambda one: one.sample_s)
    kinds = groupby(sorted(found, key=lambda one: one.kind), key=lambda one: one.kind)
    best = [one for _, kind in kinds for one in list(kind)[:REPLAYED]]
    best += [one for one in found[: 2 * SHOWN] if not any(one is other for other in best)]
    return sorted((one.replayed() for one in best), key=lambda one: one.sample_s)


def _simple(ranked: list[Candidate], slower: float) -> Candidate:
    """Return the simplest kind's candidate that takes at most `slower` times as long as the fastest."""
    enough = [one for one in ranked if one.sample_s <= slower * ranked[0].sample_s]
    return min(enough, key=lambda one: one.kind)


def _chosen(open_job: OpenJob, job: Job | None) -> tuple[str, ...]:
    """Return the names of fields whose value in `job` was chosen because the description does not specify them."""
    if job is None:
        return ()
    always = {"precision", "zero", "batch", "micro_batch", "recompute"} | (
        {"implementation"} if job.implementation else set()
    )
    if not open_job.has_split:
        always |= {"tp", "pp"}
    differs = {name for name in CHOSEN if getattr(job, name) != getattr(open_job.job, name)}
    return tuple(name for name in CHOSEN if name in always | differs and name not in open_job.given)
