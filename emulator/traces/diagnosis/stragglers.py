"""Ranks whose own work takes longer than the same work elsewhere: always or now and then, in one operation or all."""

from __future__ import annotations

import numpy as np

from emulator.jobs.replay.report import operation_text
from emulator.jobs.workload.graph import Kind
from emulator.traces.diagnosis.situation import Finding, Situation
from emulator.traces.events import What
from switchml.units import time_text

OWN = (Kind.COMPUTE, Kind.CODEC, Kind.COPY, Kind.CHECKPOINT)
LEAST_EXCESS = 0.05
"""How much longer its work takes, as a share, before a rank counts as slow."""
MOST_OF_IT = 0.6
"""Share of the excess from which on one operation is named as its cause."""
PERSISTENT = 0.7
"""Share of the iterations in which a persistent straggler is slow."""
MOST_REPLAYS = 10


def find(seen: Situation) -> list[Finding]:
    """Persistent ones, one finding for each machine, and occasional ones, one for each rank."""
    if len(seen.graph.ranks) < 2:
        return []
    usual_s = usual(seen)
    took_s, should_s = _paces(seen, usual_s)
    excess = np.divide(took_s, should_s, out=np.ones(len(took_s)), where=should_s > 0) - 1.0
    slow = np.flatnonzero(excess > LEAST_EXCESS)
    findings = _persistent_ones(seen, _by_host(seen, slow), usual_s)
    findings += _uneven(seen, usual_s)
    blamed = {rank for rank in slow.tolist() if _slow_share(seen, rank)[0] >= PERSISTENT}
    for rank in range(len(seen.graph.ranks)):
        if rank not in blamed:
            findings += _occasional(seen, rank, usual_s)
    return findings


def _uneven(seen: Situation, usual_s: np.ndarray) -> list[Finding]:
    """Ranks that do something more often than the others. Stages of a pipeline are expected to differ."""
    if np.any(np.isin(seen.kind, (Kind.SEND, Kind.RECV))):
        return []
    ranks = len(seen.graph.ranks)
    own = np.flatnonzero(_is_own(seen))
    names, number = seen.graph.works.by_name()
    name = number[seen.graph.ops.work[own]]
    cell = name * ranks + seen.rank[own]
    count = np.bincount(cell, minlength=len(names) * ranks).reshape(-1, ranks)
    total_s = np.bincount(cell, usual_s[own], minlength=count.size).reshape(-1, ranks)
    middle = np.quantile(count, 0.5, axis=1, method="lower")[:, None]
    share = np.divide(middle, count, out=np.ones(count.shape), where=count > middle)
    excess_s = total_s * (1 - share)
    rank = int(np.argmax(excess_s.sum(axis=0)))
    if excess_s[:, rank].sum() <= LEAST_EXCESS * total_s[:, rank].sum():
        return []
    even_s = seen.own_s.copy()
    even_s[own] = np.where(seen.rank[own] == rank, seen.own_s[own] * share[name, seen.rank[own]], seen.own_s[own])
    most = np.argsort(-excess_s[:, rank], kind="stable")[:3]
    who, top = _names(seen, [rank]), int(most[0])
    more = [
        f"{operation_text(names[i])} {count[i, rank]} times where others do it {middle[i, 0]:.0f} times: "
        f"{time_text(excess_s[i, rank])} more"
        for i in most
        if excess_s[i, rank] > 0
    ]
    return seen.report(
        "uneven work",
        f"{who} has more to do than the others",
        gain_s=seen.iteration_s - seen.replayed_s(own_s=even_s),
        evidence=[*more, *_waited(seen, [rank])],
        settings=[
            "what only this rank does (logging, evaluation, checkpoints): less often, or on all ranks in turn",
            "samples of equal size, or sorted into batches of equal work, on all ranks",
        ],
        replayed=f"{who} doing each thing as often as the median rank",
        sightings=seen.sightings(own[(name == top) & (seen.rank[own] == rank)]),
    )


