"""Accelerators that idle because of their host: it launches too slowly, allocates, or waits for what it need not."""

from __future__ import annotations

import numpy as np

from emulator.jobs.workload.graph import Kind
from emulator.traces.diagnosis.context import DiagnosisContext, Finding
from emulator.traces.events import LaneKind, What
from emulator.traces.whatif.edits import edges, with_edges
from switchml.units import time_text

ALLOCATIONS = ("cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaFreeHost", "cudaStreamCreate", "cudaModuleLoad",
               "hipMalloc", "hipFree", "hipHostMalloc", "hipHostFree", "hipStreamCreate", "hipModuleLoad")  # fmt: skip
"""Beginnings of the names of calls that a warm program does not make."""


def find(context: DiagnosisContext) -> list[Finding]:
    """At most one of each kind."""
    return _starved(context) + _allocations(context) + _synchronizations(context)


def _starved(context: DiagnosisContext) -> list[Finding]:
    """The host's work for accelerators taken away: what is left is what they need."""
    lane = context.lane_kind
    kernels = (lane == LaneKind.DEVICE) & (context.kind == Kind.COMPUTE)
    ranks = np.unique(context.rank[kernels])
    work = (lane == LaneKind.HOST) & np.isin(context.rank, ranks) & np.isin(context.kind, (Kind.COMPUTE, Kind.DELAY))
    if not len(ranks) or not work.any():
        return []
    launches = context.what == What.LAUNCH
    busy_s = float(context.own_s[kernels].sum()) / len(ranks)
    launched_s = float(context.own_s[launches].sum())
    apart_s = context.own_s[work].sum() / max(kernels.sum(), 1)
    return context.report(
        "starved accelerator",
        "accelerators wait for the host to launch their kernels",
        gain_s=context.iteration_s - context.replayed_s(own_s=np.where(work, 0.0, context.own_s)),
        evidence=[
            f"kernels keep an accelerator busy {busy_s / context.iteration_s:.0%} of the iteration",
            f"{kernels.sum() // len(ranks)} kernels a rank, {time_text(float(context.own_s[kernels].mean()))} each on "
            f"average; the host needs {time_text(float(apart_s))} for each",
            f"{launches.sum() // len(ranks)} launches a rank take {time_text(launched_s / len(ranks))}",
        ],
        settings=[
            'torch.compile(model, mode="reduce-overhead") or CUDA graphs: one launch for many kernels',
            "larger batches, fused optimizers (fused=True) and no .item(), print or cuda.synchronize in the loop",
        ],
        replayed="kernels launched by a host that takes no time",
        sightings=context.sightings(np.intersect1d(context.path.op, np.flatnonzero(work))),
        is_bound=True,
    )


def _allocations(context: DiagnosisContext) -> list[Finding]:
    """Calls that allocate, each as if its memory had been there."""
    calls = np.array([name.startswith(ALLOCATIONS) for name in context.graph.works.name], bool)[context.graph.ops.work]
    calls &= context.lane_kind == LaneKind.HOST
    if not calls.any():
        return []
    longest = list(context.by_name(np.where(calls, context.own_s, 0.0)).items())[:4]
    return context.report(
        "allocations",
        "memory of the accelerator is allocated during the iteration",
        gain_s=context.iteration_s - context.replayed_s(own_s=np.where(calls, 0.0, context.own_s)),
        evidence=[
            f"{calls.sum()} calls: " + ", ".join(f"{name} {time_text(elapsed_s)}" for name, elapsed_s in longest),
            "a program that has warmed up makes none: its memory comes from the caching allocator",
        ],
        settings=[
            "trace later iterations, where this is the first: torch.profiler.schedule(wait=1, warmup=1, active=3)",
            "else PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, no torch.cuda.empty_cache() in the loop, "
            "batches of one shape",
        ],
        replayed="no time for these calls",
        sightings=context.sightings(np.flatnonzero(calls)),
    )


def _synchronizations(context: DiagnosisContext) -> list[Finding]:
    """Hosts that go on launching in place of waiting, but for the last wait of each thread."""
    waits = (context.what == What.SYNC) & (context.lane_kind == LaneKind.HOST)
    waits &= np.isin(context.rank, np.unique(context.rank[context.lane_kind == LaneKind.DEVICE]))
    stream = context.graph.ops.stream
    for each in np.unique(stream[waits]):
        waits[np.flatnonzero(waits & (stream == each))[-1]] = False
    if not waits.any():
        return []
    owner, on = edges(context.graph.ops)
    stays = ~(waits[owner] & (context.lane_kind[on] != LaneKind.HOST))
    names = sorted({context.op_name(op) for op in np.flatnonzero(waits).tolist()})
    return context.report(
        "synchronizations",
        "the host waits for the accelerator in the middle of the iteration",
        gain_s=context.iteration_s
        - context.replayed_s(graph=with_edges(context.joined, owner[stays], on[stays]).graph),
        evidence=[f"{waits.sum()} waits ({', '.join(names[:4])}) before the last one of each thread"],
        settings=[
            ".item(), .cpu(), print(tensor), torch.cuda.synchronize() and tensor-dependent ifs: after the loop, or "
            "every few iterations",
            "to(device, non_blocking=True) from pinned memory (pin_memory=True)",
        ],
        replayed="none of these waits",
        sightings=context.sightings(np.flatnonzero(waits)),
    )
