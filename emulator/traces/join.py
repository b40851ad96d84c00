"""Joins the traces of all ranks into one graph: `join(read(folder))`.

Each rank's iteration is cut into segments (`segments.py`), its causes are found (`causality.py`), and communications of
the same group and sequence number become transfers. What then separates a segment from the latest thing that it had to
wait for is a gap: an op of kind DELAY in front of it, such as the interpreter's time between two operators. So the
graph replayed as it is gives the trace again, and in a changed graph gaps stay what they were while waiting is worked
out anew.

Of several iterations with the same sequence of operations, durations are means; else the iteration of median length
stands for all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from emulator.traces.align import Clocks, align
from emulator.traces.causality import Causality
from emulator.traces.collectives import Communications
from emulator.traces.events import RankTrace, What, one_a_rank
from emulator.traces.intervals import under_way_s
from emulator.traces.joined import GAP, Joined
from emulator.traces.segments import Segments, cut
from emulator.workload import checks
from emulator.workload.builder import GraphBuilder
from emulator.workload.costs import Costs
from emulator.workload.graph import NO_TRANSFER, Collective, Graph, Kind
from switchml.errors import TraceError

MEAN = -1
WARM_UP = 1.3
"""Iterations at the start that take so many times the median one are left out."""
LEAST_GAP_S = 1e-7
"""Below the resolution of profilers."""


def join(
    traces: Sequence[RankTrace], *, iteration: int | None = None, clocks: Clocks | None = None, check: bool = True
) -> Joined:
    """One iteration of all ranks. `iteration`: which; default the mean of all that are comparable. `clocks`: as `align`
    finds them, by default found here.

    Raises TraceError for traces that do not belong together, GraphError for a graph that makes no sense."""
    traces = one_a_rank(traces)
    _belong_together(traces)
    clocks = align(traces) if clocks is None else clocks
    steps = min(len(trace.steps) for trace in traces)
    if iteration is not None and not 0 <= iteration < steps:
        raise TraceError(f"there is no iteration {iteration}: the traces have {steps}, from 0 on")
    chosen = range(warm_up(traces), steps) if iteration is None else [iteration]
    lasted_s = {step: float(np.mean([_length_s(trace, step) for trace in traces])) for step in chosen}
    typical = sorted(chosen, key=lasted_s.__getitem__)[len(chosen) // 2]
    plan = _Plan(traces, typical, clocks)
    for rank in plan.ranks:
        if not len(rank.segments):
            raise TraceError(f"{rank.trace.source} has no events in iteration {typical}")
    timings, used = [], []
    for step in chosen:
        cuts = plan.cuts if step == typical else [cut(trace, step) for trace in traces]
        if plan.fits(cuts):
            timings.append(plan.timing(cuts, step))
            used.append(step)
    if 2 * len(used) < len(chosen):
        timings, used = [plan.timing(plan.cuts, typical)], [typical]
    assumptions = list(plan.assumptions)
    if iteration is None and chosen[0]:
        assumptions.append(f"the first {chosen[0]} of {steps} iterations took much longer than the others: left out")
    if iteration is None and len(used) < len(chosen):
        others = f"{len(chosen) - len(used)} of {len(chosen)} iterations do other things than the typical one"
        assumptions.append(f"{others}: they are left out")
    joined = plan.joined(
        timings, used[0] if len(used) == 1 else MEAN, float(np.mean([lasted_s[step] for step in used])), assumptions
    )
    if check:
        checks.check(joined.graph)
    return joined


def _belong_together(traces: Sequence[RankTrace]) -> None:
    if not traces:
        raise TraceError("no traces: expected one a rank")
    sizes = {trace.world_size for trace in traces if trace.world_size}
    if len(sizes) > 1:
        raise TraceError(f"traces of jobs of {' and '.join(map(str, sorted(sizes)))} ranks: expected those of one job")
    for trace in traces:
        if not len(trace.steps) or not len(trace.events):
            raise TraceError(f"{trace.source} has no events in any iteration")


def warm_up(traces: Sequence[RankTrace]) -> int:
    """How many iterations at the start are no measure of the others: in the first, profilers start on some ranks while
    others wait."""
    steps = min(len(trace.steps) for trace in traces)
    length_s = np.array([max(_length_s(trace, step) for trace in traces) for step in range(steps)])
    usual_s = float(np.median(length_s))
    first = 0
    while 2 * first < steps - 2 and length_s[first] > WARM_UP * usual_s:
        first += 1
    return first


def _length_s(trace: RankTrace, step: int) -> float:
    """From its start to the start of the next."""
    from_s, until_s = trace.steps[step]
    if step + 1 < len(trace.steps):
        until_s = max(until_s, trace.steps[step + 1, 0])
    return float(until_s - from_s)


class _RankTiming(NamedTuple):
    """Of one rank's segments in one iteration, on the common clock from the iteration's start."""

    start_s: np.ndarray
    end_s: np.ndarray
    gap_s: np.ndarray
    lasted_s: np.ndarray
    tail_s: float
    """From the main thread's last segment to the end of the iteration."""


