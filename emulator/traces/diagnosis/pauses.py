"""Detects gaps between the events of a host thread that are much longer than usual at the same place. A gap's place is
defined by the events before and after it, and the index of the second among those of its name in its iteration. A gap
that ends together with communication is a wait, not a pause."""

from dataclasses import dataclass

import numpy as np

from emulator.jobs.workload.graph import Kind
from emulator.traces.diagnosis.context import DiagnosisContext, Iterations
from emulator.traces.events import NONE, LaneKind, What
from emulator.traces.join import MEAN
from emulator.traces.joined import GAP
from emulator.traces.whatif.edits import on_stream

MIN_S = 1e-3
MIN_TIMES = 5.0
"""Minimum ratio to the usual gap."""
MIN_SHARE = 0.02
"""Minimum share of a typical iteration."""
USUAL_FROM = 4
"""Minimum occurrences of a place to determine its usual gap."""
WAITS = (What.COLLECTIVE, What.SEND, What.RECV, What.SYNC, What.LOAD)
ENDED_S = 2e-4
"""A gap that ends at most this long after one of these is its wait."""


_COLUMNS = [("rank", np.int64), ("iteration", np.int64), ("at_s", float), ("when", float),
            ("excess_s", float), ("usual_s", float), ("op", np.int64), ("shown", float)]  # fmt: skip


@dataclass(frozen=True)
class Pauses:
    """Pauses of a job; arrays (pauses,)."""

    rank: np.ndarray
    iteration: np.ndarray
    at_s: np.ndarray
    """Time since the iteration's start."""
    when: np.ndarray
    """Time in iterations, including fractions."""
    excess_s: np.ndarray
    usual_s: np.ndarray
    op: np.ndarray
    """Op of the joined iteration that follows at this place, or the gap at the end; −1 if neither exists."""
    shown: np.ndarray
    """float64: share of the pause that is in the joined iteration: 1 in that iteration, a fraction if it is a mean."""
    iterations: int
    before: np.ndarray
    """int64 (ops,): the gap before each op on its stream, for a gap itself; −1 if none."""

    def without(self, own_s: np.ndarray) -> np.ndarray:
        """Return `own_s` (ops,) with the joined iteration's pauses removed from its gaps."""
        own_s = own_s.copy()
        for op, excess_s in zip(self.op, self.excess_s * self.shown, strict=True):
            if op >= 0 and excess_s and (gap := self.before[op]) >= 0:
                own_s[gap] = max(own_s[gap] - excess_s, 0.0)
        return own_s

    def added(self, own_s: np.ndarray, iteration: int) -> np.ndarray:
        """Return `own_s` (ops,) with the pauses of `iteration` added to the ops that follow them."""
        own_s = own_s.copy()
        for op, excess_s in zip(self.op, np.where(self.iteration == iteration, self.excess_s, 0.0), strict=True):
            if op >= 0:
                own_s[op] += excess_s
        return own_s


def pauses(context: DiagnosisContext) -> Pauses:
    """Return the pauses of all ranks."""
    rows = [row for rank, each in enumerate(context.iterations) for row in _of_rank(context, rank, each)]
    table = np.array(rows, _COLUMNS)
    is_gap, (before, _) = context.kind == Kind.DELAY, on_stream(context.graph)
    gap = np.where(is_gap[before] & (before >= 0), before, -1)
    gap = np.where(is_gap, np.arange(len(gap)), gap)  # for a gap that ends an iteration, itself
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
        is_long = excess_s >= np.maximum(np.maximum(MIN_S, MIN_TIMES * usual_s), MIN_SHARE * typical_s)
        starts_s = events.start_s[after]
        latest = np.searchsorted(ended_s, starts_s, side="right") - 1
        waits = (latest >= 0) & (starts_s - ended_s[np.maximum(latest, 0)] <= ENDED_S) if len(ended_s) else False
        for i in np.flatnonzero(is_long & (count[place] >= USUAL_FROM) & ~waits):
            event = int(after[i])
            number = int(own.number[event])
            ends = own.number[chosen[i]] < number  # a pause between two iterations belongs to the earlier one
            number -= ends
            at_s = float(reach_s[i] - trace.steps[number, 0])
            shown = 1 / own.count if context.joined.iteration == MEAN else float(number == context.joined.iteration)
            op = _last_gap(context, rank, own, int(chosen[i])) if ends else _op_at(context, rank, own, event)
            when = number + at_s / max(float(own.duration_s()[number]), 1e-12)
            rows.append((rank, number, at_s, when, float(excess_s[i]), float(usual_s[i]), op, shown))
    return rows


def _ordinals(number: np.ndarray, name: np.ndarray) -> np.ndarray:
    """Return the index of each event among those of its name in its iteration, from 0, int64."""
    order = np.lexsort((np.arange(len(name)), name, number))
    is_first = np.ones(len(order), bool)
    is_first[1:] = (np.diff(number[order]) != 0) | (np.diff(name[order]) != 0)
    place = np.arange(len(order))
    ordinals = np.empty(len(order), np.int64)
    ordinals[order] = place - np.maximum.accumulate(np.where(is_first, place, 0))
    return ordinals


def _medians(label: np.ndarray, values: np.ndarray, labels: int) -> np.ndarray:
    """Return the median of the values with each label, float64 (labels,)."""
    order = np.lexsort((values, label))
    first = np.searchsorted(label[order], np.arange(labels + 1))
    return values[order][(first[:-1] + first[1:] - 1) // 2]


def _last_gap(context: DiagnosisContext, rank: int, own: Iterations, event: int) -> int:
    """Return the gap after the op of `event`, if its stream ends with one; else that op."""
    op = _op_at(context, rank, own, event)
    if op < 0:
        return op
    last = int(np.flatnonzero(context.graph.ops.stream == context.graph.ops.stream[op])[-1])
    return last if context.joined.event[last] == GAP else op


def _op_at(context: DiagnosisContext, rank: int, own: Iterations, event: int) -> int:
    """Return the op of the joined iteration with the same index among those of its name as `event` has in its own."""
    events = own.trace.events
    alike = np.flatnonzero((events.name == events.name[event]) & (events.lane == events.lane[event]))
    ordinal = int((alike[own.number[alike] == own.number[event]] < event).sum())
    ops = np.flatnonzero((context.rank == rank) & (context.joined.event != GAP))
    ops = ops[np.isin(context.joined.event[ops], alike)]
    ops = ops[np.argsort(context.joined.event[ops], kind="stable")]
    return int(ops[min(ordinal, len(ops) - 1)]) if len(ops) else -1
