"""The graph of one iteration of a costed job. Each rank has a compute stream, which includes tensor- and
expert-parallel communication because compute waits for it; streams to and from adjacent stages; one for gradients; and
one for weights that switches gather while they scatter gradients.

Ranks that do the same at the same time are folded into one that represents all: tensor-parallel ranks always can be,
data-parallel ranks where none is slower than another. Collectives are costed for their unfolded size.
"""

import itertools

import numpy as np

from emulator.cluster.cost import FREE, Cost
from emulator.jobs.blocks import Ops
from emulator.jobs.costed import CostedJob
from emulator.jobs.rank_program import (
    BACKWARDS,
    CONTEXT,
    DATA,
    EXPERT,
    FORWARDS,
    STREAMS,
    TENSOR,
    TIED,
    TRANSFERS,
    OpTable,
    Rank,
)
from emulator.jobs.replicas import Replicas
from emulator.jobs.size import Budget
from emulator.jobs.workload.builder import GraphBuilder
from emulator.jobs.workload.costs import Costs
from emulator.jobs.workload.graph import NO_TRANSFER, Graph, Order
from switchml.errors import ConfigError

FOLDS = ("all", "tensor", "none")


def build(
    plan: CostedJob, fold: str = "all", replicas: Replicas | None = None, budget: Budget | None = None
) -> tuple[Graph, Costs]:
    """Build graph and costs of one iteration. `fold`: "all", "tensor" (tensor-parallel ranks only), "none". `replicas`:
    the representatives, where a sample of several data-parallel ranks stands for all. `budget`: resource limit;
    default: this machine's memory.
    Raises ConfigError where memory is too small for the graph, BudgetSpent where time runs out."""
    if fold not in FOLDS:
        raise ConfigError(f"unknown fold {fold!r}; expected one of {', '.join(FOLDS)}")
    job = plan.job
    replicas = replicas or Replicas.folded(job, fold)
    data = len(replicas.number)
    tensor = 1 if fold != "none" else job.tp
    builder = GraphBuilder(job.name)
    budget = budget or Budget()
    op_table = OpTable(builder, plan, budget)
    blocks = []
    for number in range(job.pp):
        blocks.append(Rank(number, op_table).block.whole())
        budget.check_ops(sum(len(block.op_type) for block in blocks))
    ops = sum(len(block.op_type) for block in blocks)
    budget.check_ranks(job, ops, data, tensor)
    builder.reserve(ops * data * tensor, sum(len(block.deps) for block in blocks) * data * tensor)
    ranks = _add_ranks(builder, plan, replicas, tensor, budget)
    bases = _add_transfers(builder, plan, blocks, data, tensor, budget)
    for stage, block in enumerate(blocks):
        dep_start = np.concatenate([[0], np.cumsum(block.dep_counts)])
        for d in range(data):
            budget.check_time()
            for t in range(tensor):
                builder.add_ops(*_placed(block, dep_start, int(ranks[stage, d, t]), bases, (stage, d, t)))
    graph = builder.build()
    kinds = [op_table.costs.get(op_type, FREE) for op_type in range(len(graph.op_types))]
    return graph, Costs.of_kinds(graph.op_types.seconds, kinds, graph.transfers.op_type)


def costs(plan: CostedJob) -> dict[int, Cost]:
    """Return the cost of transfers by op type, numbered as in the graph of `build`."""
    op_table = OpTable(GraphBuilder(), plan)
    for number in range(plan.job.pp):
        Rank(number, op_table)
    return op_table.costs


def overlap_slowdown(plan: CostedJob) -> float:
    """Return the slowdown of compute that overlaps with a gradient collective; pipelines reduce gradients after
    compute."""
    job, software = plan.job, plan.cluster.software
    if not job.overlap or job.dp == 1 or job.pp > 1:
        return 0.0
    return software.interference_inside if plan.data_parallel.nodes == 1 else software.interference_between


# Ranks, groups and transfers


def _add_ranks(builder: GraphBuilder, plan: CostedJob, replicas: Replicas, tensor: int, budget: Budget) -> np.ndarray:
    job = plan.job
    numbers = np.empty((job.pp, len(replicas.number), tensor), np.int32)
    order = Order.READY if job.schedule == "axonn" and job.pp > 1 else Order.PROGRAM
    for stage in range(job.pp):
        for d, (replica, stands_for) in enumerate(zip(replicas.number, replicas.weight, strict=True)):
            budget.check_time()
            for t in range(tensor):
                device, weight = (stage * job.dp + int(replica)) * job.tp + t, float(stands_for) * job.tp / tensor
                rank = numbers[stage, d, t] = builder.add_rank(stage=stage, weight=weight, device=device)
                for name in STREAMS:
                    builder.add_stream(int(rank), name, order if name == "compute" else Order.PROGRAM)
    return numbers


