"""A job with its costs: what each step of each stage takes, and what groups of ranks take to exchange so many gradients
or weights. `costing.plan()` makes it; graphs, memory and reports start from it.
"""

import dataclasses
from dataclasses import dataclass

from emulator.cluster.cluster import Cluster
from emulator.cluster.codecs import Codec
from emulator.cluster.collectives import cost
from emulator.cluster.cost import FREE, Cost
from emulator.cluster.innetwork import DENSE, Streaming
from emulator.cluster.topology import GroupLayout, place
from emulator.jobs.workload.job import Job
from emulator.jobs.workload.models import Model
from switchml.protocol.sizes import LANE_BYTES


@dataclass(frozen=True)
class Step:
    """A part of a stage: half a transformer layer, or a layer of a table."""

    name: str
    forward_s: float
    backward_s: float
    recompute_s: float
    """Recomputed before backward."""
    forward_flops: float
    backward_flops: float
    parameters: float
    """Of this rank."""
    expert_parameters: float = 0.0
    """Of these, those of experts, which fewer ranks have."""
    reduce: Cost = FREE
    """Among tensor-parallel ranks: after forward, after recomputing all of it, after backward."""
    reduce_bytes: float = 0.0
    exchange: Cost = FREE
    """Among expert-parallel ranks, to the experts and back."""
    exchange_bytes: float = 0.0
    waits: bool = False
    """Whether the host waits for the device before it launches experts, to know how many tokens each gets."""
    context: tuple[Cost, Cost] = (FREE, FREE)
    """Among context-parallel ranks, forward and backward: what of it attention does not hide."""
    context_bytes: tuple[float, float] = (0.0, 0.0)
    recomputes_all: bool = False
    """Together with the step before it, if that does so, too."""
    forward_kernels: int = 0
    recomputed_kernels: int = 0
    backward_kernels: int = 0
    looped_kernels: tuple[int, int] = (0, 0)
    """Forward and backward: launched by a loop in C++, besides those."""
    weights_s: float = 0.0
    """Of `backward_s`, what makes gradients of weights, which nothing waits for but the optimizer."""
    weights_flops: float = 0.0
    density: float = 1.0
    """Share of gradient blocks that are not zero."""

    @property
    def compute_s(self) -> float:
        return self.forward_s + self.backward_s + self.recompute_s


@dataclass(frozen=True)
class Stage:
    """What one pipeline stage does with one micro-batch."""

    steps: tuple[Step, ...]
    device_s: float
    """Kernels and the exchanges between them."""
    stretch: float
    """Factor on the kernels, so that all together take what device and host take together."""

    @property
    def seconds(self) -> float:
        """Forward and backward of one micro-batch."""
        return self.device_s + (self.stretch - 1.0) * sum(step.compute_s for step in self.steps)

    @property
    def weights_s(self) -> float:
        """Of that, gradients of weights."""
        return self.stretch * sum(step.weights_s for step in self.steps)

    @property
    def parameters(self) -> float:
        return sum(step.parameters for step in self.steps)

    @property
    def expert_parameters(self) -> float:
        return sum(step.expert_parameters for step in self.steps)


