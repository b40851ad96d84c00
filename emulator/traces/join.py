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

import numpy as np

from emulator.traces.align import Clocks, align
from emulator.traces.causality import Causality
from emulator.traces.collectives import Communications
from emulator.traces.events import RankTrace, What
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
    traces = sorted(traces, key=lambda trace: trace.rank)
    _belong_together(traces)
    clocks = align(traces) if clocks is None else clocks
    steps = min(len(trace.steps) for trace in traces)
    if iteration is not None and not 0 <= iteration < steps:
        raise TraceError(f"there is no iteration {iteration}: the traces have {steps}, from 0 on")
    chosen = range(warm_up(traces), steps) if iteration is None else [iteration]
    lasted_s = {step: float(np.mean([_length_s(trace, step) for trace in traces])) for step in chosen}
    typical = sorted(chosen, key=lasted_s.__getitem__)[len(chosen) // 2]
    plan = _Plan(traces, typical, clocks)
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
    for one, other in zip(traces, traces[1:], strict=False):
        if one.rank == other.rank:
            raise TraceError(f"{one.source} and {other.source} are both of rank {one.rank}")
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


@dataclass(frozen=True)
class _Timing:
    """When things happened in one iteration, on the common clock from the iteration's start. Lists by rank."""

    start_s: list[np.ndarray]
    end_s: list[np.ndarray]
    gap_s: list[np.ndarray]
    lasted_s: list[np.ndarray]
    tail_s: list[float]
    """From the main thread's last segment to the end of the iteration."""
    came_s: np.ndarray
    """Of each transfer's last member."""
    transfer_s: np.ndarray


class _Plan:
    """What iterations have in common: segments, edges and transfers of the typical one."""

    def __init__(self, traces: Sequence[RankTrace], step: int, clocks: Clocks) -> None:
        self.traces, self.step, self.clocks = traces, step, clocks
        self.cuts = [cut(trace, step) for trace in traces]
        self.signatures = [segments.signature(trace) for trace, segments in zip(traces, self.cuts, strict=True)]
        self.causality = [Causality(trace, segments) for trace, segments in zip(traces, self.cuts, strict=True)]
        matched = Communications(traces, self.cuts, step)
        self.keys, self.transfer, self.assumptions = matched.keys, matched.transfer, matched.assumptions
        self.orders, self.predecessors = [], []
        for segments, causality in zip(self.cuts, self.causality, strict=True):
            pairs = causality.pairs()
            lane_order = np.flatnonzero(causality.before >= 0)
            lane_order = np.stack([causality.before[lane_order], lane_order], axis=1)
            self.predecessors.append(np.concatenate([pairs, lane_order]))
            self.orders.append(np.lexsort((segments.start_s, segments.lane)))

    # Times

    def fits(self, cuts: list[Segments]) -> bool:
        """Whether these segments are those of the typical iteration, one by one."""
        return all(
            len(segments) == len(signature) and np.array_equal(segments.signature(trace), signature)
            for trace, segments, signature in zip(self.traces, cuts, self.signatures, strict=True)
        )

    def timing(self, cuts: list[Segments], step: int) -> _Timing:
        """Of an iteration that fits."""
        shift_s = self.clocks.shift_s(self.traces, [segments.step_s[0] for segments in cuts])
        began_s = [segments.step_s[0] + shift for segments, shift in zip(cuts, shift_s, strict=True)]
        origin_s = min(began_s)
        starts = [segments.start_s + (shift - origin_s) for segments, shift in zip(cuts, shift_s, strict=True)]
        ends = [segments.end_s + (shift - origin_s) for segments, shift in zip(cuts, shift_s, strict=True)]
        count = len(self.keys)
        came_s, done_s, members_of = np.full(count, -np.inf), np.zeros(count), np.zeros(count)
        for place, transfer in enumerate(self.transfer):
            members = np.flatnonzero(transfer != NO_TRANSFER)
            own_end_s = ends[place].copy()
            for one, waiter in self.causality[place].waiter.items():
                is_wait = self.causality[place].what[waiter] == What.SYNC
                went_on_s = ends[place][waiter] if is_wait else starts[place][waiter]
                own_end_s[one] = max(min(own_end_s[one], went_on_s), starts[place][one])
            np.maximum.at(came_s, transfer[members], starts[place][members])
            np.add.at(done_s, transfer[members], own_end_s[members])
            np.add.at(members_of, transfer[members], 1.0)
        done_s = np.maximum(done_s / np.maximum(members_of, 1.0), came_s)  # members end at nearly the same time
        gaps, lasted, tails = [], [], []
        for place, (causality, transfer) in enumerate(zip(self.causality, self.transfer, strict=True)):
            end_s = np.where(transfer != NO_TRANSFER, done_s[transfer] if count else 0.0, ends[place])
            first, second = self.predecessors[place].T
            ready_s = np.full(len(end_s), began_s[place] - origin_s)
            np.maximum.at(ready_s, second, end_s[first])
            waits = causality.what == What.SYNC
            begin_s = np.where(waits, np.clip(ready_s, starts[place], ends[place]), starts[place])
            gaps.append(np.where(waits, 0.0, np.maximum(begin_s - ready_s, 0.0)))
            lasted.append(np.maximum(ends[place] - begin_s, 0.0))
            over_s = began_s[place] - origin_s + _length_s(self.traces[place], step)
            host = causality.host[causality.segments.lane[causality.host] == _main_lane(causality)]
            tails.append(max(over_s - float(end_s[host].max(initial=began_s[place] - origin_s)), 0.0))
        return _Timing(starts, ends, gaps, lasted, tails, came_s, done_s - came_s)

    # The graph

    def joined(self, timings: list[_Timing], iteration: int, iteration_s: float, assumptions: list[str]) -> Joined:
        """Means of `timings` on the common structure."""

        def mean(name: str) -> list[np.ndarray]:
            return [
                np.mean([getattr(timing, name)[place] for timing in timings], axis=0)
                for place in range(len(self.traces))
            ]

        start_s, end_s, gap_s, lasted_s, tail_s = map(mean, ("start_s", "end_s", "gap_s", "lasted_s", "tail_s"))
        transfer_s = np.mean([timing.transfer_s for timing in timings], axis=0)
        builder = GraphBuilder()
        weight = max((trace.world_size for trace in self.traces), default=1) / len(self.traces)
        for trace in self.traces:
            builder.add_rank(weight=max(weight, 1.0), device=trace.rank)
        works = self._add_transfers(builder, transfer_s)
        rows: list[tuple[int, float, float]] = []  # event, start, end of each op
        gradients: list[tuple[int, int, float]] = []
        for place, (trace, segments) in enumerate(zip(self.traces, self.cuts, strict=True)):
            ops = self._add_rank(
                builder, place, works, start_s[place], end_s[place], gap_s[place], lasted_s[place],
                float(tail_s[place]), rows,
            )  # fmt: skip
            events = trace.events
            bucket = {
                one: int(self.transfer[place][communication])
                for communication, members in self.causality[place].buckets
                for one in members
            }
            final = [int(one) for one in self.causality[place].host if events.gradient[segments.event[one]]]
            final.sort(key=lambda one: segments.start_s[one])
            gradients += [
                (int(ops[one]), bucket.get(one, NO_TRANSFER), float(events.bytes[segments.event[one]])) for one in final
            ]
        graph, orphans = _with_sources(builder.build())
        if orphans:
            assumptions = [
                *assumptions,
                f"{orphans} communications have no producer here: they begin with the iteration",
            ]
        event, op_start_s, op_end_s = zip(*rows, strict=True)
        typical_s = [segments.step_s[0] for segments in self.cuts]
        shift_s = self.clocks.shift_s(self.traces, typical_s)
        first_s = min(at_s + shift for at_s, shift in zip(typical_s, shift_s, strict=True))
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
            origin_s=np.array([first_s - shift for shift in shift_s]),
            scatter_s=_scatter_s(graph, timings),
        )

    def _add_transfers(self, builder: GraphBuilder, transfer_s: np.ndarray) -> list[int]:
        """Groups and transfers; returns each transfer's work."""
        place_of = {trace.rank: place for place, trace in enumerate(self.traces)}
        groups: dict[tuple[tuple[int, ...], str], int] = {}
        about: dict[int, tuple[str, int, float]] = {}
        for trace, segments, transfer in zip(self.traces, self.cuts, self.transfer, strict=True):
            for one in np.flatnonzero(transfer != NO_TRANSFER).tolist():
                event = int(segments.event[one])
                name, size = trace.names[trace.events.name[event]], float(trace.events.bytes[event])
                _, kind, known = about.get(int(transfer[one]), ("", 0, 0.0))
                about[int(transfer[one])] = (name, kind or int(trace.events.collective[event]), max(size, known))
        works = []
        for number, key in enumerate(self.keys):
            ranks, name = key.ranks, key.group_name
            if (ranks, name) not in groups:
                members = [place_of[rank] for rank in key.members if rank in place_of]
                groups[ranks, name] = builder.add_group(members, name=name, size=len(ranks))
            title, collective, size = about[number]
            is_p2p = collective == Collective.P2P
            work = builder.add_work(
                title,
                Kind.SEND if is_p2p else Kind.COLLECTIVE,
                collective=Collective(collective),
                bytes=size,
                seconds=float(transfer_s[number]),
            )
            works.append(work)
            builder.add_transfers(work, groups[ranks, name])
        return works

    def _add_rank(self, builder, place, works, start_s, end_s, gap_s, lasted_s, tail_s, rows) -> np.ndarray:
        """Streams and ops of one rank; returns the op of each segment. Fills `rows`."""
        trace, segments, causality = self.traces[place], self.cuts[place], self.causality[place]
        transfer, order = self.transfer[place], self.orders[place]
        has_gap = gap_s > LEAST_GAP_S
        # Ops get their numbers in the order of lanes; a gap comes right before its segment.
        first = len(rows)
        number = np.empty(len(segments), np.int64)
        number[order] = first + np.arange(len(order)) + np.cumsum(has_gap[order])
        after: list[list[int]] = [[] for _ in range(len(segments))]
        for cause, caused in causality.pairs().tolist():
            after[caused].append(int(number[cause]))
        streams = {
            int(lane): builder.add_stream(place, trace.lanes[lane].name)
            for lane in np.unique(segments.lane).tolist() or [0]
        }
        main = _main_lane(causality)
        for one in order.tolist():
            lane, event = int(segments.lane[one]), int(segments.event[one])
            name = trace.names[trace.events.name[event]]
            before = int(causality.before[one])
            if has_gap[one]:
                work = builder.add_work(f"gap before {name}", Kind.DELAY, seconds=float(gap_s[one]))
                builder.add_op(streams[lane], work, after=after[one])
                rows.append((GAP, float(start_s[one] - gap_s[one]), float(start_s[one])))
                after[one] = [int(number[one]) - 1]
            met = int(transfer[one])
            if met == NO_TRANSFER:
                size = float(trace.events.bytes[event])
                work = builder.add_work(name, Kind(segments.kind[one]), bytes=size, seconds=float(lasted_s[one]))
            elif trace.events.what[event] == What.RECV:
                work = builder.add_work(
                    name, Kind.RECV, collective=Collective.P2P, bytes=float(trace.events.bytes[event])
                )
            else:
                work = works[met]
            if met != NO_TRANSFER and not after[one] and before >= 0:
                after[one] = [int(number[before])]
            builder.add_op(streams[lane], work, after=after[one], transfer=met)
            rows.append((event, float(end_s[one] - lasted_s[one]), float(end_s[one])))
        if tail_s > 0 and main in streams:
            hosts = causality.host[segments.lane[causality.host] == main]
            last = int(hosts[np.argmax(segments.start_s[hosts])]) if len(hosts) else int(order[-1])
            work = builder.add_work("gap at the end", Kind.DELAY, seconds=tail_s)
            builder.add_op(streams[int(segments.lane[last])], work, after=[int(number[last])])
            rows.append((GAP, float(end_s[last]), float(end_s[last] + tail_s)))
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


def _main_lane(causality: Causality) -> int:
    """The host lane that works most; of a rank without, its first lane."""
    segments, host = causality.segments, causality.host
    if not len(host):
        return int(segments.lane[0]) if len(segments) else 0
    return int(np.argmax(np.bincount(segments.lane[host], (segments.end_s - segments.start_s)[host])))