def usual(seen: Situation) -> np.ndarray:
    """float64 (ops,): what each op of a rank's own would take if its rank were as fast at this operation as the median
    of the ranks of its stage; never more than it took."""
    graph = seen.graph
    usual_s = np.where(_is_own(seen), seen.own_s, 0.0)
    own = np.flatnonzero(_is_own(seen))
    name = graph.works.by_name()[1][graph.ops.work[own]]
    stage = graph.ranks.stage[seen.rank[own]] + graph.ranks.job[seen.rank[own]] * graph.stages()
    _, what = np.unique(np.stack([name, stage]), axis=1, return_inverse=True)
    what = what.ravel()
    ranks = len(graph.ranks)
    cell = what * ranks + seen.rank[own]
    count = np.bincount(cell, minlength=(what.max(initial=-1) + 1) * ranks).reshape(-1, ranks)
    total_s = np.bincount(cell, seen.own_s[own], minlength=count.size).reshape(-1, ranks)
    mean_s = np.divide(total_s, count, out=np.full(total_s.shape, np.nan), where=count > 0)
    # NaN, for a rank that does no such thing, sorts last; of the others the lower median.
    middle = np.maximum((count > 0).sum(axis=1) - 1, 0) // 2
    middle_s = np.take_along_axis(np.sort(mean_s, axis=1), middle[:, None], axis=1)
    share = np.divide(middle_s, mean_s, out=np.ones(mean_s.shape), where=mean_s > 0)
    usual_s[own] = seen.own_s[own] * np.minimum(share[what, seen.rank[own]], 1.0)
    return usual_s


def _persistent_ones(seen: Situation, machines: list[list[int]], usual_s: np.ndarray) -> list[Finding]:
    """The slowest machine first, then what the next gains once that is mended; together where none gains alone."""
    now_and_then = [rank for rank in sum(machines, []) if _slow_share(seen, rank)[0] < PERSISTENT]
    machines = [[rank for rank in ranks if rank not in now_and_then] for ranks in machines]
    excess_s = np.subtract(*_paces(seen, usual_s))
    machines = sorted(filter(None, machines), key=lambda ranks: -float(excess_s[ranks].max()))
    findings, mended, together = [], [], []
    own_s, before_s = seen.own_s, seen.iteration_s
    if now_and_then:  # that one of them is slow in this very iteration must not hide who always is
        own_s = np.where(np.isin(seen.rank, now_and_then) & _is_own(seen), usual_s, own_s)
        before_s = seen.replayed_s(own_s=own_s)
    for ranks in machines:
        together = together + ranks
        own_s = np.where(np.isin(seen.rank, together) & _is_own(seen), usual_s, own_s)
        gain_s = before_s - seen.replayed_s(own_s=own_s)
        if seen.is_worth_it(gain_s):
            after = f", once that of {_names(seen, mended)} is" if mended else ""
            after += f"; {_names(seen, now_and_then)}, slow now and then, too" if now_and_then else ""
            findings += _persistent(seen, together, gain_s, after, usual_s)
            mended, together, before_s = mended + together, [], before_s - gain_s
    return findings


def _persistent(seen: Situation, ranks: list[int], gain_s: float, after: str, usual_s: np.ndarray) -> list[Finding]:
    """Of ranks that are slow as a rule."""
    took_s, should_s = (each_s[ranks] for each_s in _paces(seen, usual_s))
    mine = np.isin(seen.rank, ranks) & _is_own(seen)
    excess_s = np.where(mine, seen.own_s - usual_s, 0.0)
    by_name = seen.by_name(excess_s)
    (top, top_excess_s), whole_s = next(iter(by_name.items())), sum(by_name.values())
    who = _names(seen, ranks)
    top_s = seen.by_name(np.where(mine, seen.own_s, 0.0))[top]
    top = operation_text(top)
    is_one = top_excess_s >= MOST_OF_IT * whole_s and top_s < MOST_OF_IT * took_s.sum()
    evidence = [
        f"own work of {who}: {time_text(took_s.mean())} an iteration; at its peers' pace it would take "
        f"{time_text(should_s.mean())}",
        *_waited(seen, ranks),
    ]
    if known := [each for rank in ranks if (each := _slow_share(seen, rank))[1] > 1]:
        share, count = min(known)
        evidence.append(f"slow in {share:.0%} of the {count} iterations traced")
    if is_one:
        title = f"{who}: {top} takes {top_s / (top_s - top_excess_s):.2g} times as long as elsewhere"
        evidence.append(f"{top_excess_s / whole_s:.0%} of the excess is {top}")
        settings = [f"see what {top} does on {who}: other shapes, another kernel or library version, uneven data"]
    else:
        title = f"{who}: everything takes {took_s.sum() / should_s.sum():.2f} times as long as on the other ranks"
        most = [f"{operation_text(name)} {time_text(seconds)}" for name, seconds in list(by_name.items())[:3]]
        evidence.append(f"the excess is spread: {', '.join(most)}")
        settings = [
            f"look at the machine of {who}: clocks and throttling, other processes, fewer cores (OMP_NUM_THREADS)",
            "give it a smaller share of the batch, or leave it out",
        ]
    longest = np.flatnonzero(mine & (excess_s > 0))
    longest = longest[np.argsort(-excess_s[longest], kind="stable")][:20]
    return seen.report(
        "straggler",
        title,
        gain_s=gain_s,
        evidence=evidence,
        settings=settings,
        replayed=f"own work of {who} at the median pace of its peers{after}",
        sightings=seen.sightings(longest),
    )


