"""Finds latency-bound small collectives in sequence that could be combined."""

import numpy as np

from emulator.jobs.workload.graph import NO_TRANSFER, Collective, Kind
from emulator.traces.diagnosis.context import DiagnosisContext, Finding
from emulator.traces.whatif.edits import edges
from emulator.traces.whatif.transfers import fit
from switchml.errors import GraphError
from switchml.units import bytes_text, time_text

FUSED = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.BROADCAST)
LATENCY_BOUND = 0.5
"""Minimum share of latency in the duration of a small collective."""
SMALL_BYTES = 4096
"""Up to this size, the whole duration is latency, on any network."""
MIN_RUN = 3
MAX_BETWEEN = 0.5
"""Maximum compute time between two collectives, in latencies, for the second to count as independent of the first."""


def find(context: DiagnosisContext) -> list[Finding]:
    """Return at most one finding for all sequences of small collectives, without gradient buckets."""
    runs = _runs(context)
    if not runs:
        return []
    latency_s = _latency_s(context)
    changed_s = context.transfer_s.copy()
    for run in runs:
        # The last one carries all data; the others are omitted.
        changed_s[run[-1]] = latency_s[run[-1]] + (context.transfer_s[run] - latency_s[run]).sum()
        changed_s[run[:-1]] = 0.0
    small = np.concatenate(runs)
    size = context.graph.op_types.bytes[context.graph.transfers.op_type[small]]
    elapsed_s = context.transfer_s[small]
    longest = max(runs, key=len)
    name = context.graph.op_types.name[context.graph.transfers.op_type[longest[0]]]
    return context.report(
        "small messages",
        f"{len(small)} small collectives pay latency each",
        gain_s=context.iteration_s - context.replayed_s(transfer_s=changed_s),
        evidence=[
            f"medians: {bytes_text(float(np.median(size)))} and {time_text(float(np.median(elapsed_s)))} each, of "
            f"which {time_text(float(np.median(latency_s[small])))} is latency; all: {time_text(elapsed_s.sum())}",
            f"{len(runs)} time{'s' * (len(runs) > 1)} several in a row with next to nothing between them; the "
            f"longest row has {len(longest)}, from {name} on",
        ],
        settings=[
            "one flat tensor instead of many: torch.cat or _flatten_dense_tensors before the collective, or "
            "torch.distributed._coalescing_manager around them",
            "metrics and norms: reduce them together, every few iterations",
        ],
        replayed="each run as one collective, when its last member is ready: one latency, all bytes",
        sightings=context.sightings(np.flatnonzero(np.isin(context.graph.ops.transfer, small))),
    )


def _latency_s(context: DiagnosisContext) -> np.ndarray:
    """Return the size-independent part of each transfer's duration, float64 (transfers,)."""
    size = context.graph.op_types.bytes[context.graph.transfers.op_type]
    collective = context.graph.op_types.collective[context.graph.transfers.op_type]
    latency_s = np.where(size <= SMALL_BYTES, context.transfer_s, 0.0)
    for kind in FUSED:
        some = np.flatnonzero((collective == kind) & (size > 0))
        if len(some) and size[some].max() > 4 * size[some].min():
            try:
                fixed_s = fit(context.joined, some).fixed_s
            except GraphError:
                continue
            latency_s[some] = np.maximum(latency_s[some], np.minimum(fixed_s, context.transfer_s[some]))
    return latency_s


def _runs(context: DiagnosisContext) -> list[np.ndarray]:
    """Return sequences of transfers of one group and kind, in order of time, that could be combined."""
    graph = context.graph
    if not len(graph.transfers):
        return []
    collective = graph.op_types.collective[graph.transfers.op_type]
    latency_s, needed_s = _latency_s(context), _needed_s(context)
    small = np.isin(collective, FUSED) & (latency_s >= LATENCY_BOUND * context.transfer_s) & (context.transfer_s > 0)
    small[[transfer for _, transfer, _ in context.joined.gradients if transfer >= 0]] = False
    runs = []
    for group in np.unique(graph.transfers.group[small]):
        for kind in np.unique(collective[small & (graph.transfers.group == group)]):
            chosen = np.flatnonzero(small & (graph.transfers.group == group) & (collective == kind))
            chosen = chosen[np.argsort(context.played.transfer_start_s[chosen], kind="stable")]
            run = [chosen[0]]
            for transfer in chosen[1:]:
                until_s = context.played.transfer_start_s[transfer]
                if _computed_s(context, needed_s[run].min(), until_s) > MAX_BETWEEN * latency_s[transfer]:
                    runs.append(np.array(run))  # its result is used before: it can't be deferred
                    run = []
                run.append(transfer)
            runs.append(np.array(run))
    return [run for run in runs if len(run) >= MIN_RUN]


def _computed_s(context: DiagnosisContext, from_s: float, until_s: float) -> float:
    """Return the compute time of the busiest rank between two times."""
    start_s = context.played.start_s
    chosen = (start_s >= from_s) & (start_s < until_s) & np.isin(context.kind, (Kind.COMPUTE, Kind.CODEC, Kind.COPY))
    return float(np.bincount(context.rank[chosen], context.own_s[chosen], minlength=1).max())


def _needed_s(context: DiagnosisContext) -> np.ndarray:
    """Return the start of the first dependent op of each transfer, excluding other collectives, float64 (transfers,);
    inf: none."""
    ops = context.graph.ops
    owner, on = edges(ops)
    counts = (ops.transfer[on] != NO_TRANSFER) & (ops.transfer[owner] == NO_TRANSFER)
    needed_s = np.full(len(context.graph.transfers), np.inf)
    np.minimum.at(needed_s, ops.transfer[on[counts]], context.played.start_s[owner[counts]])
    return needed_s
