"""Training that waits for its samples."""

from __future__ import annotations

import numpy as np

from emulator.jobs.replay.parts import LOADING
from emulator.jobs.workload.graph import Kind
from emulator.traces.diagnosis.situation import Finding, Situation
from switchml.units import time_text

UNEVEN = 1.5
"""Times the median from which on one rank's loading is named."""


def find(seen: Situation) -> list[Finding]:
    """One finding for all ranks."""
    loads = seen.kind == Kind.LOAD
    if not loads.any():
        return []
    reads = np.zeros(len(seen.graph.transfers), bool)
    reads[seen.graph.ops.transfer[loads & (seen.graph.ops.transfer >= 0)]] = True
    own_s, transfer_s = np.where(loads, 0.0, seen.own_s), np.where(reads, 0.0, seen.transfer_s)
    faster_s = seen.replayed_s(own_s=own_s, transfer_s=transfer_s)
    took_s = seen.played.end_s - seen.played.start_s
    by_rank_s = np.bincount(seen.rank[loads], took_s[loads], minlength=len(seen.graph.ranks))
    waited_s = seen.causes.parts.by_rank[:, LOADING]
    slowest = int(np.argmax(by_rank_s))
    title = f"training waits {time_text(waited_s.max())} of each iteration for samples"
    if len(by_rank_s) > 2 and by_rank_s[slowest] > UNEVEN * np.median(by_rank_s):
        title += f"; {seen.rank_name(slowest)} takes {by_rank_s[slowest] / max(np.median(by_rank_s), 1e-12):.2g} times"
        title += " as long as the median"
    return seen.report(
        "loading",
        title,
        gain_s=seen.iteration_s - faster_s,
        evidence=[
            f"{loads.sum()} loads; on a rank {time_text(by_rank_s.mean())} on average, "
            f"{time_text(by_rank_s.max())} at most ({seen.rank_name(slowest)})",
            f"of this nothing else hides {time_text(waited_s.mean())} on average",
        ],
        settings=[
            _workers(seen, loads, float(by_rank_s.max()), faster_s),
            "prefetch_factor=4; pin_memory=True where samples go to an accelerator; decode or tokenize once, "
            "beforehand",
        ],
        replayed="samples that are always there",
        sightings=seen.sightings(np.flatnonzero(loads)),
        is_bound=True,
    )


def _workers(seen: Situation, loads: np.ndarray, load_s: float, rest_s: float) -> str:
    """How many loader processes keep up: a batch is loaded in `load_s`, and one is needed every `rest_s`."""
    if any("MultiProcessing" in seen.op_name(op) for op in np.flatnonzero(loads)):
        return "DataLoader(num_workers=…): more than now, where cores are idle"
    workers = int(np.ceil(load_s / rest_s)) + 1 if rest_s > 0 else 2
    return f"DataLoader(num_workers={workers}, persistent_workers=True): batches loaded while others are trained on"