def _add_transfers(
    builder: GraphBuilder, plan: CostedJob, blocks: list[Ops], data: int, tensor: int, budget: Budget
) -> dict[int, np.ndarray]:
    """Add groups and transfers. Return the number of the first transfer of each kind, (stages, data, tensor). A
    transfer has the op type of its members' ops, the same for all."""
    job = plan.job
    shape = (job.pp, data, tensor)
    ranks = np.arange(np.prod(shape)).reshape(shape)
    bases = {kind: np.zeros(shape, np.int64) for kind in range(TRANSFERS)}

    op_types = [{kind: block.op_type[block.kind == kind] for kind in range(TRANSFERS)} for block in blocks]

    def transfers(kind: int, stage: int, group: int) -> int:
        return builder.add_transfers(op_types[stage][kind], group, len(op_types[stage][kind]))

    for stage in range(job.pp):
        for d in range(data):
            budget.check_time()
            group = builder.add_group(ranks[stage, d], name=f"tensor-parallel, stage {stage}, replica {d}", size=job.tp)
            bases[TENSOR][stage, d, :] = transfers(TENSOR, stage, group)
        for t in range(tensor):
            group = builder.add_group(ranks[stage, :, t], name=f"data-parallel, stage {stage}", size=job.dp)
            bases[DATA][stage, :, t] = transfers(DATA, stage, group)
        # Tensor-parallel ranks of one expert-parallel group share its transfers; they are either folded or all present.
        folded = [slice(None)] if job.expert_tp < job.tp else [slice(t, t + 1) for t in range(tensor)]
        single = [slice(t, t + 1) for t in range(tensor)]
        for kind, size, span, places, name in (
            (EXPERT, job.ep, job.expert_span, folded, "expert"),
            (CONTEXT, job.cp, job.cp, single, "context"),
        ):
            for first, place in itertools.product(range(0, data, min(span, data)), places):
                members = ranks[stage, first : first + span, place]
                group = builder.add_group(
                    members.ravel(), name=f"{name}-parallel, stage {stage}", size=max(size, members.size)
                )
                bases[kind][stage, first : first + span, place] = transfers(kind, stage, group)
    if job.pp > 1:
        _add_boundaries(builder, plan, blocks, ranks, bases)
    return bases


def _add_boundaries(
    builder: GraphBuilder, plan: CostedJob, blocks: list[Ops], ranks: np.ndarray, bases: dict[int, np.ndarray]
) -> None:
    """Add transfers between stages: for each pipeline, one per boundary of pieces and micro-batch, forward and
    backward, and one for the tied embedding. Boundaries are numbered from the first piece of the model."""
    job = plan.job
    pieces, count = job.pp * job.virtual_stages, job.micro_batches
    op_type_of = {}
    for block in blocks:
        for kind in (FORWARDS, BACKWARDS, TIED):
            if kind not in op_type_of and (own := block.op_type[block.kind == kind]).size:
                op_type_of[kind] = int(own[0])
    for d in range(ranks.shape[1]):
        for t in range(ranks.shape[2]):
            for kind in (FORWARDS, BACKWARDS):
                ends = [(k % job.pp, (k + 1) % job.pp) for k in range(pieces - 1)]
                groups = [builder.add_group(ranks[[a, b], d, t], name=f"stages {a} and {b}") for a, b in ends]
                bases[kind][:, d, t] = builder.add_transfers(op_type_of[kind], np.repeat(groups, count))
            if TIED in op_type_of:
                group = builder.add_group((ranks[0, d, t], ranks[-1, d, t]), name="first and last stage")
                bases[TIED][:, d, t] = builder.add_transfers(op_type_of[TIED], group, 1)


def _placed(
    ops: Ops, dep_start: np.ndarray, rank: int, bases: dict[int, np.ndarray], where: tuple[int, int, int]
) -> tuple[np.ndarray, ...]:
    """Return a block's arrays with the streams and transfers of one rank."""
    first = np.array([*(bases[kind][where] for kind in range(TRANSFERS)), NO_TRANSFER], np.int32)
    stream = ops.stream + np.int32(rank * len(STREAMS))
    return stream, ops.op_type, first[ops.kind] + ops.number, ops.micro_batch, dep_start, ops.deps
