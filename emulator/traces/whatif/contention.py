"""Slowdown of compute by concurrent communication, which uses cores and memory bandwidth: where a change moves
all-reduces, their effect on host operators moves as well. The fastest iteration shows an operator undisturbed;
operators that never overlap with communication show how much longer a typical iteration is.
"""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from emulator.jobs.replay.engine import replay
from emulator.jobs.workload.graph import NO_TRANSFER
from emulator.traces.intervals import covered
from emulator.traces.joined import GAP, Contention, Identity, Joined
from emulator.traces.whatif.edits import durations, latest, with_durations
from emulator.traces.whatif.transfers import all_reduces

MIN_ITERATIONS = 4
"""Minimum number of iterations to determine typical durations."""
CONTENDED, ALONE = 0.5, 0.05
"""Minimum share of overlap with communication of a disturbed op, and maximum of an undisturbed one."""
MIN_SHARE = 0.02
"""Minimum share of its traced time that an op is assumed to need."""
PASSES = 2
"""Longer ops move others into or out of the communication's time; the second pass moves hardly any."""


def measure(iterations: Sequence[Joined]) -> Contention | None:
    """Measure contention in traced iterations; None for fewer than MIN_ITERATIONS."""
    if len(iterations) < MIN_ITERATIONS:
        return None
    samples: dict[tuple, list[_Sample]] = defaultdict(list)
    for joined in iterations:
        seconds, contended = durations(joined), _contended(joined, joined.start_s, joined.end_s)
        for op, key, identity in _named(joined):
            samples[key].append(_Sample(float(seconds[op]), float(contended[op]), identity))
    usual = _usual_over_least(samples)
    share: dict[Identity, float] = {}
    elapsed_s: dict[int, float] = defaultdict(float)
    left_s: dict[int, float] = defaultdict(float)
    for (rank, is_gap, *_), rows in samples.items():
        if len(rows) < MIN_ITERATIONS:
            continue
        quiet_s = usual.get((rank, is_gap), 1.0) * min(row.elapsed_s for row in rows)
        for row in rows:
            if row.contended >= CONTENDED and row.elapsed_s > 0:
                share[row.identity] = min(quiet_s / row.elapsed_s, 1.0)
                elapsed_s[rank] += row.elapsed_s
                left_s[rank] += min(quiet_s, row.elapsed_s)
    return Contention(share, {rank: elapsed_s[rank] / left_s[rank] for rank in elapsed_s if left_s[rank] > 0})


def relieved(joined: Joined, contention: Contention) -> Joined:
    """Reduce every op to its duration without concurrent communication."""
    share = contention.share
    shares = {op: share[identity] for op, _, identity in _named(joined) if identity in share}
    ops = np.fromiter(shares, np.int64, len(shares))
    return with_durations(joined, ops, durations(joined)[ops] * list(shares.values()))


def disturbed(joined: Joined, contention: Contention) -> Joined:
    """Lengthen ops of a relieved iteration where they overlap with all-reduces in the replay: to the traced duration if
    they were disturbed there too, else by the factor of others of their rank."""
    share, factor = contention.share, contention.factor
    shares = {op: share.get(identity, 1.0 / factor.get(identity[0], 1.0)) for op, _, identity in _named(joined)}
    ops = np.fromiter(shares, np.int64, len(shares))
    quiet_s = durations(joined)[ops]
    most_s = quiet_s / np.maximum(list(shares.values()), MIN_SHARE)
    changed = joined
    for _ in range(PASSES):
        played = replay(changed.graph, changed.costs)
        contended = _contended(changed, played.start_s, played.end_s)[ops]
        changed = with_durations(joined, ops, quiet_s + contended * (most_s - quiet_s))
    if not factor:
        return changed
    assumed = f"what computes beside all-reduces takes {np.mean(list(factor.values())):.2g} times as long, as it did"
    return dataclasses.replace(changed, assumptions=[*changed.assumptions, assumed])


class _Sample(NamedTuple):
    elapsed_s: float
    contended: float
    identity: Identity


def _named(joined: Joined) -> Iterator[tuple[int, tuple, Identity]]:
    """Yield (op, a key that is equal in each iteration and begins with rank and is_gap, identity) of a host's own
    ops."""
    graph, names = joined.graph, joined.graph.op_types.name
    rank, stream, own = graph.op_rank().tolist(), graph.ops.stream.tolist(), graph.ops.transfer == NO_TRANSFER
    event = _anchors(joined)
    carries = np.isin(graph.ops.stream, graph.ops.stream[~own])  # transports: changes move their ops
    seen: Counter[tuple[Any, ...]] = Counter()
    met: Counter[tuple[int, int]] = Counter()
    for op in np.flatnonzero(own & ~carries & (event != GAP)).tolist():
        is_gap = bool(joined.event[op] == GAP)
        key = (rank[op], is_gap, graph.streams.name[stream[op]], names[graph.ops.op_type[op]])
        yield op, (*key, seen[key]), (rank[op], int(event[op]), met[rank[op], event[op]])
        seen[key] += 1
        met[rank[op], event[op]] += 1


def _anchors(joined: Joined) -> np.ndarray:
    """Return events, for gaps the next on their stream, int64 (ops,); GAP if there is none."""
    stream, event = joined.graph.ops.stream, joined.event.copy()
    order = np.argsort(stream, kind="stable")
    for here, after in zip(order[-2::-1].tolist(), order[:0:-1].tolist(), strict=True):
        if event[here] == GAP and stream[here] == stream[after]:
            event[here] = event[after]
    return event


def _usual_over_least(samples: dict[tuple, list[_Sample]]) -> dict[tuple[int, bool], float]:
    """Return (rank, whether gaps) → the sum of means over the sum of minima of ops that are never disturbed."""
    sums: dict[tuple[int, bool], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for (rank, is_gap, *_), rows in samples.items():
        if len(rows) >= MIN_ITERATIONS and all(row.contended <= ALONE for row in rows):
            sums[rank, is_gap][0] += float(np.mean([row.elapsed_s for row in rows]))
            sums[rank, is_gap][1] += min(row.elapsed_s for row in rows)
    return {key: usual_s / least_s for key, (usual_s, least_s) in sums.items() if least_s > 0}


def _contended(joined: Joined, start_s: np.ndarray, end_s: np.ndarray) -> np.ndarray:
    """Return the share of each op's time that overlaps with an all-reduce, float64 (ops,)."""
    reduces = all_reduces(joined)
    began_s, done_s = latest(joined.graph, start_s)[reduces], latest(joined.graph, end_s)[reduces]
    lasts = done_s > began_s
    return covered(start_s, end_s, began_s[lasts], done_s[lasts])
