"""Joins the traces of all ranks into one graph: `join(read(folder))`.

1. Each rank's iteration is cut into segments (`segments.py`).
2. Communications of the same group and number become transfers (`collectives.py`).
3. Dependencies are added (`causality.py`).
4. Similar iterations are timed (`plan.py`) and averaged; if most differ, the one of median length is used.
5. Time between a segment and its last dependency becomes a gap: an op of kind DELAY, such as the interpreter's time.

The graph therefore replays as traced; in a changed graph gaps remain and waiting is recomputed.
"""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Sequence
from enum import Enum
from heapq import heappop, heappush

import numpy as np

from emulator.jobs.workload import checks
from emulator.jobs.workload.builder import GraphBuilder
from emulator.jobs.workload.costs import Costs
from emulator.jobs.workload.graph import NO_TRANSFER, Collective, Graph, Kind
from emulator.traces.collector import paused
from emulator.traces.events import LaneKind, RankTrace
from emulator.traces.intervals import under_way_s
from emulator.traces.joined import GAP, Joined
from emulator.traces.plan import Job, RankTiming, Timing, TypicalIteration
from emulator.traces.segments import Segments
from switchml.errors import TraceError

MEAN = -1
MIN_GAP_S = 1e-7
"""Shortest gap: below the resolution of profilers."""
_KINDS = list(Kind)
BACKLOG = "work of earlier iterations"
MAX_LAUNCHING = 16
"""Maximum number of concurrent launches for one stream of a device."""


@paused()
def join(traces: Sequence[RankTrace] | Job, *, iteration: int | None = None) -> Joined:
    """Join one iteration of all ranks; by default the mean of all comparable iterations.

    A mean iteration begins with idle devices and hosts ahead as usual; a single one with its devices' backlog. Raises
    TraceError for traces that don't belong together, GraphError for an inconsistent graph."""
    job = traces if isinstance(traces, Job) else Job(traces)
    if iteration is not None:
        if not 0 <= iteration < job.total:
            raise TraceError(f"there is no iteration {iteration}: the traces have {job.total}, from 0 on")
        if iteration in job.lost:
            raise TraceError(
                f"iteration {iteration} has launches, but no kernel; {job.first} to {job.count - 1} are whole"
            )
        return _one(TypicalIteration(job, iteration))
    chosen = range(job.warm_up, job.count)
    duration_s = {step: job.duration_s(step) for step in chosen}
    plan = TypicalIteration(job, _median(job, duration_s))
    timings, used = [], []
    for step in chosen:
        if step == plan.step:
            timings.append(plan.typical)
        elif (cuts := plan.match(job.cuts(step))) is not None:
            timings.append(plan.timing(cuts))
        else:
            continue
        used.append(step)
    if 2 * len(used) < len(chosen):
        timings, used = [plan.typical], [plan.step]
    assumptions = list(plan.assumptions)
    if (skipped := chosen[0] - job.first) > 0:
        which = "the first" if skipped == 1 else f"the first {skipped}"
        assumptions.append(f"{which} of {job.count - job.first} iterations took much longer than the others: left out")
    if len(used) < len(chosen):
        assumptions += _left_out(plan, job, [step for step in chosen if step not in used], len(chosen))
    number = used[0] if len(used) == 1 else MEAN
    iteration_s = float(np.mean([duration_s[step] for step in used]))
    ahead_s = [float(np.mean([steps.ahead_s(step) for step in used])) for steps in job.steps]
    if max(ahead_s) > MIN_GAP_S:
        assumptions.append(f"hosts are up to {max(ahead_s) * 1e3:.3g} ms ahead of their devices as an iteration begins")
    joined = _Assembly(plan, timings, Mode.ALONE, ahead_s).joined(number, iteration_s, assumptions)
    checks.check(joined.graph)
    return dataclasses.replace(joined, job_s=job.iteration_s)


