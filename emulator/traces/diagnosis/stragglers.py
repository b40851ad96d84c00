"""Finds ranks whose own work takes longer than that of others: persistently or intermittently, in one operation or
all."""

from typing import Any

import numpy as np

from emulator.jobs.replay.report import operation_text
from emulator.jobs.workload.graph import Kind
from emulator.traces.diagnosis.context import DiagnosisContext, Finding
from emulator.traces.events import What
from emulator.traces.whatif.edits import by_rank
from switchml.units import time_text

OWN = (Kind.COMPUTE, Kind.CODEC, Kind.COPY, Kind.CHECKPOINT)
MIN_EXCESS = 0.05
"""Relative excess of its own work from which on a rank counts as slow."""
MOST_OF_IT = 0.6
"""Share of the excess from which on a single operation is reported as its cause."""
PERSISTENT = 0.7
"""Share of slow iterations from which on a straggler is persistent."""
MAX_REPLAYS = 10


def find(context: DiagnosisContext) -> list[Finding]:
    """Return persistent stragglers, one finding for each machine, and intermittent ones, one for each rank."""
    if len(context.graph.ranks) < 2:
        return []
    usual_s = usual(context)
    elapsed_s, should_s = _paces(context, usual_s)
    excess = np.divide(elapsed_s, should_s, out=np.ones(len(elapsed_s)), where=should_s > 0) - 1.0
    slow = np.flatnonzero(excess > MIN_EXCESS)
    findings = _persistent_ones(context, _by_host(context, slow), usual_s)
    findings += _uneven(context, usual_s)
    blamed = {rank for rank in slow.tolist() if _slow_share(context, rank)[0] >= PERSISTENT}
    for rank in range(len(context.graph.ranks)):
        if rank not in blamed:
            findings += _occasional(context, rank, usual_s)
    return findings


def _uneven(context: DiagnosisContext, usual_s: np.ndarray) -> list[Finding]:
    """Find a rank that runs operations more often than the others. Pipeline stages are expected to differ."""
    if np.any(np.isin(context.kind, (Kind.SEND, Kind.RECV))):
        return []
    own = np.flatnonzero(_is_own(context))
    names, number = context.graph.op_types.by_name()
    name = number[context.graph.ops.op_type[own]]
    count, total_s = by_rank(context.graph, own, name, usual_s[own])
    middle = np.quantile(count, 0.5, axis=1, method="lower")[:, None]
    share = np.divide(middle, count, out=np.ones(count.shape), where=count > middle)
    excess_s = total_s * (1 - share)
    rank = int(np.argmax(excess_s.sum(axis=0)))
    if excess_s[:, rank].sum() <= MIN_EXCESS * total_s[:, rank].sum():
        return []
    even_s = context.own_s.copy()
    even_s[own] = np.where(
        context.rank[own] == rank, context.own_s[own] * share[name, context.rank[own]], context.own_s[own]
    )
    most = np.argsort(-excess_s[:, rank], kind="stable")[:3]
    who, top = _names(context, [rank]), int(most[0])
    more = [
        f"{operation_text(names[i])} {count[i, rank]} times where others do it {middle[i, 0]:.0f} times: "
        f"{time_text(excess_s[i, rank])} more"
        for i in most
        if excess_s[i, rank] > 0
    ]
    return context.report(
        "uneven work",
        f"{who} has more to do than the others",
        gain_s=context.iteration_s - context.replayed_s(own_s=even_s),
        evidence=[*more, *_waited(context, [rank])],
        settings=[
            "what only this rank does (logging, evaluation, checkpoints): less often, or on all ranks in turn",
            "samples of equal size, or sorted into batches of equal work, on all ranks",
        ],
        replayed=f"{who} doing each thing as often as the median rank",
        sightings=context.sightings(own[(name == top) & (context.rank[own] == rank)]),
    )


def usual(context: DiagnosisContext) -> np.ndarray:
    """Return the duration of each rank's own ops at the median pace of its stage, but at most as traced, float64
    (ops,)."""
    graph = context.graph
    usual_s = np.where(_is_own(context), context.own_s, 0.0)
    own = np.flatnonzero(_is_own(context))
    name = graph.op_types.by_name()[1][graph.ops.op_type[own]]
    stage = graph.ranks.stage[context.rank[own]] + graph.ranks.job[context.rank[own]] * graph.stages()
    _, what = np.unique(np.stack([name, stage]), axis=1, return_inverse=True)
    what = what.ravel()
    count, total_s = by_rank(graph, own, what, context.own_s[own])
    mean_s = np.divide(total_s, count, out=np.full(total_s.shape, np.nan), where=count > 0)
    # NaN, for a rank without such ops, sorts last; of the others the lower median.
    middle = np.maximum((count > 0).sum(axis=1) - 1, 0) // 2
    middle_s = np.take_along_axis(np.sort(mean_s, axis=1), middle[:, None], axis=1)
    share = np.divide(middle_s, mean_s, out=np.ones(mean_s.shape), where=mean_s > 0)
    usual_s[own] = context.own_s[own] * np.minimum(share[what, context.rank[own]], 1.0)
    return usual_s