@dataclass(frozen=True)
class _Timing:
    """When things happened in one iteration."""

    ranks: list[_RankTiming]
    came_s: np.ndarray
    """Of each transfer's last member."""
    transfer_s: np.ndarray


class _Rank:
    """One rank's typical iteration: segments, and what comes before what."""

    def __init__(self, trace: RankTrace, segments: Segments, transfer: np.ndarray) -> None:
        self.trace, self.segments, self.transfer = trace, segments, transfer
        self.causality = Causality(trace, segments)
        self.pairs = self.causality.pairs()
        before = self.causality.before
        follows = np.flatnonzero(before >= 0)
        self.predecessors = np.concatenate([self.pairs, np.stack([before[follows], follows], axis=1)])
        self.order = np.lexsort((segments.start_s, segments.lane))
        host = self.causality.host
        self.on_main = host[segments.lane[host] == self.causality.main_lane]

    def name(self, segment: int) -> str:
        """Of the event that a segment belongs to."""
        return self.trace.names[self.trace.events.name[self.segments.event[segment]]]

    def fits(self, segments: Segments) -> bool:
        """Whether these are the same segments, one by one."""
        return np.array_equal(segments.signature(self.trace), self.segments.signature(self.trace))


class _Plan:
    """What iterations have in common: segments, edges and transfers of the typical one."""

    def __init__(self, traces: Sequence[RankTrace], step: int, clocks: Clocks) -> None:
        self.traces, self.clocks = traces, clocks
        self.cuts = [cut(trace, step) for trace in traces]
        matched = Communications(traces, self.cuts, step)
        self.keys, self.assumptions = matched.keys, matched.assumptions
        self.ranks = [_Rank(*each) for each in zip(traces, self.cuts, matched.transfer, strict=True)]

    # Times

    def fits(self, cuts: list[Segments]) -> bool:
        """Whether these segments are those of the typical iteration."""
        return all(rank.fits(segments) for rank, segments in zip(self.ranks, cuts, strict=True))

    def origin_s(self, cuts: list[Segments]) -> np.ndarray:
        """float64 (ranks,): what each trace's clock says when the iteration begins on the rank that is first."""
        begin_s = np.array([segments.step_s[0] for segments in cuts])
        shift_s = self.clocks.shift_s(self.traces, begin_s.tolist())
        return (begin_s + shift_s).min() - shift_s

    def timing(self, cuts: list[Segments], step: int) -> _Timing:
        """Of an iteration that fits."""
        origin_s = self.origin_s(cuts)
        starts = [segments.start_s - at_s for segments, at_s in zip(cuts, origin_s, strict=True)]
        ends = [segments.end_s - at_s for segments, at_s in zip(cuts, origin_s, strict=True)]
        count = len(self.keys)
        came_s, done_s, members_of = np.full(count, -np.inf), np.zeros(count), np.zeros(count)
        for rank, start_s, end_s in zip(self.ranks, starts, ends, strict=True):
            members = np.flatnonzero(rank.transfer != NO_TRANSFER)
            own_end_s = end_s.copy()
            for one, waiter in rank.causality.waiter.items():
                went_on_s = (end_s if rank.causality.what[waiter] == What.SYNC else start_s)[waiter]
                own_end_s[one] = max(min(own_end_s[one], went_on_s), start_s[one])
            np.maximum.at(came_s, rank.transfer[members], start_s[members])
            np.add.at(done_s, rank.transfer[members], own_end_s[members])
            np.add.at(members_of, rank.transfer[members], 1.0)
        done_s = np.maximum(done_s / np.maximum(members_of, 1.0), came_s)  # members end at nearly the same time
        ranks = []
        for rank, start_s, end_s, segments, at_s in zip(self.ranks, starts, ends, cuts, origin_s, strict=True):
            began_s = segments.step_s[0] - at_s
            over_s = np.where(rank.transfer != NO_TRANSFER, done_s[rank.transfer] if count else 0.0, end_s)
            first, second = rank.predecessors.T
            ready_s = np.full(len(end_s), began_s)
            np.maximum.at(ready_s, second, over_s[first])
            waits = rank.causality.what == What.SYNC
            begin_s = np.where(waits, np.clip(ready_s, start_s, end_s), start_s)
            gap_s = np.where(waits, 0.0, np.maximum(begin_s - ready_s, 0.0))
            tail_s = began_s + _length_s(rank.trace, step) - float(over_s[rank.on_main].max(initial=began_s))
            ranks.append(_RankTiming(start_s, end_s, gap_s, np.maximum(end_s - begin_s, 0.0), max(tail_s, 0.0)))
        return _Timing(ranks, came_s, done_s - came_s)

    # The graph

    def joined(self, timings: list[_Timing], iteration: int, iteration_s: float, assumptions: list[str]) -> Joined:
        """Means of `timings` on the common structure."""
        transfer_s = np.mean([timing.transfer_s for timing in timings], axis=0)
        builder = GraphBuilder()
        weight = max((trace.world_size for trace in self.traces), default=1) / len(self.traces)
        for trace in self.traces:
            builder.add_rank(weight=max(weight, 1.0), device=trace.rank)
        works = self._add_transfers(builder, transfer_s)
        rows: list[tuple[int, float, float]] = []  # event, start, end of each op
        gradients: list[tuple[int, int, float]] = []
        for place, rank in enumerate(self.ranks):
            columns = zip(*(timing.ranks[place] for timing in timings), strict=True)
            mean = _RankTiming(*(np.mean(column, axis=0) for column in columns))
            ops = _add_rank(builder, place, rank, works, mean, rows)
            bucket = {
                one: int(rank.transfer[communication])
                for communication, members in rank.causality.buckets
                for one in members
            }
            size = rank.trace.events.bytes[rank.segments.event]
            gradients += [
                (int(ops[one]), bucket.get(one, NO_TRANSFER), float(size[one])) for one in rank.causality.gradients
            ]
        graph, orphans = _with_sources(builder.build())
        if orphans:
            sentence = f"{orphans} communications have no producer here: they begin with the iteration"
            assumptions = [*assumptions, sentence]
        event, op_start_s, op_end_s = zip(*rows, strict=True)
        return Joined(
            graph=graph,
            costs=Costs.of(graph, graph.works.seconds),
            traces=list(self.traces),
            event=np.array(event, np.int64),
            start_s=np.array(op_start_s),
            end_s=np.array(op_end_s),
            offset_s=np.array(self.clocks.offset_s),
            iteration=iteration,
            iteration_s=iteration_s,
            gradients=gradients,
            assumptions=[*self.clocks.assumptions, *assumptions],
            origin_s=self.origin_s(self.cuts),
            scatter_s=_scatter_s(graph, timings),
        )

    def _add_transfers(self, builder: GraphBuilder, transfer_s: np.ndarray) -> list[int]:
        """Groups and transfers; returns each transfer's work."""
        place_of = {trace.rank: place for place, trace in enumerate(self.traces)}
        groups: dict[tuple[tuple[int, ...], str], int] = {}
        about: dict[int, tuple[str, int, float]] = {}
        for rank in self.ranks:
            for one in np.flatnonzero(rank.transfer != NO_TRANSFER).tolist():
                events, event = rank.trace.events, rank.segments.event[one]
                _, kind, size = about.get(int(rank.transfer[one]), ("", 0, 0.0))
                kind, size = kind or int(events.collective[event]), max(float(events.bytes[event]), size)
                about[int(rank.transfer[one])] = (rank.name(one), kind, size)
        works = []
        for number, key in enumerate(self.keys):
            if (key.ranks, key.group_name) not in groups:
                members = [place_of[rank] for rank in key.members if rank in place_of]
                group = builder.add_group(members, name=key.group_name, size=len(key.ranks))
                groups[key.ranks, key.group_name] = group
            title, collective, size = about[number]
            kind = Kind.SEND if collective == Collective.P2P else Kind.COLLECTIVE
            seconds = float(transfer_s[number])
            works.append(builder.add_work(title, kind, collective=Collective(collective), bytes=size, seconds=seconds))
            builder.add_transfers(works[-1], groups[key.ranks, key.group_name])
        return works