def _occasional(seen: Situation, rank: int, usual_s: np.ndarray) -> list[Finding]:
    """A rank that is slow in some of the traced iterations."""
    factors = _factors(seen, rank)
    slow = factors > 1 + LEAST_EXCESS
    if len(factors) < 3 or not slow.any() or slow.mean() >= PERSISTENT:
        return []
    mine = (seen.rank == rank) & _is_own(seen)
    at_pace_s = np.where(mine, usual_s, seen.own_s)
    fast_s = seen.replayed_s(own_s=at_pace_s)
    levels = np.sort(factors[slow])[:: max(1, int(np.ceil(slow.sum() / MOST_REPLAYS)))]
    lost_s = np.mean([seen.replayed_s(own_s=np.where(mine, usual_s * factor, at_pace_s)) - fast_s for factor in levels])
    who = _names(seen, [rank])
    at = ", ".join(str(number) for number in np.flatnonzero(slow)[:10])
    return seen.report(
        "occasional straggler",
        f"{who} is slow now and then: in {slow.sum()} of {len(slow)} iterations, "
        f"{factors[slow].mean():.2f} times on average",
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


def _is_own(seen: Situation) -> np.ndarray:
    """bool (ops,): work, also what a host does for its accelerator; no gaps and no waits."""
    feeds = (seen.kind == Kind.DELAY) & np.isin(seen.what, (What.COMPUTE, What.LAUNCH))
    return np.isin(seen.kind, OWN) | feeds


def _paces(seen: Situation, usual_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two float64 (ranks,): what each rank's own work takes, and what it would take at the usual pace."""
    own_s, ranks = np.where(_is_own(seen), seen.own_s, 0.0), len(seen.graph.ranks)
    return np.bincount(seen.rank, own_s, minlength=ranks), np.bincount(seen.rank, usual_s, minlength=ranks)


def _factors(seen: Situation, rank: int) -> np.ndarray:
    """float64 (iterations,): how many times as long as its peers' median its own work took in each."""
    ranks = seen.graph.ranks
    peers = np.flatnonzero((ranks.stage == ranks.stage[rank]) & (ranks.job == ranks.job[rank]))
    count = min(seen.iterations[peer].count for peer in peers)
    own_s = np.array([seen.iterations[peer].own_s()[:count] for peer in peers])
    if not count:
        return np.ones(0)
    middle_s = np.quantile(own_s, 0.5, axis=0, method="lower")
    mine_s = own_s[np.flatnonzero(peers == rank)[0]]
    return np.divide(mine_s, middle_s, out=np.ones(count), where=middle_s > 0)


def _slow_share(seen: Situation, rank: int) -> tuple[float, int]:
    """(share of the iterations in which it was slow, how many there are); of less than three nothing is concluded."""
    factors = _factors(seen, rank)
    return (float(np.mean(factors > 1 + LEAST_EXCESS)) if len(factors) >= 3 else 1.0), len(factors)


def _by_host(seen: Situation, ranks: np.ndarray) -> list[list[int]]:
    """Slow ranks of one machine belong together where all of the machine's ranks are slow."""
    hosts = [trace.host or f"rank {number}" for number, trace in enumerate(seen.joined.traces)]
    groups: list[list[int]] = []
    for host in dict.fromkeys(hosts[rank] for rank in ranks):
        slow = [int(rank) for rank in ranks if hosts[rank] == host]
        whole = len(slow) == hosts.count(host) < len(hosts)
        groups += [slow] if whole else [[rank] for rank in slow]
    return groups


def _names(seen: Situation, ranks: list[int]) -> str:
    if len(ranks) == 1:
        return seen.rank_name(ranks[0])
    if len({seen.joined.traces[rank].host for rank in ranks}) > 1:
        return ", ".join(seen.rank_name(rank) for rank in ranks)
    return f"{seen.joined.traces[ranks[0]].host} (ranks {', '.join(str(seen.joined.traces[r].rank) for r in ranks)})"


def _waited(seen: Situation, ranks: list[int]) -> list[str]:
    others = [rank for rank in range(len(seen.graph.ranks)) if rank not in ranks]
    waited_s = seen.causes.waiting_s[np.ix_(others, ranks)].sum(axis=1)
    if not waited_s.any():
        return []
    most = int(np.argmax(waited_s))
    return [
        f"the others wait {time_text(waited_s.mean())} for it on average, {seen.rank_name(others[most])} most: "
        f"{time_text(waited_s[most])}"
    ]
