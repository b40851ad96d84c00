"""What a job keeps in the memory of each accelerator, by the published formulas; so that a job which can't fit is
refused before time is spent on it.
"""

from __future__ import annotations

from dataclasses import dataclass

from emulator.workload.job import Job
from emulator.workload.models import LayerTable, Model, Transformer

STATE_BYTES = {"adam": 12.0, "sgd": 8.0}
"""For each half-precision weight: master weight and two moments (Adam) or one (SGD with momentum) in fp32 (Rajbhandari
et al., SC 2020, section 3.1)."""
WORKSPACE_BYTES = 2.5e9
"""CUDA context, cuBLAS and NCCL buffers: 0.5 GB, 1 GB and 1 GB, as nvidia-smi shows them beside torch's own count."""


@dataclass(frozen=True)
class Memory:
    """Bytes on the fullest accelerator."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    workspace: float = WORKSPACE_BYTES

    @property
    def total(self) -> float:
        return sum(self.parts().values())

    def parts(self) -> dict[str, float]:
        """Name → bytes."""
        return dict(vars(self))


def memory(model: Model, job: Job) -> Memory:
    """What the fullest rank holds: the first stage of a pipeline, which has most micro-batches in flight, or the last
    one, whichever is more."""
    if isinstance(model, LayerTable):
        return _states(float(model.parameters), job, activations=_table_activations(model, job))
    stages = {0, job.pp - 1}
    return max((_stage_memory(model, job, stage) for stage in stages), key=lambda one: one.total)


def _states(parameters: float, job: Job, activations: float) -> Memory:
    """Weights, gradients and optimizer states of `parameters` on one rank; ZeRO shards them over the data-parallel
    ranks from the back: stage 1 optimizer states, 2 gradients, 3 weights (Rajbhandari et al., SC 2020, section 5)."""
    weight, optimizer = float(job.element_bytes), STATE_BYTES[job.optimizer]
    if weight == 4.0:
        optimizer -= 4.0  # the weight is its own master
    shards = [job.dp if job.zero >= stage else 1 for stage in (3, 2, 1)]
    return Memory(
        weights=weight * parameters / shards[0],
        gradients=max(job.gradient_bytes, weight) * parameters / shards[1],
        optimizer=optimizer * parameters / shards[2],
        activations=activations,
    )


def _stage_memory(model: Transformer, job: Job, stage: int) -> Memory:
    activations = micro_batch_activations(model, job, stage) * in_flight(job, stage)
    if job.recompute == "full":
        # One layer at a time is whole again while its backward pass runs.
        activations += layer_activations(model, job.replace(recompute="none"))
    if stage == job.pp - 1:
        # Logits: half precision, and fp32 for the loss and its gradient.
        activations += 8.0 * job.micro_batch * job.tokens(model) * model.vocabulary / job.tp
    return _states(job.stage_parameters(model, stage), job, activations)


def micro_batch_activations(model: Model, job: Job, stage: int) -> float:
    """Bytes that a stage's layers keep of one micro-batch."""
    if isinstance(model, LayerTable):
        return _table_activations(model, job)
    return layer_activations(model, job) * job.layers(model, stage)


def in_flight(job: Job, stage: int) -> float:
    """Micro-batches whose activations a stage holds at once, as multiples of what its own layers keep of one."""
    if job.pp == 1:
        return 1.0
    if job.schedule == "gpipe":
        return float(job.micro_batches)
    if job.schedule == "interleaved" and stage == 0:
        # Korthikanti et al., MLSys 2023, section 4.2.3: L (1 + (p-1)/(p m)) layers on the first stage.
        return min(job.micro_batches, job.pp * (1.0 + (job.pp - 1) / (job.pp * job.virtual_stages)))
    return float(min(job.micro_batches, job.pp - stage))


def layer_activations(model: Transformer, job: Job) -> float:
    """Bytes that one layer keeps of one micro-batch for the backward pass, in half precision (Korthikanti et al.,
    MLSys 2023, table 2): s b h (10 + 24/t + 5 a s / (h t)) and what sequence parallelism and recomputation leave of
    it. The MLP's share (19 of 34 s b h, 16 of them inside) follows its width; flash attention keeps no scores."""
    s, b, h, t = job.tokens(model), job.micro_batch, model.hidden, job.tp
    unit = float(s * b * h)
    if job.recompute == "full":
        return 2.0 * unit / (t if job.sequence_parallel else 1)
    wide = model.width * (1.5 if model.gated else 1.0) * model.experts_per_token / (4 * h)
    keys = (1 + model.key_width / h) / 2
    inside = 8.0 * (0.5 + 0.5 * keys) + 16.0 * wide
    outside = 10.0 / (t if job.sequence_parallel else 1)
    scores = 0.0 if job.recompute == "selective" or job.flash(model) else 5.0 * model.heads * s / (h * t)
    return job.element_bytes / 2 * unit * (outside + inside / t + scores)


def _table_activations(model: LayerTable, job: Job) -> float:
    stored = job.element_bytes * job.micro_batch * model.elements_of
    if job.recompute == "full":
        # Checkpoints at every sqrt(layers)-th layer, and one run between two of them (Chen et al., 2016).
        return float(stored.sum()) / max(1.0, len(stored) ** 0.5) * 2
    return float(stored.sum())
