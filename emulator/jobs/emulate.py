"""Emulates a job: turns a description into a costed plan and replays its graph."""

import time
from collections.abc import Callable

import numpy as np

from emulator.cluster.cluster import Cluster
from emulator.jobs import iteration, replicas
from emulator.jobs.costed import CostedJob
from emulator.jobs.costing import plan
from emulator.jobs.description import Request, load_cluster, load_codec, load_model
from emulator.jobs.emulation import Emulation
from emulator.jobs.fits import check_host_memory, check_memory
from emulator.jobs.replay.conditions import Conditions
from emulator.jobs.replay.engine import Replayed, contention, replay
from emulator.jobs.replay.parts import parts
from emulator.jobs.size import Budget
from emulator.jobs.workload import memory
from emulator.jobs.workload.builder import GraphBuilder
from emulator.jobs.workload.combine import delayed
from emulator.jobs.workload.costs import Costs
from emulator.jobs.workload.graph import Graph, Kind
from emulator.jobs.workload.loading.loading import Dataset, Loading, Storage, Work, loading
from emulator.jobs.workload.models import LayerTable
from switchml.errors import ConfigError, EmulationError


def emulate(
    spec: Request,
    *,
    cluster: Cluster | None = None,
    progress: Callable[[int, int], None] | None = None,
    event_budget: int | None = None,
    time_budget_s: float | None = None,
    memory_budget_bytes: float | None = None,
) -> Emulation:
    """Cost a job, check memory, build its graph and replay it. `cluster`: replaces the requested one. `wall_s` of the
    result excludes loading the compiled kernels. `memory_budget_bytes`: limit of this process for the graph and its
    replay; default: free memory. Raises ConfigError, OutOfMemory, BudgetSpent; EmulationError for a result that exceeds
    the accelerators' peak."""
    began, budget = time.perf_counter(), Budget(memory_budget_bytes, time_budget_s)
    model = load_model(spec)
    cluster = cluster or load_cluster(spec)
    is_measured = isinstance(model, LayerTable) and model.forward_s is not None
    if is_measured and spec.job.micro_batches > 1 and spec.job.pp == 1:
        raise ConfigError(
            f"{model.name} has measured times for one batch a rank; take batch 0 or as many as data-parallel ranks"
        )
    costed = plan(model, spec.job, cluster, spec.network, load_codec(spec))
    needed = memory.memory(model, spec.job)
    on_host = spec.memory.host_bytes(needed)
    costed, needed = spec.memory.apply(costed, needed), spec.memory.memory(needed, costed)
    if not spec.ignore_memory:
        check_memory(model, spec.job, cluster, needed)
        check_host_memory(spec.job, cluster, on_host)
    noise, slow, stand_ins = spec.noise, None, None
    fold = spec.fold or ("tensor" if noise.differ else "all")
    if noise.stragglers:
        slow = replicas.slow_ranks(spec.job, noise.stragglers, noise.seed)
        is_large = spec.job.dp * replicas.ops_about(costed) > replicas.PLAYED_OPS
        fold = "all" if is_large and not (spec.fold or noise.jitter) else fold
        stand_ins = replicas.sampled(costed, slow, noise.slowness) if fold == "all" else None
    graph, costs = iteration.build(costed, fold, stand_ins, budget)
    conditions = _conditions(spec, costed, graph, slow)
    loading_s = load_kernels(contention(graph, conditions, costs.transfer_route) != "")
    began, budget.began_s = began + loading_s, budget.began_s + loading_s

    def play(graph: Graph, costs: Costs) -> Replayed:
        left_s = None if time_budget_s is None else budget.left_s
        return replay(graph, costs, conditions, progress=progress, event_budget=event_budget, time_budget_s=left_s)

    played = play(graph, costs)
    loads = _load(spec, costed, played, budget) if spec.data.loader else None
    if loads:
        played = play(*delayed(graph, costs, "samples", Kind.LOAD, loads.stall_s))
    where = parts(played).mean()
    emulation = Emulation(spec, costed, needed, played, where, time.perf_counter() - began, fold, loads)
    _ = emulation.progress  # raises where the training would never end
    if emulation.mfu > 1 and not is_measured:
        raise EmulationError(
            f"internal error: {model.title} would use {emulation.mfu:.0%} of what {cluster.device.title} can do at peak"
        )
    return emulation


def _load(spec: Request, costed: CostedJob, played: Replayed, budget: Budget) -> Loading:
    """Simulate the loader on the data set's index lists; each data-parallel rank reads its own samples."""
    data, job, storage = spec.data, costed.job, costed.cluster.storage
    dataset = Dataset(
        samples=data.samples,
        sample_bytes=data.sample_bytes,
        global_batch=job.global_batch,
        ranks=job.replicas,
        epochs=data.epochs,
        buffer_samples=min(data.samples, int(data.buffer_bytes / data.sample_bytes)),
        seed=spec.noise.seed,
    )
    work = Work.of(data.loader, dataset)
    budget.check_bytes(work.size_bytes, f"{data.samples:,} samples in {data.epochs} epochs on {job.replicas:,} ranks")
    budget.check_steps(work.steps, f"playing the loader {data.loader}")
    on_a_node = max(1, min(job.dp, costed.cluster.accelerators_per_node // job.tp))
    shared = Storage(
        bytes_per_s=storage.total_bytes_per_s,
        client_bytes_per_s=storage.node_bytes_per_s / on_a_node,
        seek_s=storage.latency_s,
        reads_at_once=data.workers,
        peer_bytes_per_s=costed.cluster.between.node_bytes_per_s / on_a_node,
    )
    compute_s = parts(played).mean()["compute"]
    return loading(
        data.loader,
        dataset,
        shared,
        played.makespan_s,
        compute_s=compute_s,
        prefetch=data.prefetch,
        window=data.read_window,
        gap_bytes=data.read_gap_bytes if data.read_gap_bytes >= 0 else None,
    )


def replayed_s(costed: CostedJob) -> float:
    """Return the duration of an iteration without noise, fully folded."""
    return replay(*iteration.build(costed)).makespan_s


def load_kernels(competes: bool) -> float:
    """Load the replay's compiled kernels: once per process, which takes seconds if they must be compiled. Return the
    seconds that it took. `competes`: load those of the engine for contention."""
    began = time.perf_counter()
    builder = GraphBuilder()
    stream = builder.add_stream(builder.add_rank())
    builder.add_op(stream, builder.add_op_type("warm-up", seconds=1.0))
    graph = builder.build()
    parts(replay(graph, Costs.of(graph, graph.op_types.seconds), engine="calendar" if competes else "sweep"))
    return time.perf_counter() - began


def _conditions(spec: Request, costed: CostedJob, graph: Graph, slow: np.ndarray | None) -> Conditions:
    noise = spec.noise
    slowness = {} if slow is None else replicas.slowness(graph, spec.job, slow, noise.slowness)
    slowdown = iteration.overlap_slowdown(costed) if noise.interference else 0.0
    return Conditions(slowness=slowness, jitter=noise.jitter, seed=noise.seed, overlap_slowdown=slowdown)