@dataclass(frozen=True)
class CostedJob:
    """A job with its costs."""

    job: Job
    model: Model
    cluster: Cluster
    stages: tuple[Stage, ...]
    data_parallel: GroupLayout
    expert_data_parallel: GroupLayout
    """The ranks that hold the same part of the same experts."""
    optimizer_s: tuple[float, ...]
    """For each stage."""
    iteration_s: float
    """Host time outside the micro-batches."""
    activation_p2p: Cost = FREE
    """Activations to the next stage."""
    activation_p2p_bytes: float = 0.0
    tied: Cost = FREE
    """Gradients of the tied embedding, between first and last stage."""
    streaming: Streaming = DENSE
    """How gradients use the aggregating switches, where the job's all-reduce is switchml."""
    codec: Codec | None = None
    """Compresses gradients."""
    packing_s: tuple[float, ...] = ()
    """For each stage: compressing what one micro-batch keeps for the backward pass, and as long to restore it; empty:
    it is kept as it is."""
    unpruned_share: float = 1.0
    """Of gradients, where weights are pruned: the others are not exchanged."""
    assumptions: tuple[str, ...] = ()

    def gradients(self, stage: Stage) -> Cost:
        """Reducing all gradients of a stage among its data-parallel ranks, in one piece, compressed or not."""
        costed = self.reduce(stage.parameters, experts=stage.expert_parameters)
        if self.codec is not None:
            costed = costed.plus(Cost(self.coding_s(stage.parameters)))
        if self.job.zero:
            costed = costed.plus(self.gather(stage.parameters, experts=stage.expert_parameters)[1])
        return costed

    @property
    def in_network(self) -> bool:
        """Whether switches add gradients up, and gather weights."""
        return self.job.allreduce == "switchml"

    def _cost(self, operation: str, size: float, where: GroupLayout, streaming: Streaming, **how: bool) -> Cost:
        """Of a collective about sharded weights: by the library's own algorithm, or in switches."""
        if not self.in_network:
            return cost(self.cluster, operation, size, where)
        hierarchy = self.job.hierarchy
        return cost(self.cluster, operation, size, where, "switchml", hierarchy, streaming, **how)

    def _reduce_scatter(self, size: float, shards: GroupLayout, copies: GroupLayout, streaming: Streaming) -> Cost:
        """Among the ranks that hold one copy of sharded weights; then shards are all-reduced among the copies
        (HYBRID_SHARD: Zhao et al., VLDB 2023, section 3.2.2)."""
        scattered = self._cost("reduce_scatter", size, shards, streaming, both_ways=self.gathers_backward)
        if copies.ranks == 1:
            return scattered
        return scattered.plus(self._cost("all_reduce", size / shards.ranks, copies, streaming))

    @property
    def gathers_backward(self) -> bool:
        """Whether the backward pass gathers weights while it reduce-scatters gradients."""
        return self.job.zero == 3 and self.job.fsdp.reshard_after_forward

    @property
    def shards(self) -> GroupLayout:
        """The ranks that hold one copy of a stage's weights together."""
        job = self.job
        if job.zero < 3 or not job.fsdp.group:
            return self.data_parallel
        return place(job.fsdp.group, job.tp, self.cluster.accelerators_per_node)

    @property
    def copies(self) -> GroupLayout:
        """The ranks that hold the same shard of different copies."""
        job = self.job
        group = job.fsdp.group if job.zero == 3 and job.fsdp.group else job.dp
        return place(job.dp // group, job.tp * group, self.cluster.accelerators_per_node)

    def gather(self, elements: float, during_scatter: bool = False, experts: float = 0.0) -> tuple[float, Cost]:
        """Bytes and cost of gathering so many weights of a unit, with `zero` 3, in a forward pass or during_scatter:
        while gradients of other units are reduce-scattered. `experts`: of these, those of experts."""
        each, whole = self.job.fsdp.gather_bytes or self.job.element_bytes, FREE
        for own, where in ((elements - experts, self.shards), (experts, self.expert_data_parallel)):
            if own:
                costed = self._cost("all_gather", own * each, where, self.streaming, both_ways=during_scatter)
                whole = whole.plus(costed)
        return elements * each, whole

    def coding_s(self, elements: float) -> float:
        """Compressing so many gradients, and decompressing what comes back."""
        assert self.codec is not None
        back = self.data_parallel.ranks if self.codec.gathers else 1
        return self.codec.compress_s(self.cluster, elements) + back * self.codec.decompress_s(self.cluster, elements)

    def reduce(self, elements: float, density: float = 1.0, experts: float = 0.0) -> Cost:
        """Reducing so many gradients among data-parallel ranks, of which the share `density` of blocks is not zero.
        `experts`: of these, those of experts, which only the ranks that hold the same ones add up."""
        own = self._reduce(experts, density, self.expert_data_parallel, GroupLayout(1, 1, 1)) if experts else FREE
        if experts >= elements > 0:
            return own
        return own.plus(self._reduce(elements - experts, density, self.shards, self.copies))

    def _reduce(self, elements: float, density: float, shards: GroupLayout, copies: GroupLayout) -> Cost:
        """`shards`: without sharded weights, all that add up the same gradients."""
        job = self.job
        elements *= self.unpruned_share
        size = elements * job.gradient_bytes if self.codec is None else self.codec.wire_bytes(elements)
        if self.codec is not None and self.codec.gathers:
            return cost(self.cluster, "all_gather", size * shards.ranks, shards)
        streaming = DENSE
        if self.in_network:
            # Switches add integers of 4 bytes for each element, whatever the gradient was (docs/protocol.md); on the
            # wire these are the narrowest that hold it.
            size = elements * 4.0
            needed = self.streaming.wire_bytes if self.codec is None else max(1.0, self.codec.bits / 8)
            lane = float(min(lane for lane in LANE_BYTES.values() if needed <= lane))
            least = min(density, self.streaming.density) if self.streaming.sparse else 1.0
            streaming = dataclasses.replace(self.streaming, density=least, wire_bytes=lane)
        if job.zero:
            return self._reduce_scatter(size, shards, copies, streaming)
        return cost(self.cluster, "all_reduce", size, shards, job.allreduce, job.hierarchy, streaming)


def closed_form_s(plan: CostedJob) -> float:
    """Seconds of an iteration by formula: the slowest stage takes all micro-batches, the others fill and drain the
    pipeline (Narayanan et al., SC 2021, section 2.2), in ZB-H1 while gradients of weights are made twice (Qi et al.,
    2024, section 2.3), then gradients and the optimizer, nothing overlapped."""
    job = plan.job
    took = [stage.seconds + plan.activation_p2p.seconds for stage in plan.stages]
    pipeline = job.micro_batches * max(took) + (sum(took) - max(took)) / job.virtual_stages
    if job.splits_backward:
        slowest = plan.stages[took.index(max(took))]
        pipeline -= 2 * (sum(stage.weights_s for stage in plan.stages) - slowest.weights_s)
    after = max(
        plan.gradients(stage).seconds + optimizer
        for stage, optimizer in zip(plan.stages, plan.optimizer_s, strict=True)
    )
    return pipeline + after + plan.tied.seconds + plan.iteration_s
