"""A job with its costs: the duration of each step of each stage, and the cost of exchanging gradients or weights within
groups. `costing.plan()` builds it; graphs, memory and reports use it.
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
    """Recomputation before the backward pass."""
    forward_flops: float
    backward_flops: float
    parameters: float
    """Parameters of this rank."""
    expert_parameters: float = 0.0
    """Expert parameters among these, which fewer ranks hold."""
    frozen_parameters: float = 0.0
    """Further parameters, which LoRA does not train."""
    reduce: Cost = FREE
    """All-reduce among tensor-parallel ranks after forward, after full recomputation, and after backward."""
    reduce_bytes: float = 0.0
    exchange: Cost = FREE
    """All-to-all among expert-parallel ranks, to the experts and back."""
    exchange_bytes: float = 0.0
    waits: bool = False
    """Whether the host synchronizes with the device before it launches experts, to get the number of tokens for each.
    """
    context: tuple[Cost, Cost] = (FREE, FREE)
    """Communication among context-parallel ranks that attention does not hide: forward, backward."""
    context_bytes: tuple[float, float] = (0.0, 0.0)
    recomputes_all: bool = False
    """Whether the step is fully recomputed, together with the preceding step if that is, too."""
    forward_kernels: int = 0
    recomputed_kernels: int = 0
    backward_kernels: int = 0
    looped_kernels: tuple[int, int] = (0, 0)
    """Additional kernels launched by a C++ loop: forward, backward."""
    is_captured: bool = False
    """Whether one launch starts all of the step, communication included."""
    weights_s: float = 0.0
    """Part of `backward_s` that computes weight gradients, which only the optimizer depends on."""
    weights_flops: float = 0.0
    density: float = 1.0
    """Share of nonzero gradient blocks."""

    @property
    def compute_s(self) -> float:
        return self.forward_s + self.backward_s + self.recompute_s


@dataclass(frozen=True)
class Stage:
    """Work of one pipeline stage for one micro-batch."""

    steps: tuple[Step, ...]
    device_s: float
    """Kernels, and the communication between them."""
    stretch: float
    """Factor on kernel durations, so that their total includes the host's launch overhead."""

    @property
    def seconds(self) -> float:
        """Forward and backward time of one micro-batch."""
        return self.device_s + (self.stretch - 1.0) * sum(step.compute_s for step in self.steps)

    @property
    def weights_s(self) -> float:
        """Part of `seconds` that computes weight gradients."""
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
    """Ranks that hold the same part of the same experts."""
    optimizer_s: tuple[float, ...]
    """Optimizer time of each stage."""
    iteration_s: float
    """Host time outside the micro-batches."""
    activation_p2p: Cost = FREE
    """Sending activations to the next stage."""
    activation_p2p_bytes: float = 0.0
    tied: Cost = FREE
    """All-reduce of the tied embedding's gradients between first and last stage."""
    streaming: Streaming = DENSE
    """How gradients use the aggregating switches, if the job's all-reduce is switchml."""
    codec: Codec | None = None
    """Gradient compression."""
    packing_s: tuple[float, ...] = ()
    """Time for each stage to compress one micro-batch's saved activations; restoring takes as long. Empty: not
    compressed."""
    unpruned_share: float = 1.0
    """Share of gradients left by pruning; the others are not exchanged."""
    assumptions: tuple[str, ...] = ()

    def gradients(self, stage: Stage) -> Cost:
        """Return the cost of reducing all gradients of a stage among its data-parallel ranks in one piece, with
        compression if any."""
        costed = self.reduce(stage.parameters, experts=stage.expert_parameters)
        if self.codec is not None:
            costed = costed.plus(Cost(self.coding_s(stage.parameters)))
        if self.job.zero:
            frozen = sum(step.frozen_parameters for step in stage.steps) if self.job.zero == 3 else 0.0
            costed = costed.plus(self.gather(stage.parameters + frozen, experts=stage.expert_parameters)[1])
        return costed

    @property
    def in_network(self) -> bool:
        """Whether switches reduce gradients and gather weights."""
        return self.job.allreduce == "switchml"

    def _cost(self, operation: str, size: float, where: GroupLayout, streaming: Streaming, **how: bool) -> Cost:
        """Return the cost of a collective on sharded weights: by the library's default algorithm, or in switches."""
        if not self.in_network:
            return cost(self.cluster, operation, size, where)
        hierarchy = self.job.hierarchy
        return cost(self.cluster, operation, size, where, "switchml", hierarchy, streaming, **how)

    def _reduce_scatter(self, size: float, shards: GroupLayout, copies: GroupLayout, streaming: Streaming) -> Cost:
        """Reduce-scatter among the ranks that hold one copy of sharded weights, then all-reduce of shards among the
        copies (HYBRID_SHARD: Zhao et al., VLDB 2023, section 3.2.2)."""
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
        """The ranks that together hold one copy of a stage's weights."""
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
        """Return bytes and cost of gathering a unit's `elements` weights with `zero` 3, in a forward pass or
        during_scatter: while gradients of other units are reduce-scattered. `experts`: expert weights among them."""
        each, whole = self.job.fsdp.gather_bytes or self.job.element_bytes, FREE
        for own, where in ((elements - experts, self.shards), (experts, self.expert_data_parallel)):
            if own:
                costed = self._cost("all_gather", own * each, where, self.streaming, both_ways=during_scatter)
                whole = whole.plus(costed)
        return elements * each, whole

    def coding_s(self, elements: float) -> float:
        """Return the time to compress `elements` gradients and decompress the result."""
        assert self.codec is not None
        back = self.data_parallel.ranks if self.codec.gathers else 1
        return self.codec.compress_s(self.cluster, elements) + back * self.codec.decompress_s(self.cluster, elements)

    def reduce(self, elements: float, density: float = 1.0, experts: float = 0.0) -> Cost:
        """Return the cost of reducing `elements` gradients among data-parallel ranks; the share `density` of blocks is
        nonzero. `experts`: expert gradients among them, reduced only among ranks with the same experts."""
        own = self._reduce(experts, density, self.expert_data_parallel, GroupLayout(1, 1, 1)) if experts else FREE
        if experts >= elements > 0:
            return own
        return own.plus(self._reduce(elements - experts, density, self.shards, self.copies))

    def _reduce(self, elements: float, density: float, shards: GroupLayout, copies: GroupLayout) -> Cost:
        """Return the cost of a reduction. `shards`: without sharded weights, all ranks of the reduction."""
        job = self.job
        elements *= self.unpruned_share
        size = elements * job.gradient_bytes if self.codec is None else self.codec.wire_bytes(elements)
        if self.codec is not None and self.codec.gathers:
            return cost(self.cluster, "all_gather", size * shards.ranks, shards)
        streaming = DENSE
        if self.in_network:
            # Switches add 4-byte integers for each element, whatever the gradient's type (docs/protocol.md); on the
            # wire they are the narrowest that fits.
            size = elements * 4.0
            needed = self.streaming.wire_bytes if self.codec is None else max(1.0, self.codec.bits / 8)
            lane = float(min(lane for lane in LANE_BYTES.values() if needed <= lane))
            least = min(density, self.streaming.density) if self.streaming.sparse else 1.0
            streaming = dataclasses.replace(self.streaming, density=least, wire_bytes=lane)
        if job.zero:
            return self._reduce_scatter(size, shards, copies, streaming)
        return cost(self.cluster, "all_reduce", size, shards, job.allreduce, job.hierarchy, streaming)


def closed_form_s(plan: CostedJob) -> float:
    """Return the closed-form iteration time: the slowest stage times all micro-batches, plus pipeline fill and drain of
    the others (Narayanan et al., SC 2021, section 2.2), less two weight-gradient computations in ZB-H1 (Qi et al.,
    2024, section 2.3), then gradients and the optimizer without overlap."""
    job = plan.job
    stage_s = [stage.seconds + plan.activation_p2p.seconds for stage in plan.stages]
    pipeline = job.micro_batches * max(stage_s) + (sum(stage_s) - max(stage_s)) / job.virtual_stages
    if job.splits_backward:
        slowest = plan.stages[stage_s.index(max(stage_s))]
        pipeline -= 2 * (sum(stage.weights_s for stage in plan.stages) - slowest.weights_s)
    after = max(
        plan.gradients(stage).seconds + optimizer
        for stage, optimizer in zip(plan.stages, plan.optimizer_s, strict=True)
    )
    return pipeline + after + plan.tied.seconds + plan.iteration_s
