"""Finds training that waits for samples."""

import numpy as np

from emulator.jobs.replay.parts import LOADING
from emulator.jobs.workload.graph import Kind
from emulator.traces.diagnosis.context import DiagnosisContext, Finding
from switchml.units import time_text

UNEVEN = 1.5
"""Ratio to the median from which on a rank's loading time is reported."""


def find(context: DiagnosisContext) -> list[Finding]:
    """Return at most one finding for all ranks."""
    loads = context.kind == Kind.LOAD
    if not loads.any():
        return []
    reads = np.zeros(len(context.graph.transfers), bool)
    reads[context.graph.ops.transfer[loads & (context.graph.ops.transfer >= 0)]] = True
    own_s, transfer_s = np.where(loads, 0.0, context.own_s), np.where(reads, 0.0, context.transfer_s)
    faster_s = context.replayed_s(own_s=own_s, transfer_s=transfer_s)
    elapsed_s = context.played.end_s - context.played.start_s
    by_rank_s = np.bincount(context.rank[loads], elapsed_s[loads], minlength=len(context.graph.ranks))
    waited_s = context.causes.parts.by_rank[:, LOADING]
    slowest = int(np.argmax(by_rank_s))
    title = f"training waits {time_text(waited_s.max())} of each iteration for samples"
    if len(by_rank_s) > 2 and by_rank_s[slowest] > UNEVEN * np.median(by_rank_s):
        title += (
            f"; {context.rank_name(slowest)} takes {by_rank_s[slowest] / max(np.median(by_rank_s), 1e-12):.2g} times"
        )
        title += " as long as the median"
    return context.report(
        "loading",
        title,
        gain_s=context.iteration_s - faster_s,
        evidence=[
            f"{loads.sum()} loads; on a rank {time_text(by_rank_s.mean())} on average, "
            f"{time_text(by_rank_s.max())} at most ({context.rank_name(slowest)})",
            f"of this nothing else hides {time_text(waited_s.mean())} on average",
        ],
        settings=[
            _workers(context, loads, float(by_rank_s.max()), faster_s),
            "prefetch_factor=4; pin_memory=True where samples go to an accelerator; decode or tokenize once, "
            "beforehand",
        ],
        replayed="samples that are always there",
        sightings=context.sightings(np.flatnonzero(loads)),
        is_bound=True,
    )


def _workers(context: DiagnosisContext, loads: np.ndarray, load_s: float, rest_s: float) -> str:
    """Recommend a number of loader processes, if a batch is loaded in `load_s` and needed every `rest_s`."""
    if any("MultiProcessing" in context.op_name(op) for op in np.flatnonzero(loads).tolist()):
        return "DataLoader(num_workers=…): more than now, where cores are idle"
    workers = int(np.ceil(load_s / rest_s)) + 1 if rest_s > 0 else 2
    return f"DataLoader(num_workers={workers}, persistent_workers=True): batches loaded while others are trained on"
