"""Finds accelerators that idle because of their host: slow launches, allocations, or unnecessary synchronization."""

import numpy as np

from emulator.jobs.workload.graph import Kind
from emulator.traces.diagnosis.context import HIGH, DiagnosisContext, Finding
from emulator.traces.diagnosis.first_use import TIMES, usual_s
from emulator.traces.events import LaneKind, What
from emulator.traces.intervals import under_way_s
from emulator.traces.whatif.edits import edges, with_edges
from switchml.units import time_text

ALLOCATIONS = ("cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaFreeHost", "cudaStreamCreate", "cudaModuleLoad",
               "hipMalloc", "hipFree", "hipHostMalloc", "hipHostFree", "hipStreamCreate", "hipModuleLoad")  # fmt: skip
"""Name prefixes of calls that a program makes only during warm-up."""


def find(context: DiagnosisContext) -> list[Finding]:
    """Return at most one finding of each kind."""
    return _starved(context) + _first_use(context) + _allocations(context) + _synchronizations(context)


def _starved(context: DiagnosisContext) -> list[Finding]:
    """Replay without the host's work for accelerators: the remaining time is the accelerators' own."""
    lane = context.lane_kind
    kernels = (lane == LaneKind.DEVICE) & (context.kind == Kind.COMPUTE)
    ranks = np.unique(context.rank[kernels])
    work = (lane == LaneKind.HOST) & np.isin(context.rank, ranks) & np.isin(context.kind, (Kind.COMPUTE, Kind.DELAY))
    if not len(ranks) or not work.any() or _is_first_iteration(context):
        return []
    launches = context.what == What.LAUNCH
    base_s = np.where(_allocates(context), 0.0, usual_s(context))
    launched_s = float(context.own_s[launches].sum())
    apart_s = context.own_s[work].sum() / max(kernels.sum(), 1)
    return context.report(
        "starved accelerator",
        "accelerators wait for the host to launch their kernels",
        gain_s=context.replayed_s(own_s=base_s) - context.replayed_s(own_s=np.where(work, 0.0, base_s)),
        evidence=[
            f"kernels keep an accelerator busy {_busy(context, kernels):.0%} of the iteration",
            f"{kernels.sum() // len(ranks)} kernels a rank, {time_text(float(context.own_s[kernels].mean()))} each on "
            f"average; the host needs {time_text(float(apart_s))} for each",
            f"{launches.sum() // len(ranks)} launches a rank take {time_text(launched_s / len(ranks))}",
        ],
        settings=_fewer_launches(context),
        replayed="kernels launched by a host that takes no time",
        sightings=context.sightings(np.intersect1d(context.path.op, np.flatnonzero(work))),
        is_bound=True,
    )


def _busy(context: DiagnosisContext, kernels: np.ndarray) -> float:
    """Return the share of the iteration in which an accelerator computes on any stream, averaged over accelerators."""
    graph = context.graph
    device = [f"{rank} {name.split(' stream ')[0]}" for rank, name in
              zip(graph.streams.rank.tolist(), graph.streams.name, strict=True)]  # fmt: skip
    of_op = np.array(device)[graph.ops.stream]
    start_s, end_s = context.played.start_s, context.played.end_s
    each = [np.flatnonzero(kernels & (of_op == one)) for one in np.unique(of_op[kernels])]
    return float(np.mean([under_way_s(start_s[one], (end_s - start_s)[one]) for one in each]) / context.iteration_s)


def _fewer_launches(context: DiagnosisContext) -> list[str]:
    """Return settings for fewer launches that the job does not use already."""
    if context.mentions("GraphLaunch"):
        fewer = "the whole iteration in one CUDA graph, and no wait between one launch of it and the next"
    elif context.mentions(r"^triton_|Torch-Compiled|CompiledF(unction|xGraph)"):
        fewer = 'torch.compile(…, mode="reduce-overhead") or CUDA graphs: one launch for many kernels'
    else:
        fewer = 'torch.compile(model, mode="reduce-overhead") or CUDA graphs: one launch for many kernels'
    steps = context.mentions(r"Optimizer\.step|multi_tensor_apply|_foreach_") and not context.mentions(
        "fused_?(adam|sgd)"
    )
    fused = ", fused optimizers (fused=True)" if steps else ""
    waits = ", no .item(), print or cuda.synchronize in the loop" if (context.what == What.SYNC).any() else ""
    return [fewer, f"larger batches{fused}{waits}"]


def _is_first_iteration(context: DiagnosisContext) -> bool:
    """Return whether loading takes so much of the iteration that it is not representative of launches."""
    extra_s = (context.own_s - usual_s(context)).sum() / max(len(context.graph.ranks), 1)
    return bool(extra_s > HIGH * context.iteration_s)


def _first_use(context: DiagnosisContext) -> list[Finding]:
    """Replay calls that load libraries or modules with their usual duration."""
    extra_s = context.own_s - usual_s(context)
    calls = extra_s > 0
    if not calls.any():
        return []
    longest = list(context.by_name(extra_s).items())[:4]
    return context.report(
        "first use",
        "kernels and libraries are loaded as they are first used",
        gain_s=context.iteration_s - context.replayed_s(own_s=context.own_s - extra_s),
        evidence=[
            f"{calls.sum()} calls take over {TIMES:g} times what such calls take later: "
            + ", ".join(f"{name} {time_text(elapsed_s)}" for name, elapsed_s in longest),
            "each is the first of its kind in the trace: modules are loaded lazily, contexts and handles created",
        ],
        settings=[
            "trace later iterations: torch.profiler.schedule(wait=1, warmup=3, active=3) and profiler.step()",
            "CUDA_MODULE_LOADING=EAGER where the first iteration itself matters",
        ],
        replayed="these calls as long as they take later",
        sightings=context.sightings(np.flatnonzero(calls)),
    )


def _allocations(context: DiagnosisContext) -> list[Finding]:
    """Replay without allocation calls."""
    calls = _allocates(context)
    if not calls.any():
        return []
    longest = list(context.by_name(np.where(calls, context.own_s, 0.0)).items())[:4]
    variable = "PYTORCH_HIP_ALLOC_CONF" if longest and longest[0][0].startswith("hip") else "PYTORCH_CUDA_ALLOC_CONF"
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
            f"else {variable}=expandable_segments:True, no torch.cuda.empty_cache() in the loop, batches of one shape",
        ],
        replayed="no time for these calls",
        sightings=context.sightings(np.flatnonzero(calls)),
    )


def _allocates(context: DiagnosisContext) -> np.ndarray:
    """Return which ops are allocation calls, bool (ops,)."""
    works = np.array([name.startswith(ALLOCATIONS) for name in context.graph.op_types.name], bool)
    return works[context.graph.ops.op_type] & (context.lane_kind == LaneKind.HOST)


def _synchronizations(context: DiagnosisContext) -> list[Finding]:
    """Replay hosts that continue launching instead of waiting, except for the last wait of each thread."""
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