def _persistent_ones(context: DiagnosisContext, machines: list[list[int]], usual_s: np.ndarray) -> list[Finding]:
    """Return findings for the slowest machine first, then the gain of the next once that is fixed; combined if none
    gains by itself."""
    intermittent = [rank for rank in sum(machines, []) if _slow_share(context, rank)[0] < PERSISTENT]
    machines = [[rank for rank in ranks if rank not in intermittent] for ranks in machines]
    excess_s = np.subtract(*_paces(context, usual_s))
    machines = sorted(filter(None, machines), key=lambda ranks: -float(excess_s[ranks].max()))
    findings: list[Finding] = []
    mended: list[Any] = []
    together: list[Any] = []
    own_s, before_s = context.own_s, context.iteration_s
    if intermittent:  # an intermittent straggler in this iteration must not hide a persistent one
        own_s = np.where(np.isin(context.rank, intermittent) & _is_own(context), usual_s, own_s)
        before_s = context.replayed_s(own_s=own_s)
    for ranks in machines:
        together = together + ranks
        own_s = np.where(np.isin(context.rank, together) & _is_own(context), usual_s, own_s)
        gain_s = before_s - context.replayed_s(own_s=own_s)
        if context.is_worth_it(gain_s):
            after = f", once that of {_names(context, mended)} is" if mended else ""
            after += f"; {_names(context, intermittent)}, intermittent stragglers, too" if intermittent else ""
            findings += _persistent(context, together, gain_s, after, usual_s)
            mended, together, before_s = mended + together, [], before_s - gain_s
    return findings


def _persistent(
    context: DiagnosisContext, ranks: list[int], gain_s: float, after: str, usual_s: np.ndarray
) -> list[Finding]:
    """Return the finding for persistently slow ranks."""
    elapsed_s, should_s = (each_s[ranks] for each_s in _paces(context, usual_s))
    mine = np.isin(context.rank, ranks) & _is_own(context)
    excess_s = np.where(mine, context.own_s - usual_s, 0.0)
    by_name = context.by_name(excess_s)
    (top, top_excess_s), whole_s = next(iter(by_name.items())), sum(by_name.values())
    who = _names(context, ranks)
    top_s = context.by_name(np.where(mine, context.own_s, 0.0))[top]
    top = operation_text(top)
    is_one = top_excess_s >= MOST_OF_IT * whole_s and top_s < MOST_OF_IT * elapsed_s.sum()
    evidence = [
        f"own work of {who}: {time_text(elapsed_s.mean())} an iteration; at its peers' pace it would take "
        f"{time_text(should_s.mean())}",
        *_waited(context, ranks),
    ]
    if known := [each for rank in ranks if (each := _slow_share(context, rank))[1] > 1]:
        share, count = min(known)
        evidence.append(f"slow in {share:.0%} of the {count} iterations traced")
    if is_one:
        title = f"{who}: {top} takes {top_s / (top_s - top_excess_s):.2g} times as long as elsewhere"
        evidence.append(f"{top_excess_s / whole_s:.0%} of the excess is {top}")
        settings = [f"see what {top} does on {who}: other shapes, another kernel or library version, uneven data"]
    else:
        title = f"{who}: everything takes {elapsed_s.sum() / should_s.sum():.2f} times as long as on the other ranks"
        most = [f"{operation_text(name)} {time_text(seconds)}" for name, seconds in list(by_name.items())[:3]]
        evidence.append(f"the excess is spread: {', '.join(most)}")
        settings = [
            f"look at the machine of {who}: clocks and throttling, other processes, fewer cores (OMP_NUM_THREADS)",
            "give it a smaller share of the batch, or leave it out",
        ]
    longest = np.flatnonzero(mine & (excess_s > 0))
    longest = longest[np.argsort(-excess_s[longest], kind="stable")][:20]
    return context.report(
        "straggler",
        title,
        gain_s=gain_s,
        evidence=evidence,
        settings=settings,
        replayed=f"own work of {who} at the median pace of its peers{after}",
        sightings=context.sightings(longest),
    )


