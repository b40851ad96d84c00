"""Compares two runs of a job. Two accounts sum to the difference: by cause on the average rank, and by operation on the
critical path. In addition, the duration of each operation in both runs, and whether the difference may be chance.

Iterations of one run share the machines' state at that time, so that a difference between single runs may be due to it,
however little iterations scatter. Runs captured alternately, A B A B …, resolve this: their differences are compared
pair by pair.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from emulator.jobs.workload.graph import Collective
from emulator.traces.diagnosis.context import DiagnosisContext
from emulator.traces.events import What
from emulator.traces.joined import Joined

OPERATIONS = (What.COMPUTE, What.LAUNCH, What.LOAD, What.CODEC, What.COPY, What.CHECKPOINT)
"""Operations compared by name; communication is compared by size."""
FALSE_SHARE = 0.05
"""Expected share of chance among the differences called significant."""
MIN_ITERATIONS = 3
MIN_PAIRS = 3


@dataclass(frozen=True)
class Row:
    """An entry of both runs; seconds of an average rank and iteration."""

    name: str
    a_s: float
    b_s: float
    a_count: float = 1.0
    """Occurrences per iteration and rank; 0: this run has none."""
    b_count: float = 1.0
    p: float | None = None
    """Probability of such a difference between equal iterations, or pairs of runs; None: too few samples."""
    is_significant: bool | None = None

    @property
    def difference_s(self) -> float:
        """Additional time of B."""
        return self.b_s - self.a_s


@dataclass(frozen=True)
class Difference:
    """Difference of run B from run A; for several pairs of runs, means."""

    a: Sequence[DiagnosisContext]
    b: Sequence[DiagnosisContext]
    """Runs B, paired with runs A in order."""
    iteration: Row
    """Traced iteration time."""
    parts: list[Row]
    """Differences by part; together with `unexplained_s` they sum to the iteration's."""
    path: list[Row]
    """Differences by operation on the critical path, with the same sum. Counts are segments."""
    unexplained_s: float
    """Difference in the replays' errors: how much more A's replay falls short of its trace than B's."""
    operations: list[Row]
    """Own time by operation name, largest difference first."""
    collectives: list[Row]
    """Collectives by kind and size: from the last member's arrival to the end."""

    @property
    def appeared(self) -> list[Row]:
        """Operations that only B has."""
        return [row for row in self.operations if not row.a_count]

    @property
    def disappeared(self) -> list[Row]:
        """Operations that only A has."""
        return [row for row in self.operations if not row.b_count]

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""

        def plain(rows: list[Row]) -> list[dict[str, Any]]:
            return [asdict(row) | {"difference_s": row.difference_s} for row in rows]

        return {
            "pairs": len(self.a),
            "a": _about(self.a),
            "b": _about(self.b),
            "iteration": plain([self.iteration])[0],
            "parts": plain(self.parts),
            "critical_path": plain(self.path),
            "unexplained_s": self.unexplained_s,
            "operations": plain(self.operations),
            "appeared": [row.name for row in self.appeared],
            "disappeared": [row.name for row in self.disappeared],
            "collectives": plain(self.collectives),
        }


def difference(a: Joined, b: Joined) -> Difference:
    """Compare the joined traces of two runs."""
    one, other = DiagnosisContext.of(a), DiagnosisContext.of(b)
    durations_s = [[each.duration_s() for each in context.iterations] for context in (one, other)]
    p = _p(*(_mean_of_ranks(rows) for rows in durations_s))
    return Difference(
        a=[one],
        b=[other],
        iteration=_judged(Row("iteration", a.iteration_s, b.iteration_s, p=p)),
        parts=_paired(
            *({name: (s, 1.0) for name, s in context.causes.parts.mean().items()} for context in (one, other))
        ),
        path=_paired(_path(one), _path(other)),
        unexplained_s=(b.iteration_s - a.iteration_s) - (other.iteration_s - one.iteration_s),
        operations=_operations(one, other),
        collectives=_paired(_collectives(one), _collectives(other)),
    )


def mean(pairs: Sequence[Difference]) -> Difference:
    """Average pairs of runs that were captured alternately. Significance follows from the scatter of the pairs."""
    if len(pairs) == 1:
        return pairs[0]

    def rows(of: Callable[[Difference], list[Row]], *, are_tested: bool = False) -> list[Row]:
        named = [{row.name: row for row in of(pair)} for pair in pairs]
        names = dict.fromkeys(name for each in named for name in each)
        found = [_mean_row(name, [each.get(name) for each in named]) for name in names]
        return _largest_first(_controlled(found) if are_tested else [replace(row, p=None) for row in found])

    return Difference(
        a=[context for pair in pairs for context in pair.a],
        b=[context for pair in pairs for context in pair.b],
        iteration=_judged(_mean_row("iteration", [pair.iteration for pair in pairs])),
        parts=rows(lambda pair: pair.parts),
        path=rows(lambda pair: pair.path),
        unexplained_s=float(np.mean([pair.unexplained_s for pair in pairs])),
        operations=rows(lambda pair: pair.operations, are_tested=True),
        collectives=rows(lambda pair: pair.collectives),
    )


def _mean_row(name: str, rows: Sequence[Row | None]) -> Row:
    """Average rows of pairs; a missing row counts as 0 seconds and occurrences."""
    figures = [(row.a_s, row.b_s, row.a_count, row.b_count) if row else (0.0,) * 4 for row in rows]
    table = np.array(figures)
    a_s, b_s, a_count, b_count = table.mean(axis=0).tolist()
    return Row(name, a_s, b_s, a_count, b_count, p=_p_of_pairs(table[:, 1] - table[:, 0]))


