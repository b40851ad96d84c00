"""Gaps between the events of a host thread that are much longer than what the same place usually has. A gap's place is
given by the events before and after it, and the number of the second among those of its name in its iteration. A gap
that ends when communication does is a wait and no pause."""

from dataclasses import dataclass

import numpy as np

from emulator.jobs.workload.graph import Kind
from emulator.traces.diagnosis.context import DiagnosisContext, Iterations
from emulator.traces.events import NONE, LaneKind, What
from emulator.traces.join import MEAN
from emulator.traces.joined import GAP
from emulator.traces.whatif.edits import on_stream

LEAST_S = 1e-3
LEAST_TIMES = 5.0
"""Times what is usual."""
LEAST_SHARE = 0.02
"""Of a typical iteration."""
USUAL_FROM = 4
"""How often a place must be seen for its usual gap to be known."""
WAITS = (What.COLLECTIVE, What.SEND, What.RECV, What.SYNC, What.LOAD)
ENDED_S = 2e-4
"""A gap that ends so soon after one of these is its wait."""


_COLUMNS = [("rank", np.int64), ("iteration", np.int64), ("at_s", float), ("when", float),
            ("excess_s", float), ("usual_s", float), ("op", np.int64), ("shown", float)]  # fmt: skip


@dataclass(frozen=True)
class Pauses:
    """Arrays (pauses,)."""

    rank: np.ndarray
    iteration: np.ndarray
    at_s: np.ndarray
    """Since the iteration's start."""
    when: np.ndarray
    """The same in iterations, with fractions."""
    excess_s: np.ndarray
    usual_s: np.ndarray
    op: np.ndarray
    """The op of the joined iteration that follows at this place, or the gap at the end; −1 where there is neither."""
    shown: np.ndarray
    """float64: how much of it is in the joined iteration: 1 where it is the one, a share where that is a mean."""
    iterations: int
    before: np.ndarray
    """int64 (ops,): the gap before each op on its stream, of a gap itself; −1 where there is none."""

    def without(self, own_s: np.ndarray) -> np.ndarray:
        """`own_s` (ops,) with the pauses of the joined iteration taken out of its gaps."""
        own_s = own_s.copy()
        for op, excess_s in zip(self.op, self.excess_s * self.shown, strict=True):
            if op >= 0 and excess_s and (gap := self.before[op]) >= 0:
                own_s[gap] = max(own_s[gap] - excess_s, 0.0)
        return own_s

    def added(self, own_s: np.ndarray, iteration: int) -> np.ndarray:
        """`own_s` (ops,) with those of `iteration` put before the ops that they precede."""
        own_s = own_s.copy()
        for op, excess_s in zip(self.op, np.where(self.iteration == iteration, self.excess_s, 0.0), strict=True):
            if op >= 0:
                own_s[op] += excess_s
        return own_s


def pauses(context: DiagnosisContext) -> Pauses:
    """Those of all ranks."""
    rows = [row for rank, each in enumerate(context.iterations) for row in _of_rank(context, rank, each)]
    table = np.array(rows, _COLUMNS)
    is_gap, (before, _) = context.kind == Kind.DELAY, on_stream(context.graph)
    gap = np.where(is_gap[before] & (before >= 0), before, -1)
    gap = np.where(is_gap, np.arange(len(gap)), gap)  # of a gap that ends an iteration, itself
    iterations = max((each.count for each in context.iterations), default=0)
    return Pauses(**{name: table[name] for name, _ in _COLUMNS}, iterations=iterations, before=gap)


