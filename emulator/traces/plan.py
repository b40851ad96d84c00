"""Common structure of a job's iterations, and their timings: segments of all ranks, dependencies, and communications.
`join.py` builds graphs from it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from emulator.jobs.workload.graph import NO_TRANSFER
from emulator.traces.align import align
from emulator.traces.causality import RankGraph, rank_graph
from emulator.traces.collectives import ambiguous_groups, match
from emulator.traces.completeness import NOTES, lost_device
from emulator.traces.events import LaneKind, RankTrace, one_a_rank
from emulator.traces.segments import Segments, cut
from emulator.traces.similarity import match_segments
from emulator.traces.steps import Steps
from switchml.errors import TraceError

WARM_UP = 1.3
"""Iterations at the start that take longer than this multiple of the median are excluded."""
MIN_IDLE, AT_BEST = 3, 0.05
"""Minimum number of kernels on an idle stream to determine the launch latency; otherwise that quantile of all kernels
is used."""
LONGEST_LATENCY_S = 5e-5
"""Larger delays are not latency but other work of the device."""


class Job:
    """One job's traces on a common clock. Raises TraceError if they don't belong together."""

    def __init__(self, traces: Sequence[RankTrace]) -> None:
        self.traces = one_a_rank(traces)
        if not self.traces:
            raise TraceError("no traces: expected one a rank")
        sizes = {trace.world_size for trace in self.traces if trace.world_size}
        if len(sizes) > 1:
            raise TraceError(
                f"traces of jobs of {' and '.join(map(str, sorted(sizes)))} ranks: expected those of one job"
            )
        for trace in self.traces:
            if not len(trace.steps) or not len(trace.events):
                raise TraceError(f"{trace.source} has no events in any iteration")
            if what := lost_device(trace):
                raise TraceError(f"{trace.source}: {what}")
        self.clocks = align(self.traces)
        self.steps = [Steps(trace) for trace in self.traces]
        self.total = min(len(trace.steps) for trace in self.traces)
        """Number of iterations that all ranks have."""
        self.lost = [step for step in range(self.total) if any(is_lost(steps, step) for steps in self.steps)]
        """Iterations in which some rank launched device work that is missing in its trace."""
        if len(self.lost) == self.total:
            raise TraceError(f"{self.traces[0].source}: all of its iterations have launches, but none a kernel")
        self.first, self.count = _longest_run(self.total, self.lost)
        """Range of iterations used: the longest one without lost work, from `first` to before `count`."""

    @property
    def notes(self) -> list[str]:
        """Return sentences on what readers omitted or changed, of all ranks or with the rank in front."""
        notes = []
        for key in NOTES:
            noted = {trace.rank: trace.about[key] for trace in self.traces if key in trace.about}
            if len(set(noted.values())) == 1 and len(noted) == len(self.traces):
                notes.append(f"{key}: {next(iter(noted.values()))}")
            else:
                notes += [f"{key}, rank {rank}: {what}" for rank, what in noted.items()]
        if self.lost:
            named = ", ".join(map(str, self.lost[:8])) + (", …" if len(self.lost) > 8 else "")
            taken = f"{self.first} to {self.count - 1} are taken"
            notes.append(f"iterations {named} of {self.total} have launches, but no kernel: {taken}")
        return notes

    @cached_property
    def ambiguous(self) -> frozenset[tuple]:
        """The result of `ambiguous_groups`."""
        return ambiguous_groups(self.traces)

    @cached_property
    def warm_up(self) -> int:
        """First iteration after the warm-up."""
        return warm_up(self.steps, self.first, self.count)

    @cached_property
    def iteration_s(self) -> float:
        """Mean length after the warm-up, from the first rank's start to the last one's completion."""
        origin_s = self.origin_s(self.warm_up)
        done_s = max(steps.complete_s(self.count - 1) - at for steps, at in zip(self.steps, origin_s, strict=True))
        return float(done_s) / (self.count - self.warm_up)

    def duration_s(self, step: int) -> float:
        """Return the duration of an iteration, mean over ranks."""
        return float(np.mean([steps.duration_s(step) for steps in self.steps]))

    def cuts(self, step: int) -> list[Segments]:
        """Return the segments of all ranks."""
        return [cut(steps, step) for steps in self.steps]

    def origin_s(self, step: int) -> np.ndarray:
        """Return the time of each trace's clock when the iteration begins on the first rank, float64 (ranks,)."""
        begin_s = np.array([steps.begin_s(step) for steps in self.steps])
        shift_s = self.clocks.shift_s(self.traces, begin_s.tolist())
        return (begin_s + shift_s).min() - shift_s