def _median(job: Job, duration_s: dict[int, float]) -> int:
    """Return the iteration of median length, among those with the most common device activity if these are the
    majority."""
    works = {step: tuple(steps.works(step) for steps in job.steps) for step in duration_s}
    usual, count = Counter(works.values()).most_common(1)[0]
    alike = [step for step in duration_s if works[step] == usual or 2 * count < len(duration_s)]
    return sorted(alike, key=duration_s.__getitem__)[len(alike) // 2]


def _left_out(plan: TypicalIteration, job: Job, steps: list[int], count: int) -> list[str]:
    """Return why `steps`, of `count` iterations, are excluded from the mean."""
    alike = sum(plan.fits_devices(job.cuts(step)) for step in steps)
    reasons = []
    if others := len(steps) - alike:
        reasons.append(f"{others} of {count} iterations do other things than the typical one: they are left out")
    if alike:
        what = "do on devices what the typical one does, but their hosts pause at other places: they are left out"
        reasons.append(f"{alike} of {count} iterations {what}")
    return reasons


@paused()
def join_each(traces: Sequence[RankTrace] | Job) -> list[Joined]:
    """Join every iteration after the profilers' start, in order; later ones continue their streams
    (`iterations.chain`)."""
    job = traces if isinstance(traces, Job) else Job(traces)
    plan = TypicalIteration(job, job.warm_up)
    iterations = [_one(plan)]
    for step in range(job.warm_up + 1, job.count):
        before, plan = plan.cuts, TypicalIteration(job, step)
        iterations.append(_one(plan, before))
    return iterations


def _one(plan: TypicalIteration, before: list[Segments] | None = None) -> Joined:
    """Join the iteration of `plan` by itself. `before`: the preceding one, if that is replayed, too."""
    timing = plan.typical if before is None else plan.timing(plan.cuts, before)
    assembly = _Assembly(plan, [timing], Mode.FIRST if before is None else Mode.NEXT)
    joined = assembly.joined(plan.step, plan.job.duration_s(plan.step), list(plan.assumptions))
    if before is None:
        checks.check(joined.graph)
    return joined


class Mode(Enum):
    """Relation of an iteration's graph to the preceding iterations."""

    ALONE = 0
    """Independent."""
    FIRST = 1
    """The remaining work of devices and transports for them is included as first ops on their streams."""
    NEXT = 2
    """Dependencies on them are in `Joined.earlier`."""


class _Assembly:
    """Builds a graph from the means of timings. `ahead_s`: by rank, host time that is already over at its start."""

    def __init__(
        self, plan: TypicalIteration, timings: list[Timing], mode: Mode, ahead_s: Sequence[float] = ()
    ) -> None:
        self.plan, self.timings, self.mode = plan, timings, mode
        self.ahead_s = ahead_s
        self.builder = GraphBuilder()
        self.rows: list[tuple[int, float, float]] = []
        """Event, start, end of each op."""
        self.earlier: list[tuple[int, int]] = []

    def joined(self, iteration: int, iteration_s: float, assumptions: list[str]) -> Joined:
        plan, builder, timings = self.plan, self.builder, self.timings
        transfer_s = np.mean([timing.transfer_s for timing in timings], axis=0)
        weight = max((trace.world_size for trace in plan.traces), default=1) / len(plan.traces)
        for trace in plan.traces:
            builder.add_rank(weight=max(weight, 1.0), device=trace.rank)
        op_types = self._add_transfers(transfer_s)
        gradients: list[tuple[int, int, float]] = []
        main = []
        for place, rank in enumerate(plan.ranks):
            columns = zip(*(timing.ranks[place] for timing in timings), strict=True)
            mean = RankTiming(*(np.mean(column, axis=0) for column in columns))
            ops, stream = self._add_rank(place, op_types, self._begun(place, mean))
            main.append(stream)
            bucket = {
                one: int(rank.transfer[communication]) for communication, members in rank.buckets for one in members
            }
            size = rank.trace.events.bytes[rank.segments.event]
            gradients += [(int(ops[one]), bucket.get(one, NO_TRANSFER), float(size[one])) for one in rank.gradients]
        graph, orphans = _with_sources(builder.build(), [op for op, _ in self.earlier])
        if orphans:
            sentence = f"{orphans} communications have no producer here: they begin with the iteration"
            assumptions = [*assumptions, sentence]
        event, op_start_s, op_end_s = zip(*self.rows, strict=True)
        clocks = plan.job.clocks
        return Joined(
            graph=graph,
            costs=Costs.of(graph, graph.op_types.seconds),
            traces=list(plan.traces),
            event=np.array(event, np.int64),
            start_s=np.array(op_start_s),
            end_s=np.array(op_end_s),
            offset_s=np.array(clocks.offset_s),
            iteration=iteration,
            iteration_s=iteration_s,
            gradients=gradients,
            assumptions=[*plan.job.notes, *clocks.assumptions, *assumptions],
            origin_s=plan.job.origin_s(plan.step),
            main=np.array(main, np.int64),
            earlier=np.array(self.earlier, np.int64).reshape(-1, 2),
            scatter_s=_scatter_s(graph, timings),
        )

    def _begun(self, place: int, timing: RankTiming) -> RankTiming:
        """Remove the host work that a rank's host, running ahead of its devices, has already done when they begin."""
        if not self.ahead_s or self.ahead_s[place] <= MIN_GAP_S:
            return timing
        plan, steps = self.plan, self.plan.job.steps[place]
        began_s = steps.begin_s(plan.step) - float(plan.job.origin_s(plan.step)[place])
        over_s, on_host = began_s + self.ahead_s[place], plan.ranks[place].segments.lane_kind == LaneKind.HOST
        end_s = began_s + steps.host_s(plan.step)
        return timing._replace(
            gap_s=np.where(on_host, np.clip(timing.start_s - over_s, 0.0, timing.gap_s), timing.gap_s),
            duration_s=np.where(on_host, np.clip(timing.end_s - over_s, 0.0, timing.duration_s), timing.duration_s),
            tail_s=float(np.clip(end_s - over_s, 0.0, timing.tail_s)),
        )

    def _add_transfers(self, transfer_s: np.ndarray) -> list[int]:
        """Add groups and transfers; return each transfer's op type."""
        builder, plan = self.builder, self.plan
        place_of = {trace.rank: place for place, trace in enumerate(plan.traces)}
        groups: dict[tuple[tuple[int, ...], str], int] = {}
        about: dict[int, tuple[str, int, float]] = {}
        for rank in plan.ranks:
            for one in np.flatnonzero(rank.transfer != NO_TRANSFER).tolist():
                events, event = rank.trace.events, rank.segments.event[one]
                _, kind, size = about.get(int(rank.transfer[one]), ("", 0, 0.0))
                kind, size = kind or int(events.collective[event]), max(float(events.bytes[event]), size)
                about[int(rank.transfer[one])] = (rank.name(one), kind, size)
        op_types = []
        for number, key in enumerate(plan.keys):
            if (key.ranks, key.group_name) not in groups:
                members = [place_of[rank] for rank in key.members if rank in place_of]
                group = builder.add_group(members, name=key.group_name, size=len(key.ranks))
                groups[key.ranks, key.group_name] = group
            title, collective, size = about[number]
            kind = Kind.SEND if collective == Collective.P2P else Kind.COLLECTIVE
            of, seconds = Collective(collective), float(transfer_s[number])
            op_types.append(builder.add_op_type(title, kind, collective=of, bytes=size, seconds=seconds))
            builder.add_transfers(op_types[-1], groups[key.ranks, key.group_name])
        return op_types

    def _add_rank(self, place: int, op_types: list[int], timing: RankTiming) -> tuple[np.ndarray, int]:
        """Add streams and ops of one rank; return the op of each segment, and the stream of its main thread."""
        builder, rank, rows = self.builder, self.plan.ranks[place], self.rows
        segments, events, order = rank.segments, rank.trace.events, rank.order
        names, name_of = rank.trace.names, events.name[segments.event].tolist()
        streams = {
            lane: builder.add_stream(place, rank.trace.lanes[lane].name)
            for lane in np.unique(np.append(segments.lane, rank.main_lane)).tolist()
        }
        backlog = self._add_backlog(place, streams) if self.mode == Mode.FIRST else {}
        gap_s, duration_s, start_s, end_s = (
            column.tolist() for column in (timing.gap_s, timing.duration_s, timing.start_s, timing.end_s)
        )
        # Ops are numbered in lane order; a gap directly precedes its segment.
        has_gap = timing.gap_s > MIN_GAP_S
        number = np.empty(len(segments), np.int64)
        number[order] = len(rows) + np.arange(len(order)) + np.cumsum(has_gap[order])
        launches = self._launch_streams(place, timing, has_gap & (timing.is_latency > 0.5))
        after: dict[int, list[int]] = defaultdict(list)
        awaited: dict[int, list[int]] = defaultdict(list)
        # Dependencies of the op itself, not of the gap in front of it.
        directly = rank.awaited(rank.pairs)
        if launches:
            directly |= np.isin(rank.pairs[:, 1], list(launches)) & ~rank.is_launch(rank.pairs)
        for (cause, caused), is_direct in zip(rank.pairs.tolist(), directly.tolist(), strict=True):
            (awaited if is_direct else after)[caused].append(int(number[cause]))
        for one, event in rank.earlier.tolist() if self.mode != Mode.ALONE else ():
            blocks = bool(rank.is_wait[one]) or one in launches
            if self.mode == Mode.NEXT:
                self.earlier.append((int(number[one]) - int(has_gap[one] and not blocks), event))
            elif event in backlog:
                (awaited if blocks else after)[one].append(backlog[event])
        columns = (segments.lane, segments.event, segments.kind, rank.transfer, events.bytes[segments.event])
        lane, event, kind, met, size = (column.tolist() for column in columns)
        before, none, delay = rank.before.tolist(), NO_TRANSFER, Kind.DELAY
        for one in order.tolist():
            stream, name, waits_for = streams[lane[one]], names[name_of[one]], after.get(one, [])
            if has_gap[one]:
                op_type = builder.add_op_type(f"gap before {name}", delay, seconds=gap_s[one])
                gap = builder.add_op(launches.get(one, stream), op_type, after=waits_for)
                rows.append((GAP, start_s[one] - gap_s[one], start_s[one]))
                waits_for = [gap]
            waits_for = [*waits_for, *awaited.get(one, [])]
            if met[one] == none:
                op_type = builder.add_op_type(name, _KINDS[kind[one]], bytes=size[one], seconds=duration_s[one])
            elif _KINDS[kind[one]] is Kind.RECV:
                op_type = builder.add_op_type(name, Kind.RECV, collective=Collective.P2P, bytes=size[one])
            else:
                op_type = op_types[met[one]]
            if met[one] != none and not waits_for and before[one] >= 0:
                waits_for = [int(number[before[one]])]
            builder.add_op(stream, op_type, after=waits_for, transfer=met[one])
            rows.append((event[one], end_s[one] - duration_s[one], end_s[one]))
        main = streams[rank.main_lane]
        if timing.tail_s > 0:
            hosts = rank.on_main()
            last = int(hosts[np.argmax(segments.start_s[hosts])]) if len(hosts) else int(order[-1])
            op_type = builder.add_op_type("gap at the end", Kind.DELAY, seconds=float(timing.tail_s))
            builder.add_op(streams[lane[last]], op_type, after=[int(number[last])])
            rows.append((GAP, end_s[last], end_s[last] + timing.tail_s))
        return number, main

    def _launch_streams(self, place: int, timing: RankTiming, is_latency: np.ndarray) -> dict[int, int]:
        """Return the stream for the gap between a device segment and its launch. The gap blocks neither its device nor
        the next launch, so concurrent gaps need separate streams."""
        rank, streams = self.plan.ranks[place], {}
        from_s, until_s = (timing.start_s - timing.gap_s).tolist(), timing.start_s.tolist()
        free: dict[int, list[tuple[float, int]]] = defaultdict(list)  # by lane: (end of use of a stream, stream)
        for one in rank.order[is_latency[rank.order]].tolist():
            lane = int(rank.segments.lane[one])
            if free[lane] and free[lane][0][0] <= from_s[one] + MIN_GAP_S:
                _, stream = heappop(free[lane])
            elif len(free[lane]) < MAX_LAUNCHING:
                name = f"launches for {rank.trace.lanes[lane].name}, {len(free[lane]) + 1}"
                stream = self.builder.add_stream(place, name)
            else:
                continue
            heappush(free[lane], (until_s[one], stream))
            streams[one] = stream
        return streams

    def _add_backlog(self, place: int, streams: dict[int, int]) -> dict[int, int]:
        """Add the work that devices and transports of a rank still had to do when the iteration began: an op up to each
        time that something here depends on. Return the op that completes each awaited event of an earlier iteration."""
        rank, job = self.plan.ranks[place], self.plan.job
        steps, step, origin_s = job.steps[place], self.plan.step, float(job.origin_s(self.plan.step)[place])
        if not step:
            return {}
        began_s = steps.begin_s(step) - origin_s
        events, awaited = rank.trace.events, np.unique(rank.earlier[:, 1])
        over_s = events.end_s[awaited] - origin_s
        op_of: dict[int, int] = {}
        for lane in np.flatnonzero(steps.done_s[step - 1] - origin_s > began_s + MIN_GAP_S).tolist():
            if lane not in streams:
                streams[lane] = self.builder.add_stream(place, rank.trace.lanes[lane].name)
            mine = (events.lane[awaited] == lane) & (over_s > began_s)
            ends_s = np.unique(np.append(over_s[mine], steps.done_s[step - 1, lane] - origin_s))
            first, from_s = len(self.rows), began_s
            for until_s in ends_s.tolist():
                op_type = self.builder.add_op_type(BACKLOG, Kind.COMPUTE, seconds=until_s - from_s)
                self.builder.add_op(streams[lane], op_type)
                self.rows.append((GAP, from_s, until_s))
                from_s = until_s
            places = first + np.searchsorted(ends_s, over_s[mine])
            op_of |= dict(zip(awaited[mine].tolist(), places.tolist(), strict=True))
        return op_of


def _scatter_s(graph: Graph, timings: list[Timing]) -> float:
    """Return an all-reduce's share of the variation of all-reduce time between iterations: half of the range that
    contains two thirds of them. Overlapping all-reduces affect each other, so the total of an iteration is used."""
    own = graph.op_types.collective[graph.transfers.op_type] == Collective.ALL_REDUCE
    if not own.any():
        return 0.0
    spent_s = [under_way_s(timing.came_s[own], timing.transfer_s[own]) for timing in timings]
    low_s, high_s = np.quantile(spent_s, (1 / 6, 5 / 6))
    return float((high_s - low_s) / 2 / np.sqrt(np.count_nonzero(own)))


def _with_sources(graph: Graph, waiting: list[int]) -> tuple[Graph, int]:
    """Allow communication without a dependency in the iteration, such as work launched by the preceding one, to start
    at once; also return the number of these ops. `waiting`: ops that wait for earlier iterations."""
    starts = np.isin(graph.op_kind(), (Kind.COLLECTIVE, Kind.SEND)) & (np.diff(graph.ops.dep_start) == 0)
    is_source = graph.op_types.is_source.copy()
    is_source[graph.ops.op_type[starts]] = True
    starts[waiting] = False
    op_types = dataclasses.replace(graph.op_types, is_source=is_source)
    return dataclasses.replace(graph, op_types=op_types), int(starts.sum())