def _of_rank(context: DiagnosisContext, rank: int, own: Iterations) -> list[tuple]:
    trace, events = own.trace, own.trace.events
    if own.count < USUAL_FROM:
        return []
    typical_s = float(np.median(own.duration_s()))
    ended_s = np.sort(events.end_s[np.isin(events.what, WAITS)])
    rows = []
    for lane, about in enumerate(trace.lanes):
        inside = (events.lane == lane) & (events.what != What.SCOPE) & (own.number != NONE)
        if about.kind != LaneKind.HOST or inside.sum() < 2:
            continue
        chosen = np.flatnonzero(inside)
        reach_s = np.maximum.accumulate(events.end_s[chosen])
        gap_s = np.maximum(events.start_s[chosen[1:]] - reach_s[:-1], 0.0)
        after = chosen[1:]
        where = np.stack(
            [events.name[chosen[:-1]], events.name[after], _ordinals(own.number[after], events.name[after])]
        )
        _, place, count = np.unique(where, axis=1, return_inverse=True, return_counts=True)
        place = place.ravel()
        usual_s = _medians(place, gap_s, len(count))[place]
        excess_s = gap_s - usual_s
        is_long = excess_s >= np.maximum(np.maximum(LEAST_S, LEAST_TIMES * usual_s), LEAST_SHARE * typical_s)
        starts_s = events.start_s[after]
        latest = np.searchsorted(ended_s, starts_s, side="right") - 1
        waits = (latest >= 0) & (starts_s - ended_s[np.maximum(latest, 0)] <= ENDED_S) if len(ended_s) else False
        for i in np.flatnonzero(is_long & (count[place] >= USUAL_FROM) & ~waits):
            event = int(after[i])
            number = int(own.number[event])
            ends = own.number[chosen[i]] < number  # the pause was between two iterations: it is the earlier's
            number -= ends
            at_s = float(reach_s[i] - trace.steps[number, 0])
            shown = 1 / own.count if context.joined.iteration == MEAN else float(number == context.joined.iteration)
            op = _last_gap(context, rank, own, int(chosen[i])) if ends else _op_at(context, rank, own, event)
            when = number + at_s / max(float(own.duration_s()[number]), 1e-12)
            rows.append((rank, number, at_s, when, float(excess_s[i]), float(usual_s[i]), op, shown))
    return rows


def _ordinals(number: np.ndarray, name: np.ndarray) -> np.ndarray:
    """int64: the number of each event among those of its name in its iteration, from 0."""
    order = np.lexsort((np.arange(len(name)), name, number))
    is_first = np.ones(len(order), bool)
    is_first[1:] = (np.diff(number[order]) != 0) | (np.diff(name[order]) != 0)
    place = np.arange(len(order))
    ordinals = np.empty(len(order), np.int64)
    ordinals[order] = place - np.maximum.accumulate(np.where(is_first, place, 0))
    return ordinals


def _medians(label: np.ndarray, values: np.ndarray, labels: int) -> np.ndarray:
    """float64 (labels,): of the values with each label."""
    order = np.lexsort((values, label))
    first = np.searchsorted(label[order], np.arange(labels + 1))
    return values[order][(first[:-1] + first[1:] - 1) // 2]


def _last_gap(context: DiagnosisContext, rank: int, own: Iterations, event: int) -> int:
    """The gap after the op that `event` stands for, where its stream ends with one; else that op."""
    op = _op_at(context, rank, own, event)
    if op < 0:
        return op
    last = int(np.flatnonzero(context.graph.ops.stream == context.graph.ops.stream[op])[-1])
    return last if context.joined.event[last] == GAP else op


def _op_at(context: DiagnosisContext, rank: int, own: Iterations, event: int) -> int:
    """The op of the joined iteration with the same number among those of its name as `event` has in its own."""
    events = own.trace.events
    alike = np.flatnonzero((events.name == events.name[event]) & (events.lane == events.lane[event]))
    ordinal = int((alike[own.number[alike] == own.number[event]] < event).sum())
    ops = np.flatnonzero((context.rank == rank) & (context.joined.event != GAP))
    ops = ops[np.isin(context.joined.event[ops], alike)]
    ops = ops[np.argsort(context.joined.event[ops], kind="stable")]
    return int(ops[min(ordinal, len(ops) - 1)]) if len(ops) else -1