def _about(contexts: Sequence[DiagnosisContext]) -> dict[str, Any]:
    return {
        "ranks": len(contexts[0].graph.ranks),
        "iterations": sum(min((each.count for each in one.iterations), default=0) for one in contexts),
        "iteration_s": float(np.mean([one.joined.iteration_s for one in contexts])),
        "replayed_s": float(np.mean([one.iteration_s for one in contexts])),
    }


def _paired(a: dict[str, tuple[float, float]], b: dict[str, tuple[float, float]]) -> list[Row]:
    """Return rows from name → (seconds, count) of both runs, largest difference first."""
    nothing = (0.0, 0.0)
    rows = [
        Row(name, a.get(name, nothing)[0], b.get(name, nothing)[0], a.get(name, nothing)[1], b.get(name, nothing)[1])
        for name in {**a, **b}
    ]
    return _largest_first(rows)


def _largest_first(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: -abs(row.difference_s))


def _judged(row: Row) -> Row:
    return replace(row, is_significant=None if row.p is None else bool(row.p < FALSE_SHARE))


def _path(context: DiagnosisContext) -> dict[str, tuple[float, float]]:
    counts: dict[str, float] = defaultdict(float)
    for op, from_s, until_s in zip(context.path.op, context.path.from_s, context.path.until_s, strict=True):
        counts[context.op_name(op)] += until_s > from_s
    return {name: (s, counts[name]) for name, s in context.path.by_op_type.items()}


def _collectives(context: DiagnosisContext) -> dict[str, tuple[float, float]]:
    """Return "all-reduce of 1,048,576 bytes" → (seconds, count), of all ranks' transfers divided by the ranks in
    each."""
    rows: dict[str, tuple[float, float]] = {}
    graph = context.graph
    members = np.diff(graph.groups.start)
    for transfer in np.flatnonzero(context.communicates()):
        op_type = graph.transfers.op_type[transfer]
        kind = Collective(graph.op_types.collective[op_type]).name.lower().replace("_", "-").replace("p2p", "send")
        name = f"{kind} of {graph.op_types.bytes[op_type]:,.0f} bytes"
        s, count = rows.get(name, (0.0, 0.0))
        share = members[graph.transfers.group[transfer]] / len(graph.ranks)
        rows[name] = (s + share * float(context.transfer_s[transfer]), count + share)
    return rows


def _operations(one: DiagnosisContext, other: DiagnosisContext) -> list[Row]:
    a, b = _by_name(one), _by_name(other)
    rows = []
    for name in {**a, **b}:
        (a_s, a_count), (b_s, b_count) = (each.get(name, (None, 0.0)) for each in (a, b))
        empty = np.zeros(len(next(iter((a if a_s is None else b).values()), (np.zeros(1),))[0]))
        a_s, b_s = (empty if values is None else values for values in (a_s, b_s))
        rows.append(Row(name, float(a_s.mean()), float(b_s.mean()), a_count, b_count, p=_p(a_s, b_s)))
    return _largest_first(_controlled(rows))


def _controlled(rows: list[Row]) -> list[Row]:
    """Return rows with their significance, controlling the false discovery rate over all of them."""
    rows = list(rows)
    known = [i for i, row in enumerate(rows) if row.p is not None]
    if known:
        from scipy.stats import false_discovery_control

        adjusted = false_discovery_control([rows[i].p for i in known])
        for i, p in zip(known, adjusted, strict=True):
            rows[i] = _judged(replace(rows[i], p=float(p)))
    return rows


def _by_name(context: DiagnosisContext) -> dict[str, tuple[np.ndarray, float]]:
    """Return name → (seconds in each iteration on the average rank, occurrences per iteration)."""
    iterations = min((each.count for each in context.iterations), default=0)
    seconds: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(iterations))
    counts: dict[str, float] = defaultdict(float)
    ranks = len(context.iterations)
    for each in context.iterations:
        events = each.trace.events
        inside = np.isin(events.what, OPERATIONS) & (each.number >= 0) & (each.number < iterations)
        number, name = each.number[inside], events.name[inside]
        used, place = np.unique(name, return_inverse=True)
        table = np.bincount(place * iterations + number, each.self_s[inside], minlength=len(used) * iterations)
        for text, row, count in zip(used, table.reshape(-1, iterations), np.bincount(place), strict=True):
            seconds[each.trace.names[text]] += row / ranks
            counts[each.trace.names[text]] += count / ranks / iterations
    return {name: (seconds[name], counts[name]) for name in seconds}


def _mean_of_ranks(rows: list[np.ndarray]) -> np.ndarray:
    count = min(map(len, rows), default=0)
    return np.mean([row[:count] for row in rows], axis=0) if rows else np.zeros(0)


def _p(a: np.ndarray, b: np.ndarray) -> float | None:
    """Return the p-value of Welch's t-test; None for too few iterations."""
    if min(len(a), len(b)) < MIN_ITERATIONS:
        return None
    if max(a.std(), b.std()) <= 1e-9 * max(a.mean(), b.mean()):  # without scatter a t-test does not apply
        return 1.0 if np.isclose(a.mean(), b.mean(), rtol=1e-9) else 0.0
    from scipy.stats import ttest_ind

    return float(ttest_ind(a, b, equal_var=False).pvalue)


def _p_of_pairs(differences_s: np.ndarray) -> float | None:
    """Return the p-value of a paired t-test; None for too few pairs."""
    if len(differences_s) < MIN_PAIRS:
        return None
    if differences_s.std() <= 1e-9 * max(abs(differences_s).max(), 1e-12):  # without scatter a t-test does not apply
        return 0.0 if abs(differences_s).max() > 0 else 1.0
    from scipy.stats import ttest_1samp

    return float(ttest_1samp(differences_s, 0.0).pvalue)