def warm_up(steps: Sequence[Steps], first: int, count: int) -> int:
    """Return the first representative iteration on all ranks, from `first` to before `count`: while profilers start,
    others wait."""
    length_s = np.array([max(each.host_s(step) for each in steps) for step in range(first, count)])
    usual_s = float(np.median(length_s))
    skipped = 0
    while 2 * skipped < len(length_s) - 2 and length_s[skipped] > WARM_UP * usual_s:
        skipped += 1
    return first + skipped


def is_lost(steps: Steps, step: int) -> bool:
    """Return whether an iteration has launches on an accelerator but no launched work, although others have."""
    launches = steps.launches(step)
    return launches > 0 and not steps.works(step) and bool(steps.trace.lanes_of(LaneKind.DEVICE))


def _longest_run(total: int, lost: Sequence[int]) -> tuple[int, int]:
    """Return start and end of the longest run of consecutive numbers below `total` that are not in `lost`."""
    ends = [-1, *lost, total]
    return max(((one + 1, other) for one, other in pairwise(ends)), key=lambda run: run[1] - run[0])


class RankTiming(NamedTuple):
    """Timing of one rank's segments in one iteration, on the common clock from the iteration's start."""

    start_s: np.ndarray
    end_s: np.ndarray
    gap_s: np.ndarray
    is_latency: np.ndarray
    """Whether a gap is between a launch and the launched work, rather than between two events on a stream."""
    duration_s: np.ndarray
    tail_s: float
    """Time from the main thread's last segment to the end of the iteration."""


@dataclass(frozen=True)
class Timing:
    """Timing of one iteration."""

    ranks: list[RankTiming]
    came_s: np.ndarray
    """Arrival of each transfer's last member."""
    transfer_s: np.ndarray


class TypicalIteration:
    """Segments, dependencies and transfers of iteration `step`. Raises TraceError if a rank has no events."""

    def __init__(self, job: Job, step: int) -> None:
        self.job, self.traces, self.step = job, job.traces, step
        self.cuts = job.cuts(step)
        for trace, segments in zip(self.traces, self.cuts, strict=True):
            if not len(segments):
                raise TraceError(f"{trace.source} has no events in iteration {step}")
        self.keys, transfers, self.assumptions = match(self.cuts, job.ambiguous)
        self.ranks = [rank_graph(*each) for each in zip(self.cuts, transfers, strict=True)]

    def match(self, cuts: list[Segments]) -> list[Segments] | None:
        """Return the segments of the typical iteration with their times in another one; None if that one differs too
        much."""
        placed = []
        for rank, segments in zip(self.ranks, cuts, strict=True):
            if (own := match_segments(rank.segments, segments)) is None:
                return None
            placed.append(own)
        return placed

    def fits_devices(self, cuts: list[Segments]) -> bool:
        """Return whether devices and transports do exactly the same as in the typical iteration, and there are any."""
        is_any = any((segments.lane_kind != LaneKind.HOST).any() for segments in cuts)
        pairs = (map(_device_signature, each) for each in zip(self.cuts, cuts, strict=True))
        return is_any and all(np.array_equal(one, other) for one, other in pairs)

    @cached_property
    def typical(self) -> Timing:
        """Timing of the typical iteration by itself."""
        return self.timing(self.cuts)

    def timing(self, cuts: list[Segments], before: list[Segments] | None = None) -> Timing:
        """Return the timing of an iteration whose segments correspond to the typical one. `before`: the preceding one,
        if that is replayed, too."""
        step = cuts[0].step
        origin_s = self.job.origin_s(step)
        starts = [segments.start_s - at_s for segments, at_s in zip(cuts, origin_s, strict=True)]
        ends = [segments.end_s - at_s for segments, at_s in zip(cuts, origin_s, strict=True)]
        count = len(self.keys)
        came_s, done_s, members_of = np.full(count, -np.inf), np.zeros(count), np.zeros(count)
        for rank, start_s, end_s in zip(self.ranks, starts, ends, strict=True):
            members = np.flatnonzero(rank.transfer != NO_TRANSFER)
            own_end_s = end_s.copy()
            for one, waiter in rank.waiter.items():
                went_on_s = (end_s if rank.is_wait[waiter] else start_s)[waiter]
                own_end_s[one] = max(min(own_end_s[one], went_on_s), start_s[one])
            np.maximum.at(came_s, rank.transfer[members], start_s[members])
            np.add.at(done_s, rank.transfer[members], own_end_s[members])
            np.add.at(members_of, rank.transfer[members], 1.0)
        done_s = np.maximum(done_s / np.maximum(members_of, 1.0), came_s)  # members end at nearly the same time
        ranks = []
        for place, rank in enumerate(self.ranks):
            over_s = np.where(rank.transfer != NO_TRANSFER, done_s[rank.transfer] if count else 0.0, ends[place])
            timing = _rank_timing(rank, cuts[place], over_s, origin_s[place], before[place] if before else None)
            if step != self.step and len(rank.earlier):
                # Dependencies on earlier iterations are known for the typical iteration only.
                usual, waits = self.typical.ranks[place], rank.earlier[:, 0]
                timing.gap_s[waits] = np.minimum(timing.gap_s[waits], usual.gap_s[waits])
                timing.duration_s[waits] = np.minimum(timing.duration_s[waits], usual.duration_s[waits])
            ranks.append(timing)
        return Timing(ranks, came_s, done_s - came_s)


