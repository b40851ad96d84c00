"""Peak memory of a job on each accelerator, so that a job that can't fit is refused early: the states of the weights,
plus a timeline of all tensors that a step allocates and frees (`lifetimes.py`, `blocks.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from emulator.cluster.accelerator import QUANTIZED_BYTES
from emulator.jobs.workload import blocks
from emulator.jobs.workload.job import Job
from emulator.jobs.workload.lifetimes import ACTIVATIONS, CACHED, GRADIENTS, TEMPORARY, Span, change
from emulator.jobs.workload.models import LayerTable, Model, Transformer
from emulator.jobs.workload.tensors import Tensors, tensors

MOMENTS = {"adam": 2, "sgd": 1}
"""Values per weight that an optimizer keeps; SGD with momentum (Rajbhandari et al., SC 2020, section 3.1)."""
CONTEXT_BYTES = 0.5e9
"""CUDA context and kernels: 0.36 to 0.49 GiB, the difference of in-use and reserved memory in torch's out-of-memory
messages of jobs on one accelerator (TianheWu/CoSeR#10, huggingface/trl#3436)."""
NCCL_BYTES = 1.0e9
"""NCCL's channels and buffers: 0.7 to 1.2 GiB in addition to the context in such messages of jobs on 4 to 16
accelerators (awslabs/keys_values#92, wbfwonderful/Vad-R1#11, rwth-i6/returnn#1469)."""
FRAGMENTATION = 0.03
"""Memory that the caching allocator reserves beyond the allocated peak, as a share of it: 1.0 to 7.0 %, on average 3.0
%, in the `peak_allocated_MiB` and `peak_reserved_MiB` of six runs of nanotron/old_bench (Hugging Face, 2024)."""


@dataclass(frozen=True)
class Memory:
    """Memory by category on the fullest accelerator, in bytes."""

    weights: float
    gradients: float
    """Weight gradients present at the peak."""
    optimizer: float
    activations: float
    """Activations and their gradients."""
    temporary: float = 0.0
    """Gathered weights of FSDP units, copies for reduction, and temporaries of the optimizer step."""
    workspace: float = CONTEXT_BYTES
    """CUDA's context and NCCL's buffers."""
    cached: float = 0.0
    """Freed blocks that fit no later tensor."""
    allocated: float = 0.0
    """Peak of tensors (torch.cuda.max_memory_allocated), possibly at another time than that of the total."""

    @property
    def fragmentation(self) -> float:
        """Memory reserved by torch's allocator but not used by tensors."""
        return self.cached + FRAGMENTATION * self._tensors

    @property
    def _tensors(self) -> float:
        return self.weights + self.gradients + self.optimizer + self.activations + self.temporary

    @property
    def reserved(self) -> float:
        """Memory reserved by torch's allocator (torch.cuda.max_memory_reserved)."""
        return self._tensors + self.fragmentation

    @property
    def total(self) -> float:
        return self.reserved + self.workspace

    def parts(self) -> dict[str, float]:
        """Return bytes by name of the part."""
        names = ("weights", "gradients", "optimizer", "activations", "temporary", "fragmentation", "workspace")
        return {name: getattr(self, name) for name in names}


def memory(model: Model, job: Job) -> Memory:
    """Return the memory of the fullest rank: on the first stage of a pipeline, with most micro-batches in flight, or
    the last; or the second, where the embedding counts as a layer on the first. Raises ConfigError where the model
    can't be split as specified."""
    job.fit(model)
    if isinstance(model, LayerTable):
        return max((_table_memory(model.part(stage), job, stage) for stage in range(job.pp)), key=lambda one: one.total)
    stages = {0, job.pp - 1, 1 if job.counts_embedding else 0}
    return max((_stage_memory(model, job, stage) for stage in stages), key=lambda one: one.total)


def _table_memory(layers: LayerTable, job: Job, stage: int) -> Memory:
    """Return the memory for `layers`, those of the stage."""
    waiting = sum(saved for saved, _ in _table_layers(layers, job)) * (in_flight(job, stage) - 1.0)
    step = change(ACTIVATIONS, waiting).then(_table_passes(layers, job))
    states, largest = _states(float(layers.parameters), job), float(layers.parameters_of.max())
    return _at_peak(states, step, largest, job, tensors(layers, job).optimizer)


@dataclass(frozen=True)
class _States:
    """Bytes allocated permanently."""

    weights: float
    gradients: float
    optimizer: float


def state_bytes(job: Job) -> float:
    """Return bytes of a weight, its master weight and its optimizer states, unsharded."""
    return float(job.weight_bytes + job.master_bytes + _optimizer_bytes(job))


def _optimizer_bytes(job: Job) -> float:
    """Return bytes of the moments of a weight."""
    return float(MOMENTS[job.optimizer] * job.updated_bytes)


def _states(parameters: float, job: Job, experts: float = 0.0) -> _States:
    """Return weights, gradients and optimizer states of `parameters` on one rank. ZeRO shards them over the
    data-parallel ranks: stage 1 optimizer states, 2 also gradients, 3 also weights (Rajbhandari et al., SC 2020,
    section 5). Stage 3 is FSDP, whose master weights are its weights. Gradients of a single micro-batch without
    reduction buckets are temporary. `experts`: expert parameters among these."""
    weight, optimizer = float(job.weight_bytes), _optimizer_bytes(job) + job.master_bytes
    shard = job.sharded(parameters - experts, experts)
    weights, gradients, states = (shard if job.zero >= stage else parameters for stage in (3, 2, 1))
    return _States(weight * weights, max(float(job.gradient_bytes), weight) * gradients, optimizer * states)


def _gradients_stay(job: Job) -> bool:
    """Return whether gradient memory is allocated from the start of a step: buckets, sums over micro-batches, or FSDP's
    reduction output, which belongs to a separate stream and is not reused
    (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, foreach_reduce)."""
    return job.micro_batches > 1 or job.dp > 1


def _at_peak(states: _States, step: Span, largest: float, job: Job, optimizer: str) -> Memory:
    """Return the memory at the peak of `step`, a forward and a backward pass. `largest`: elements of the largest
    weight."""
    stay = states.gradients if _gradients_stay(job) else 0.0
    whole = step.then(change(TEMPORARY, _update_bytes(states, largest, job, optimizer)))
    return Memory(
        weights=states.weights,
        gradients=stay + whole.peak[GRADIENTS],
        optimizer=states.optimizer,
        activations=whole.peak[ACTIVATIONS],
        temporary=whole.peak[TEMPORARY],
        workspace=CONTEXT_BYTES + (NCCL_BYTES if job.gpus > 1 else 0.0),
        cached=whole.peak[CACHED],
        allocated=states.weights + stay + states.optimizer + whole.held,
    )


def _update_bytes(states: _States, largest: float, job: Job, optimizer: str) -> float:
    """Return temporary bytes of the optimizer step. Adam copies its denominator: two copies of one weight
    (torch.optim.adam, _single_tensor_adam) or one of all (_multi_tensor_adam); master weights get gradients converted
    to their precision."""
    optimizer = job.optimizer_kernels or optimizer
    if optimizer == "fused":
        return 0.0
    every = states.weights / job.weight_bytes
    copies, updated = (2.0, largest) if optimizer == "single" else (1.0, every)
    converts = job.master_bytes > job.gradient_bytes
    return job.updated_bytes * min(updated, every) * ((copies if job.optimizer == "adam" else 0.0) + converts)


def _stage_memory(model: Transformer, job: Job, stage: int) -> Memory:
    parameters = job.stage_parameters(model, stage, trained=True)
    step = change(ACTIVATIONS, micro_batch_activations(model, job, stage) * (in_flight(job, stage) - 1.0))
    if job.pp > 1 and tensors(model, job).keeps_boundaries:
        boundaries = job.micro_batches + (in_flight(job, stage) if stage < job.pp - 1 else 0.0)
        step = step.then(change(ACTIVATIONS, boundaries * blocks.boundary_bytes(model, job)))
    if job.zero == 3 and not _reduces_by_unit(job) and job.dp > 1:
        gathered = job.element_bytes if job.pp > 1 else 0
        step = step.then(change(TEMPORARY, (gathered + _reduced_bytes(job)) * parameters))
    step = step.then(_passes(model, job, stage))
    largest = max(model.vocabulary * model.hidden, model.hidden * model.width) / job.tp
    states = _states(parameters, job, job.stage_expert_parameters(model, stage))
    if job.lora:
        each = _frozen_bytes(job, tensors(model, job))
        frozen = job.stage_parameters(model, stage)
        frozen = job.sharded(frozen, 0.0) if job.zero == 3 else frozen
        states = replace(states, weights=states.weights + each * frozen)
    return _at_peak(states, step, largest, job, tensors(model, job).optimizer)


def _frozen_bytes(job: Job, how: Tensors) -> float:
    """Return bytes of a frozen weight. Transformer Engine keeps it quantized alone (NVIDIA's recipes:
    fp8_param_gather), and transposes it where backward needs that; blocks with scales of their own are kept in both
    layouts (pytorch/tensor/mxfp8_tensor.py)."""
    if job.precision not in QUANTIZED_BYTES or not how.keeps_quantized:
        return float(job.element_bytes)
    return QUANTIZED_BYTES[job.precision] * (1 if job.precision == "fp8" else 2)


def _reduces_by_unit(job: Job) -> bool:
    """Return whether a unit's gradient is freed as soon as it is complete. In a pipeline it remains, like the gathered
    weights, until all micro-batches are done (torchtitan, parallelize_llama.py, reshard_after_forward)."""
    if job.zero == 3 and not job.fsdp.reduce_each and job.micro_batches > 1:
        return False
    return job.dp > 1 and job.zero >= 2 and job.pp == 1


@dataclass(frozen=True)
class _Unit:
    """A unit of gathering and reduction: some layers, or everything outside them (FSDP's root). Bytes; 0 without
    sharding."""

    gathered: float = 0.0
    reduced: float = 0.0
    """Gradients, copied to the dtype and layout of the reduction."""

    @classmethod
    def of(cls, parameters: float, job: Job) -> _Unit:
        gathered = job.fsdp.gather_bytes or float(job.element_bytes)
        return cls(
            gathered=gathered * parameters if job.zero == 3 and job.dp > 1 and job.pp == 1 else 0.0,
            reduced=_reduced_bytes(job) * parameters if _reduces_by_unit(job) and not job.lora else 0.0,
        )

    def gather(self, times: float = 1.0) -> Span:
        return change(TEMPORARY, times * self.gathered)

    def reduce(self, passed: Span, before: float) -> Span:
        """Return the backward pass `passed` of a unit, followed by copying its gradient for reduction; the copy remains
        until the next one replaces it, as it replaces that of the previous unit (`before`)."""
        if self.reduced:
            copied = change(TEMPORARY, -before).then(change(TEMPORARY, self.reduced))
            passed = passed.then(copied, change(GRADIENTS, -passed.net[GRADIENTS]))
        return passed.then(self.gather(-1.0))


def _reduced_bytes(job: Job) -> float:
    """Return the bytes of a gradient copied for reduction."""
    return float(max(job.gradient_bytes, job.element_bytes))


def _transient(layer: blocks.Block) -> float:
    """Return the peak of temporary memory in a layer's forward pass."""
    there = layer.forward()
    return there.peak[ACTIVATIONS] - there.net[ACTIVATIONS]


def _unshared(model: Transformer, job: Job) -> Job:
    """Return the job with equal tokens per rank, but no context-parallel communication, whose memory is one range at
    the end of torch's expandable segment, which the loss's tensors reuse (torchtitan, run_llama_train.sh:
    expandable_segments)."""
    return job.replace(cp=1, sequence=job.tokens(model), batch=0) if job.cp > 1 else job


def _passes(model: Transformer, job: Job, stage: int) -> Span:
    """Return the span of forward and backward of one micro-batch on a stage."""
    parameters, count = job.part_parameters(model), job.layers(model, stage)
    of_layer = parameters["attention"] + parameters["mlp"]
    is_first, is_last = stage == 0, stage == job.pp - 1
    root = _Unit.of((parameters["embedding"] if is_first else 0.0) + (parameters["loss"] if is_last else 0.0), job)
    layers = _Layers(model, count, of_layer, job)
    # FSDP2 gathers into a buffer on a separate stream, whose memory is not reused elsewhere.
    copies = tensors(model, job).gathers_copy
    buffer = max(root.gathered, (1 + job.fsdp.prefetch) * layers.unit.gathered) if copies else 0.0
    entered, left = change(ACTIVATIONS, layers.boundary), change(ACTIVATIONS, -layers.boundary)
    if is_first:
        embedding = blocks.embedding(model, job)
        is_shared = is_last and model.tied_embedding
        entered, left = embedding.forward(), embedding.backward(layers.sums or is_shared)
    span = change(TEMPORARY, buffer).then(root.gather(), entered, layers.forward())
    if is_last:
        head = blocks.head(model, job)
        # The allocator reuses whole blocks or splits them: those of the layers are too small for the loss's tensors,
        # and half-precision logits leave one that only their gradient fits into.
        there = [one for one, layers in _layer_counts(model, job, stage) if layers]
        small = max((_transient(blocks.layer(model, _unshared(model, one))) for one in there), default=0.0)
        logits = sum(head.sizes[tensor] for tensor in head.held)
        span = span.then(change(CACHED, small), head.forward(), change(CACHED, logits), head.backward(layers.sums))
        span = span.then(change(CACHED, -small - logits))
    span = span.then(layers.backward(), left)
    return span.then(root.reduce(Span(), layers.unit.reduced), change(TEMPORARY, -root.reduced))


class _Layers:
    """A stage's layers, identical except for checkpointing, grouped in units."""

    def __init__(self, model: Transformer, count: int, parameters: float, job: Job) -> None:
        self.sums, self._job = self.sums_of(job), job
        each_layer = [blocks.layer(model, one) for one in _treated(job)]
        self._there = [layer.forward() for layer in each_layer]
        self._back = [layer.backward(self.sums) for layer in each_layer]
        self.boundary = each_layer[0].sizes[0]
        self._reshards = job.fsdp.reshard_after_forward
        each = job.fsdp.unit_layers
        if job.fsdp.unit_parameters:
            each = max(1, math.ceil(job.fsdp.unit_parameters / parameters))
        if job.zero < 2:
            each = max(count, 1)
        self._counts = [min(each, count - first) for first in range(0, count, each)]
        self.unit = _Unit.of(parameters * min(each, count), job)

    def _run(self, spans: list[Span], unit: int) -> Span:
        """Return the span of a unit's layers: in forward order if `spans` are forward passes, else in reverse."""
        first, count = sum(self._counts[:unit]), self._counts[unit]
        if len(spans) == 1:
            return spans[0].times(count)
        numbers = range(first, first + count) if spans is self._there else reversed(range(first, first + count))
        return Span().then(*(spans[not self._job.checkpoints(number)] for number in numbers))

    @staticmethod
    def sums_of(job: Job) -> bool:
        """Return whether weight gradients are added to existing ones."""
        return _gradients_stay(job) and not _reduces_by_unit(job)

    def forward(self) -> Span:
        """Return the forward span. Units are gathered ahead of the running one; the last ones remain until backward."""
        span, ahead, last = Span(), self._job.fsdp.prefetch, len(self._counts) - 1
        for i in range(len(self._counts)):
            coming = min(i + ahead, last) - (min(i - 1 + ahead, last) if i else -1)
            span = span.then(self.unit.gather(coming), self._run(self._there, i))
            if self._reshards and i < last:
                span = span.then(self.unit.gather(-1.0))
        return span

    def backward(self) -> Span:
        """Return the backward span, units in reverse order."""
        span, reduced, ahead, last = Span(), 0.0, self._job.fsdp.prefetch, len(self._counts) - 1
        for i in range(last, -1, -1):
            if self._reshards:
                coming = (max(i + 1 - ahead, 0) if i < last else last) - max(i - ahead, 0)
                span = span.then(self.unit.gather(coming))
            span = span.then(self.unit.reduce(self._run(self._back, i), reduced))
            reduced = self.unit.reduced
        return span


def micro_batch_activations(model: Model, job: Job, stage: int) -> float:
    """Return the bytes that a stage's layers save of one micro-batch."""
    if isinstance(model, LayerTable):
        return sum(saved for saved, _ in _table_layers(model.part(stage), job))
    return sum(layer_activations(model, one) * count for one, count in _layer_counts(model, job, stage))


def _treated(job: Job) -> list[Job]:
    """Return the job as it applies to checkpointed layers and, where only some layers are checkpointed, to the
    others."""
    return [job, *([job.replace(recompute="none", recompute_every=1)] if job.recompute_every > 1 else [])]


def _layer_counts(model: Transformer, job: Job, stage: int) -> list[tuple[Job, int]]:
    """Return the number of layers of a stage for each job of `_treated`."""
    layers = job.layers(model, stage)
    checkpointed = sum(map(job.checkpoints, range(layers)))
    return list(zip(_treated(job), (checkpointed, layers - checkpointed), strict=False))


def micro_batch_tensors(model: Model, job: Job, stage: int) -> int:
    """Return the number of tensors that a stage's layers save of one micro-batch."""
    if isinstance(model, LayerTable):
        part = model.part(stage)
        return len(part.layer) if part.tensors_of is None else int(part.tensors_of.sum())
    return sum(blocks.layer(model, one).kept * count for one, count in _layer_counts(model, job, stage))


def in_flight(job: Job, stage: int) -> float:
    """Return the peak number of micro-batches whose activations a stage holds, relative to one micro-batch of its own
    layers."""
    if job.pp == 1:
        return 1.0
    if job.schedule == "gpipe":
        return float(job.micro_batches)
    if job.splits_backward:
        # Inputs of deferred weight gradients are held: on no stage more than on 1F1B's first one (Qi et al., 2024,
        # section 2.3).
        return float(min(job.micro_batches, job.pp))
    if job.schedule == "interleaved" and stage == 0:
        # Korthikanti et al., MLSys 2023, section 4.2.3: L (1 + (p-1)/(p m)) layers on the first stage.
        return min(job.micro_batches, job.pp * (1.0 + (job.pp - 1) / (job.pp * job.virtual_stages)))
    return float(min(job.micro_batches, job.pp - stage))


def layer_activations(model: Transformer, job: Job) -> float:
    """Return the bytes that one layer saves of one micro-batch for the backward pass. With Megatron's operators: s b h
    (10 + 24/t + 5 a s / (h t)), reduced by sequence parallelism and recomputation (Korthikanti et al., MLSys 2023,
    table 2)."""
    layer = blocks.layer(model, job)
    return layer.forward().net[ACTIVATIONS] - layer.sizes[layer.output] + layer.sizes[0]


def _table_passes(model: LayerTable, job: Job) -> Span:
    """Return the span of forward and backward of a layer table, each layer a unit. A layer's input and output, or their
    gradients, exist while it runs."""
    units = [_Unit.of(float(count), job) for count in model.parameters_of]
    layers, sums = _table_layers(model, job), _Layers.sums_of(job)
    written = [0.0, *(out for _, out in layers)]

    def forward(i: int) -> Span:
        kept, out = layers[i]
        return units[i].gather().then(change(ACTIVATIONS, kept + out), change(ACTIVATIONS, -out), units[i].gather(-1.0))

    def backward(i: int) -> Span:
        (kept, out), weight = layers[i], blocks.gradient_bytes(job) * float(model.parameters_of[i])
        kind = TEMPORARY if sums else GRADIENTS
        grown = units[i].gather().then(change(ACTIVATIONS, out + written[i]), change(kind, weight))
        left = grown.then(change(ACTIVATIONS, -out - written[i] - kept), change(kind, -weight if sums else 0.0))
        return units[i].reduce(left, 0.0).then(change(TEMPORARY, -units[i].reduced))

    count = len(layers)
    if job.recompute != "full":
        return Span().then(*map(forward, range(count)), *map(backward, reversed(range(count))))
    # Checkpoints at every sqrt(layers)-th layer, and one run recomputed between two of them (Chen et al., 2016).
    run = max(1, round(count**0.5))
    runs = [range(first, min(first + run, count)) for first in range(0, count, run)]

    def unsaved(each: range) -> Span:
        most = change(ACTIVATIONS, max(written[i] + written[i + 1] for i in each))
        return most.then(change(ACTIVATIONS, written[each[0]] - most.net[ACTIVATIONS]))

    def again(each: range) -> Span:
        there = Span().then(*map(forward, each), *map(backward, reversed(each)))
        return there.then(change(ACTIVATIONS, -written[each[0]]))

    return Span().then(*map(unsaved, runs), *map(again, reversed(runs)))


def _table_layers(model: LayerTable, job: Job) -> list[tuple[float, float]]:
    """Return for each layer the bytes saved for backward, and the bytes written."""
    size = float(job.element_bytes * job.micro_batch)
    saved = model.elements_of if model.saved_of is None else model.saved_of
    return [(size * float(kept), size * float(out)) for kept, out in zip(saved, model.elements_of, strict=True)]