def _add_rank(
    builder: GraphBuilder, place: int, rank: _Rank, works: list[int], timing: _RankTiming, rows: list
) -> np.ndarray:
    """Streams and ops of one rank; returns the op of each segment. Fills `rows`."""
    segments, events, order = rank.segments, rank.trace.events, rank.order
    has_gap = timing.gap_s > LEAST_GAP_S
    # Ops get their numbers in the order of lanes; a gap comes right before its segment.
    number = np.empty(len(segments), np.int64)
    number[order] = len(rows) + np.arange(len(order)) + np.cumsum(has_gap[order])
    after: list[list[int]] = [[] for _ in range(len(segments))]
    for cause, caused in rank.pairs.tolist():
        after[caused].append(int(number[cause]))
    streams = {
        int(lane): builder.add_stream(place, rank.trace.lanes[lane].name)
        for lane in np.unique(segments.lane).tolist() or [0]
    }
    for one in order.tolist():
        stream, event, name = streams[int(segments.lane[one])], int(segments.event[one]), rank.name(one)
        start_s, end_s = float(timing.start_s[one]), float(timing.end_s[one])
        gap_s, lasted_s = float(timing.gap_s[one]), float(timing.lasted_s[one])
        if has_gap[one]:
            work = builder.add_work(f"gap before {name}", Kind.DELAY, seconds=gap_s)
            builder.add_op(stream, work, after=after[one])
            rows.append((GAP, start_s - gap_s, start_s))
            after[one] = [int(number[one]) - 1]
        met, size = int(rank.transfer[one]), float(events.bytes[event])
        if met == NO_TRANSFER:
            work = builder.add_work(name, Kind(segments.kind[one]), bytes=size, seconds=lasted_s)
        elif events.what[event] == What.RECV:
            work = builder.add_work(name, Kind.RECV, collective=Collective.P2P, bytes=size)
        else:
            work = works[met]
        before = int(rank.causality.before[one])
        if met != NO_TRANSFER and not after[one] and before >= 0:
            after[one] = [int(number[before])]
        builder.add_op(stream, work, after=after[one], transfer=met)
        rows.append((event, end_s - lasted_s, end_s))
    if timing.tail_s > 0 and rank.causality.main_lane in streams:
        hosts = rank.on_main
        last = int(hosts[np.argmax(segments.start_s[hosts])]) if len(hosts) else int(order[-1])
        work = builder.add_work("gap at the end", Kind.DELAY, seconds=float(timing.tail_s))
        builder.add_op(streams[int(segments.lane[last])], work, after=[int(number[last])])
        rows.append((GAP, float(timing.end_s[last]), float(timing.end_s[last] + timing.tail_s)))
    return number


def _scatter_s(graph: Graph, timings: list[_Timing]) -> float:
    """An all-reduce's part in what iterations spend on all-reduces differently: half of the range of two thirds of
    them. Those that overlap take each other's time, so all of an iteration count together."""
    own = graph.works.collective[graph.transfers.work] == Collective.ALL_REDUCE
    if not own.any():
        return 0.0
    spent_s = [under_way_s(timing.came_s[own], timing.transfer_s[own]) for timing in timings]
    low_s, high_s = np.quantile(spent_s, (1 / 6, 5 / 6))
    return float((high_s - low_s) / 2 / np.sqrt(np.count_nonzero(own)))


def _with_sources(graph: Graph) -> tuple[Graph, int]:
    """Communication that nothing in the iteration comes before, such as what the one before has launched, may start at
    once; and how many ops these are."""
    starts = np.isin(graph.op_kind(), (Kind.COLLECTIVE, Kind.SEND)) & (np.diff(graph.ops.dep_start) == 0)
    is_source = graph.works.is_source.copy()
    is_source[graph.ops.work[starts]] = True
    return dataclasses.replace(graph, works=dataclasses.replace(graph.works, is_source=is_source)), int(starts.sum())