def _occasional(context: DiagnosisContext, rank: int, usual_s: np.ndarray) -> list[Finding]:
    """Return the finding for a rank that is slow in some of the traced iterations."""
    factors = _factors(context, rank)
    slow = factors > 1 + MIN_EXCESS
    if len(factors) < 3 or not slow.any() or slow.mean() >= PERSISTENT:
        return []
    mine = (context.rank == rank) & _is_own(context)
    at_pace_s = np.where(mine, usual_s, context.own_s)
    fast_s = context.replayed_s(own_s=at_pace_s)
    levels = np.sort(factors[slow])[:: max(1, int(np.ceil(slow.sum() / MAX_REPLAYS)))]
    lost_s = np.mean(
        [context.replayed_s(own_s=np.where(mine, usual_s * factor, at_pace_s)) - fast_s for factor in levels]
    )
    who = _names(context, [rank])
    at = ", ".join(str(number) for number in np.flatnonzero(slow)[:10])
    return context.report(
        "occasional straggler",
        f"{who} is slow in {slow.sum()} of {len(slow)} iterations, {factors[slow].mean():.2f} times on average: an "
        "intermittent straggler",
        gain_s=float(lost_s * slow.mean()),
        evidence=[
            f"slow in the iterations {at}{', …' if slow.sum() > 10 else ''}, up to {factors.max():.2f} times",
            f"in the others its own work takes {factors[~slow].mean():.2f} times its peers'",
            f"such an iteration loses {time_text(float(lost_s))}",
        ],
        settings=[
            f"look for what else runs on the machine of {who} at those times: other jobs, checkpoints, logging",
            "balance samples of unequal size (sequence lengths) over the ranks",
        ],
        replayed=f"{who} as slow as in each of those iterations and at its peers' pace, averaged over all",
    )


def _is_own(context: DiagnosisContext) -> np.ndarray:
    """Return which ops are a rank's own work, bool (ops,): including a host's work for its accelerator, without gaps
    and waits."""
    feeds = (context.kind == Kind.DELAY) & np.isin(context.what, (What.COMPUTE, What.LAUNCH))
    return np.isin(context.kind, OWN) | feeds


def _paces(context: DiagnosisContext, usual_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the duration of each rank's own work as traced and at the usual pace, float64 (ranks,) each."""
    own_s, ranks = np.where(_is_own(context), context.own_s, 0.0), len(context.graph.ranks)
    return np.bincount(context.rank, own_s, minlength=ranks), np.bincount(context.rank, usual_s, minlength=ranks)


def _factors(context: DiagnosisContext, rank: int) -> np.ndarray:
    """Return the ratio of the rank's own work to its peers' median in each iteration, float64 (iterations,)."""
    ranks = context.graph.ranks
    peers = np.flatnonzero((ranks.stage == ranks.stage[rank]) & (ranks.job == ranks.job[rank]))
    count = min(context.iterations[peer].count for peer in peers)
    own_s = np.array([context.iterations[peer].own_s()[:count] for peer in peers])
    if not count:
        return np.ones(0)
    middle_s = np.quantile(own_s, 0.5, axis=0, method="lower")
    mine_s = own_s[np.flatnonzero(peers == rank)[0]]
    return np.divide(mine_s, middle_s, out=np.ones(count), where=middle_s > 0)


def _slow_share(context: DiagnosisContext, rank: int) -> tuple[float, int]:
    """Return (share of iterations in which the rank was slow, number of iterations); with fewer than three, the share
    is 1."""
    factors = _factors(context, rank)
    return (float(np.mean(factors > 1 + MIN_EXCESS)) if len(factors) >= 3 else 1.0), len(factors)


def _by_host(context: DiagnosisContext, ranks: np.ndarray) -> list[list[int]]:
    """Group slow ranks by machine where all of the machine's ranks are slow."""
    hosts = [trace.host or f"rank {number}" for number, trace in enumerate(context.joined.traces)]
    groups: list[list[int]] = []
    for host in dict.fromkeys(hosts[rank] for rank in ranks):
        slow = [int(rank) for rank in ranks if hosts[rank] == host]
        whole = len(slow) == hosts.count(host) < len(hosts)
        groups += [slow] if whole else [[rank] for rank in slow]
    return groups


def _names(context: DiagnosisContext, ranks: list[int]) -> str:
    if len(ranks) == 1:
        return context.rank_name(ranks[0])
    if len({context.joined.traces[rank].host for rank in ranks}) > 1:
        return ", ".join(context.rank_name(rank) for rank in ranks)
    return (
        f"{context.joined.traces[ranks[0]].host} (ranks {', '.join(str(context.joined.traces[r].rank) for r in ranks)})"
    )


def _waited(context: DiagnosisContext, ranks: list[int]) -> list[str]:
    others = [rank for rank in range(len(context.graph.ranks)) if rank not in ranks]
    waited_s = context.causes.waiting_s[np.ix_(others, ranks)].sum(axis=1)
    if not waited_s.any():
        return []
    most = int(np.argmax(waited_s))
    return [
        f"the others wait {time_text(waited_s.mean())} for it on average, {context.rank_name(others[most])} most: "
        f"{time_text(waited_s[most])}"
    ]