def _device_signature(segments: Segments) -> np.ndarray:
    """Return the signature of segments outside the host, lane by lane."""
    chosen = np.flatnonzero(segments.lane_kind != LaneKind.HOST)
    return segments.signature()[chosen[np.lexsort((segments.start_s[chosen], segments.place[chosen]))]]


def _rank_timing(
    rank: RankGraph, segments: Segments, over_s: np.ndarray, origin_s: float, before: Segments | None
) -> RankTiming:
    """Return the timing of a rank. `over_s`: end of each segment, including all members of its transfer."""
    steps, step = segments.steps, segments.step
    start_s, end_s, began_s = segments.start_s - origin_s, segments.end_s - origin_s, steps.begin_s(step) - origin_s
    # The lane's preceding work; devices may lag by iterations.
    done_s = steps.done_s[step - 1].copy() if step else np.full(steps.done_s.shape[1], -np.inf)
    if before is not None:
        np.maximum.at(done_s, before.lane, before.end_s)
    free_s = np.where(rank.before < 0, done_s[segments.lane] - origin_s, -np.inf)
    ready_s = np.maximum(free_s, began_s)
    is_awaited, is_launch = rank.awaited(rank.predecessors), rank.is_launch(rank.predecessors)
    first, second = rank.predecessors[~is_awaited & ~is_launch].T
    np.maximum.at(ready_s, second, over_s[first])
    come_s = ready_s.copy()  # including awaited segments
    first, second = rank.predecessors[is_awaited].T
    np.maximum.at(come_s, second, over_s[first])
    if step == rank.segments.step:
        blocks = rank.is_wait[rank.earlier[:, 0]]
        for chosen, into in ((blocks, come_s), (~blocks, ready_s)):
            waits, event = rank.earlier[chosen].T
            np.maximum.at(into, waits, steps.trace.events.end_s[event] - origin_s)
    first, second = rank.predecessors[is_launch].T
    launched_s = np.full(len(end_s), -np.inf)
    launched_s[second] = over_s[first]
    is_latency = launched_s + _latency_s(start_s, ready_s, launched_s) > ready_s
    ready_s = np.where(is_latency, launched_s, np.maximum(launched_s, ready_s))
    begin_s = np.where(rank.is_wait, np.clip(come_s, start_s, end_s), start_s)
    tail_s = began_s + steps.host_s(step) - float(over_s[rank.on_main()].max(initial=began_s))
    gap_s, duration_s = np.maximum(start_s - ready_s, 0.0), np.maximum(end_s - begin_s, 0.0)
    return RankTiming(start_s, end_s, gap_s, is_latency, duration_s, max(tail_s, 0.0))


def _latency_s(start_s: np.ndarray, ready_s: np.ndarray, launched_s: np.ndarray) -> float:
    """Return the launch latency: on an idle stream, else in the best case; 0 for a stream that is always busy."""
    launched = np.isfinite(launched_s)
    after_s = (start_s - launched_s)[launched]
    idle_s = after_s[launched_s[launched] > ready_s[launched]]
    if not len(after_s):
        return 0.0
    latency_s = float(np.median(idle_s) if len(idle_s) >= MIN_IDLE else np.quantile(after_s, AT_BEST))
    return latency_s if 0 < latency_s <= LONGEST_LATENCY_S else 0.0
