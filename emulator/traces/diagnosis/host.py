"""Finds lost host time: slow interpreter code between operations, and pauses such as garbage collection."""

import numpy as np

from emulator.jobs.replay.parts import HOST
from emulator.traces.diagnosis.context import DiagnosisContext, Finding
from emulator.traces.diagnosis.pauses import Pauses, pauses
from emulator.traces.events import LaneKind
from emulator.traces.joined import GAP
from emulator.traces.whatif.transfers import all_reduces
from switchml.units import time_text

REGULAR = 0.35
"""Maximum relative standard deviation of the distances between periodic pauses."""
MIN_HIT = 2
"""Minimum number of iterations with pauses."""
MAX_REPLAYS = 10


def find(context: DiagnosisContext) -> list[Finding]:
    """Return at most one finding of each kind."""
    host_pauses = pauses(context)
    return _gaps(context, host_pauses) + _pauses(context, host_pauses)


def _gaps(context: DiagnosisContext, host_pauses: Pauses) -> list[Finding]:
    """Replay without the time between operations on ranks that compute on the host, excluding pauses."""
    lane = context.lane_kind
    with_device = np.unique(context.rank[lane == LaneKind.DEVICE])
    gaps = (lane == LaneKind.HOST) & (context.joined.event == GAP) & ~np.isin(context.rank, with_device)
    if not gaps.any():
        return []
    without_s = host_pauses.without(context.own_s)
    lost_s = context.causes.parts.by_rank[:, HOST]
    compiled = "" if context.mentions("Torch-Compiled|CompiledF(unction|xGraph)") else "torch.compile(model); "
    reduces = len(all_reduces(context.joined)) > 0
    return context.report(
        "host gaps",
        f"the host loses {time_text(lost_s.mean())} of each iteration between operations",
        gain_s=context.replayed_s(own_s=without_s) - context.replayed_s(own_s=np.where(gaps, 0.0, without_s)),
        evidence=[
            f"{gaps.sum()} gaps, {time_text(float(context.own_s[gaps].mean()))} on average, the longest "
            f"{time_text(float(context.own_s[gaps].max()))}",
            f"the worst rank is {context.rank_name(int(np.argmax(lost_s)))} with {time_text(lost_s.max())}",
        ],
        settings=[
            f"{compiled}less Python in the loop (logging, metrics, .item()); larger batches",
            *(["gradient_as_bucket_view=True: DDP then copies no gradients into buckets"] if reduces else []),
        ],
        replayed="no time between operations",
        sightings=context.sightings(np.flatnonzero(gaps)),
        is_bound=True,
    )


def _pauses(context: DiagnosisContext, host_pauses: Pauses) -> list[Finding]:
    """Replay with and without gaps that other iterations do not have at the same place."""
    if len(np.unique(host_pauses.iteration)) < MIN_HIT:
        return []
    clean_s = host_pauses.without(context.own_s)
    base_s = context.replayed_s(own_s=clean_s)
    hit = np.unique(host_pauses.iteration)
    some = hit[:: max(1, int(np.ceil(len(hit) / MAX_REPLAYS)))]
    lost_s = np.mean([context.replayed_s(own_s=host_pauses.added(clean_s, int(number))) - base_s for number in some])
    ranks = np.unique(host_pauses.rank)
    every = _every(host_pauses)
    regularly = [
        "Python's garbage collector does this: gc.disable() after set-up (and gc.freeze()), then gc.collect() on all "
        "ranks at once, every few hundred iterations",
        "else what the script does every so often: logging, checkpoints, evaluation",
    ]
    rarely = [
        "processes that share the cores: give each rank its own (taskset, numactl), fewer threads (OMP_NUM_THREADS)"
    ]
    names = ", ".join(context.rank_name(int(rank)) for rank in ranks[:6]) + (", …" if len(ranks) > 6 else "")
    first = zip(host_pauses.at_s[:5], host_pauses.iteration[:5], strict=True)
    at = ", ".join(f"{time_text(s)} into iteration {number}" for s, number in first)
    regular = f", about every {every:.3g} iterations" if every else ""
    return context.report(
        "pauses",
        f"intermittent host stalls, {time_text(float(host_pauses.excess_s.mean()))} each{regular}",
        gain_s=float(lost_s) * len(hit) / host_pauses.iterations,
        evidence=[
            f"{len(host_pauses.rank)} pauses, in {len(hit)} of {host_pauses.iterations} iterations, on {names}: {at}",
            "at the same places other iterations have "
            f"{time_text(float(host_pauses.usual_s.mean()))}; one lost {time_text(float(lost_s))} to it on average",
        ],
        settings=regularly + rarely if every else rarely + regularly,
        replayed="the iteration with each of these pauses and without, averaged over all iterations",
    )


def _every(host_pauses: Pauses) -> float:
    """Return the number of iterations between pauses on the rank with the most; 0 if they are not periodic."""
    ranks, counts = np.unique(host_pauses.rank, return_counts=True)
    when = np.sort(host_pauses.when[host_pauses.rank == ranks[np.argmax(counts)]])
    apart = np.diff(when)
    return float(apart.mean()) if len(apart) >= 2 and apart.std() <= REGULAR * apart.mean() else 0.0
