"""The cost model of a job on a cluster: device and host time of each step of each stage, communication among ranks, and
placement of their groups. `plan()` joins workload and cluster into a CostedJob (`costed.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from emulator.cluster import kernels
from emulator.cluster.accelerator import QUANTIZED_BYTES, SCALE_BYTES, SCALED_WHOLE, Accelerator, Constants
from emulator.cluster.cluster import Cluster
from emulator.cluster.codecs import Codec
from emulator.cluster.collectives import cost
from emulator.cluster.cost import FREE, Cost
from emulator.cluster.innetwork import DENSE, Streaming
from emulator.cluster.topology import GroupLayout, place
from emulator.jobs.costed import CostedJob, Stage, Step
from emulator.jobs.dispatch import Dispatch
from emulator.jobs.workload import transformer
from emulator.jobs.workload.implementations import (
    UNFUSED,
    Implementation,
    attention_kernel,
    cross_entropies,
    implementations,
    resolved_attention,
)
from emulator.jobs.workload.job import KEPT, Job
from emulator.jobs.workload.models import LayerTable, Model, Transformer
from switchml.errors import ConfigError
from switchml.units import bytes_text

OPTIMIZER_BYTES = implementations()["megatron"].optimizer_bytes
"""Memory traffic of a fused optimizer step per parameter in mixed precision. Adam: gradient read twice (norm, update),
master weight and both moments read and written, half-precision weight written: 2+2+8+8+8+2, plus 2 to unscale."""

UPDATED_VALUES = {"fused": {"adam": 7, "sgd": 5}, "foreach": {"adam": 26, "sgd": 11}}
"""Values per weight that a step of torch.optim reads and writes. fused: weight, gradient and states read, weight and
states written (aten/src/ATen/native/cuda/fused_adam_utils.cuh, FusedSgdKernel.cu); foreach: those of each operation
(torch/optim/adam.py, _multi_tensor_adam; sgd.py, _multi_tensor_sgd)."""


@dataclass(frozen=True)
class Machine:
    """The device that runs a job's kernels, the calibrated constants, and the precision."""

    device: Accelerator
    software: Constants
    precision: str

    @classmethod
    def of(cls, model: Model, job: Job, cluster: Cluster) -> Machine:
        """Return the machine of a job; the implementation's own constants replace the defaults, and the cluster's
        replace both."""
        changes = implementations()[job.implemented_by(model)].constants
        return cls(cluster.device, cluster.software_with(changes), job.precision)

    def seconds(self, rows: np.ndarray) -> float:
        """Return the total duration of kernels in sequence."""
        return float(kernels.seconds(rows, self.device, self.software, self.precision).sum())


def plan(
    model: Model, job: Job, cluster: Cluster, streaming: Streaming = DENSE, codec: Codec | None = None
) -> CostedJob:
    """Cost `job` on `cluster`. Raises ConfigError for jobs that cannot be split, placed or combined with these
    options."""
    job.fit(model)
    cluster.nodes(job.gpus)
    machine = Machine.of(model, job, cluster)
    if streaming.sparse and job.zero:
        raise ConfigError("zero shards gradients by reduce-scatter, which sends all blocks; use zero 0 with sparse")
    if codec is not None and codec.gathers and (job.zero or job.allreduce != "auto"):
        raise ConfigError(
            f"outputs of {codec.title} can't be summed in the network: it needs allreduce auto and zero 0"
        )
    if job.allreduce != "switchml" and streaming != DENSE:
        raise ConfigError(
            "loss, switch jobs, density and wire bytes describe aggregation in switches: use allreduce switchml"
        )
    if job.fuse and (not isinstance(model, LayerTable) or model.forward_s is not None):
        raise ConfigError(f"fuse needs a layer table with kernel counts, which {model.title} is not")
    if isinstance(model, LayerTable):
        each = [_layer_steps(model.part(stage), job, cluster) for stage in range(job.pp)]
        handed = max((float(model.part(stage).elements_of[-1]) for stage in range(job.pp - 1)), default=0.0)
        boundaries, has_host_time = _activation_p2p(handed, job, cluster), model.forward_s is None
    else:
        steps = _transformer_steps(model, job, cluster, machine)
        each = [[steps[part] for part in job.parts(model, stage)] for stage in range(job.pp)]
        boundaries, has_host_time = _boundaries(model, job, cluster) if job.pp > 1 else {}, True
    stages = [_stage(own, job, machine.software) for own in each]
    return CostedJob(
        job=job,
        model=model,
        cluster=cluster,
        stages=tuple(stages),
        data_parallel=place(job.dp, job.tp, cluster.accelerators_per_node),
        expert_data_parallel=place(job.expert_dp, job.ep * job.expert_tp, cluster.accelerators_per_node),
        optimizer_s=tuple(_optimizer_s(stage, model, job, machine) for stage in stages),
        iteration_s=machine.software.iteration_s if has_host_time else 0.0,
        streaming=streaming,
        codec=codec,
        assumptions=tuple(_assumptions(model, job, cluster)),
        **boundaries,
    )


def _boundaries(model: Transformer, job: Job, cluster: Cluster) -> dict[str, Any]:
    """Return the CostedJob fields for communication between stages."""
    # Each tensor-parallel rank sends its part; the receivers gather (Narayanan et al., SC 2021, section 4.1).
    sent = job.element_bytes * job.micro_batch * job.tokens(model) * model.hidden / job.tp
    nodes = cluster.nodes(job.gpus)
    ends = GroupLayout(2, 2, 1, nodes) if nodes > 1 else GroupLayout(2, 1, 2, 1)
    copy_bytes = job.gradient_bytes * model.vocabulary * model.hidden / job.tp
    tied = cost(cluster, "all_reduce", copy_bytes, ends) if model.tied_embedding and not job.lora else FREE
    return {**_activation_p2p(sent / job.element_bytes / job.micro_batch, job, cluster), "tied": tied}


def _activation_p2p(elements: float, job: Job, cluster: Cluster) -> dict[str, Any]:
    """Return the CostedJob fields for the activations that a stage sends to the next, `elements` per sample."""
    sent = job.element_bytes * job.micro_batch * elements
    boundary = _neighbours(job, cluster.accelerators_per_node)
    return {"activation_p2p": cost(cluster, "p2p", sent, boundary), "activation_p2p_bytes": sent} if job.pp > 1 else {}


def _transformer_steps(model: Transformer, job: Job, cluster: Cluster, machine: Machine) -> dict[str, Step]:
    """Return the steps by name of the part of the model."""
    code = _code(model, job, machine)
    parts = {
        "attention": transformer.attention(model, job, code),
        "window": transformer.attention(model, job, code, model.window),
        "mlp": transformer.mlp(model, job, code),
        "embedding": transformer.embedding(model, job, code),
        "loss": transformer.head(model, job, code),
    }
    if model.dense_layers:
        parts["dense"] = transformer.mlp(model.dense, job, code)
    parameters, whole = job.trained_parameters(model), job.part_parameters(model)
    frozen = whole if job.lora else dict.fromkeys(whole, 0.0)
    how = code.implementation
    dispatch = Dispatch.of(model, job, cluster)
    experts = {"mlp": job.expert_parameters(model)} if model.experts > 1 else {}

    def steps(job: Job) -> dict[str, Step]:
        return {
            name: replace(
                _step(part, parameters[name], experts.get(name, 0.0), dispatch, job, cluster, machine, how),
                frozen_parameters=frozen[name],
            )
            for name, part in parts.items()
        }

    kept = job.replace(recompute="none", recompute_every=1)
    others = {name + KEPT: step for name, step in steps(kept).items()} if job.recompute_every > 1 else {}
    return {**steps(job), **others}


def _fused_attention(model: Transformer, job: Job, device: Accelerator) -> str:
    """Return the name of the attention kernel of a job that fuses attention."""
    implementation = implementations()[job.implemented_by(model)]
    return resolved_attention(job.attention_kernel(model), implementation, device, job.precision)


def _code(model: Transformer, job: Job, machine: Machine) -> transformer.Code:
    """Return the implementations of the layers' kernels that job and model name."""
    implementation = implementations()[job.implemented_by(model)]
    rates = window_rates = 0.0, 0.0
    if job.flash(model):
        name, head = _fused_attention(model, job, machine.device), model.head
        kernel = attention_kernel(name, machine.device)
        # In a ring, a kernel sees one rank's part of the keys.
        tokens = job.tokens(model) if job.cp_exchange == "ring" else job.sample_tokens(model)
        tokens = min(tokens, job.document_tokens(model))
        rates, window_rates = (
            kernel.rates(machine.device, name, job.precision, tokens, head, window, model.causal)
            for window in (0, model.window)
        )
    return transformer.Code(
        implementation=implementation,
        cross_entropy=cross_entropies()[job.loss_kernel(model)],
        attention_traffic=machine.software.attention_traffic,
        attention_flops=rates,
        window_flops=window_rates,
        quantize_kernels=implementation.quantize_kernels.get(machine.device.architecture, 1),
        transposes=machine.device.architecture in implementation.transposes,
        loss_bytes=machine.software.loss_bytes_per_logit,
    )


def _neighbours(job: Job, per_node: int) -> GroupLayout:
    """Return the placement of two adjacent stages: corresponding ranks in consecutive blocks of gpus / pp
    accelerators."""
    stride = job.gpus // job.pp
    if job.gpus <= per_node or (stride < per_node and per_node % stride == 0 and stride * 2 <= per_node):
        return GroupLayout(2, 1, 2, 1)
    return GroupLayout(2, 2, 1, max(2, -(-2 * stride // per_node)))


def _step(
    part: transformer.Segment,
    parameters: float,
    expert_parameters: float,
    dispatch: Dispatch,
    job: Job,
    cluster: Cluster,
    machine: Machine,
    how: Implementation,
) -> Step:
    tensor = place(job.tp, 1, cluster.accelerators_per_node)
    captures = how.captures and dispatch.is_flex and job.ep > 1 and job.recompute != "full"
    full = job.recompute == "full" and part.name in ("attention", "mlp")
    recomputed = part.recomputed if job.recompute == "selective" else part.forward[:0]
    if job.recompute == "pointwise":
        recomputed = part.pointwise
    if job.recompute == "operators" and part.name in ("attention", "mlp"):
        # Attention (the kernel with its own rate) is stored, and so is every other GEMM: on average half of each GEMM
        # is recomputed.
        recomputed = part.forward[part.forward[:, 5] == 0] * ([0.5] + [1] * (kernels.COLUMNS - 1))
    if full:
        recomputed = part.forward[: len(part.forward) - part.unneeded] if how.stops_recomputing_early else part.forward
    backward = part.backward
    if job.zero == 3 and job.dp > 1:
        backward = np.concatenate([backward, [kernels.memory(_flat_gradient_bytes(job) * parameters)]])
    for_weights = part.backward[part.backward[:, -1] > 0]
    rows = len(part.forward), len(part.backward)
    in_graph = part.captured
    if job.cuda_graphs and part.name in ("mlp", "dense") and not any(in_graph):
        in_graph = rows
    captured = [count - 1 if count and (captures or job.cuda_graphs) else 0 for count in in_graph]
    return Step(
        name=part.name,
        forward_s=machine.seconds(part.forward),
        backward_s=machine.seconds(backward),
        recompute_s=machine.seconds(recomputed),
        forward_flops=kernels.flops(part.forward),
        backward_flops=kernels.flops(part.backward),
        parameters=parameters,
        expert_parameters=expert_parameters,
        reduce=_reduce(part, job, cluster, tensor, machine, how),
        reduce_bytes=part.reduce_bytes,
        exchange=dispatch.cost(cluster, part) if part.exchange_bytes else FREE,
        exchange_bytes=part.exchange_bytes,
        waits=bool(part.exchange_bytes) and not dispatch.is_flex,
        context=_context(part, job, cluster, machine, how) if part.context_bytes[0] else (FREE, FREE),
        context_bytes=part.context_bytes,
        recomputes_all=full,
        forward_kernels=len(part.forward) - captured[0],
        recomputed_kernels=len(recomputed),
        backward_kernels=len(backward) - captured[1],
        looped_kernels=(part.looped[0], part.looped[1] + (part.looped[0] if full else 0)),
        is_captured=job.cuda_graphs and in_graph == rows,
        weights_s=machine.seconds(for_weights),
        weights_flops=kernels.flops(for_weights),
    )


def _reduce(
    part: transformer.Segment, job: Job, cluster: Cluster, tensor: GroupLayout, machine: Machine, how: Implementation
) -> Cost:
    """Return the exposed tensor-parallel communication of a part, in one direction. Operands of linear layers are
    quantized before they are gathered, where they have one scale after an all-reduce of their maximum
    (TransformerEngine, pytorch/module/layernorm_linear.py; torchao, float8_tensor_parallel.py); the tokens that ranks
    with parts of the same experts gather are not."""
    size_bytes = part.reduce_bytes
    if not size_bytes:
        return FREE
    if not job.sequence_parallel:
        return cost(cluster, "all_reduce", size_bytes, tensor)
    scatter = cost(cluster, "reduce_scatter", size_bytes, tensor)
    is_quantized = job.precision in QUANTIZED_BYTES and not part.exchange_bytes
    narrow = QUANTIZED_BYTES[job.precision] / job.element_bytes if is_quantized else 1.0
    both = scatter.plus(cost(cluster, "all_gather", narrow * size_bytes, tensor))
    scale = cost(cluster, "all_reduce", SCALE_BYTES, tensor) if is_quantized and job.precision in SCALED_WHOLE else FREE
    if not job.async_tp:
        return both.plus(scale)
    # In as many pieces as ranks; the transfer of a piece overlaps with the next piece's GEMM (Wang et al., ASPLOS
    # 2023).
    products = part.forward[(part.forward[:, 1] > 0) & (part.forward[:, 5] == 0)]
    hidden_s = min(both.seconds, machine.seconds(products)) * (1 - 1 / job.tp) * how.async_share
    return Cost(both.seconds - hidden_s + scale.seconds)


def _context(
    part: transformer.Segment, job: Job, cluster: Cluster, machine: Machine, how: Implementation
) -> tuple[Cost, Cost]:
    """Context-parallel communication not hidden by attention: forward, backward. A ring forwards keys and values while
    attention works on those present, so that only the excess over attention is exposed; the backward ring also carries
    their gradients. If all keys are gathered at once, only attention on the rank's own keys hides it. All-to-alls
    before and after attention are fully exposed."""
    where = place(job.cp, job.tp, cluster.accelerators_per_node)
    if job.cp_exchange == "all-to-all":
        exchanged = cost(cluster, "all_to_all", part.context_bytes[0], where)
        return exchanged, exchanged
    is_core = np.isin(part.forward[:, 1:4], part.recomputed[:, 1:4]).all(axis=1) & (part.forward[:, 1] > 0)
    hides = {"all": 1 - 1 / job.cp, "first": 1 / job.cp, "none": 0.0}[how.context_hides]
    core_s = machine.seconds(part.forward[is_core]) * hides
    costs = []
    for times, handed_bytes in zip((1.0, 2.0), part.context_bytes, strict=True):
        handed = cost(cluster, "all_gather", handed_bytes * job.cp, where)
        costs.append(Cost(max(handed.fixed_s, handed.seconds - times * core_s)))
    return costs[0], costs[1]


def _flat_gradient_bytes(job: Job) -> float:
    """Memory traffic per parameter of a unit between its backward pass and its reduce-scatter: concatenating the views'
    gradients into the flat one, casting to the type on the wire, dividing by the number of ranks
    (torch/distributed/fsdp/_flat_param.py; _runtime_utils.py, _post_backward_hook)."""
    weight, wire = job.element_bytes, job.gradient_bytes
    return 2 * weight + (weight + wire if wire != weight else 0) + 2 * wire


def _stage(steps: list[Step], job: Job, constants: Constants) -> Stage:
    """Combine device and host time of one micro-batch."""
    device, host = np.array([_device_s(steps, way) for way in (0, 1)]), _host_s(steps, job, constants)
    if any(step.waits for step in steps):
        # Forward, the host waits in every layer, so that delayed launches there don't catch up in backward.
        both = sum(_together_s(*times, constants.overlap_exponent) for times in zip(device, host, strict=True))
    else:
        both = _together_s(device.sum(), host.sum(), constants.overlap_exponent)
    compute = sum(step.compute_s for step in steps)
    return Stage(tuple(steps), float(device.sum()), 1.0 + (both - device.sum()) / compute if compute else 1.0)


def _device_s(steps: list[Step], way: int) -> float:
    """Device time of one micro-batch: forward (`way` 0), or backward including recomputation (1)."""
    seconds = 0.0
    for step in steps:
        seconds += step.backward_s + step.recompute_s if way else step.forward_s
        again = way and step.recomputes_all
        seconds += (2 if again else 1) * (step.reduce.seconds + 2 * step.exchange.seconds)
        seconds += step.context[way].seconds + (step.context[0].seconds if again else 0.0)
    return seconds


def _host_s(steps: list[Step], job: Job, constants: Constants) -> np.ndarray:
    """Host time to launch one micro-batch's kernels and collectives, float64 (2,): forward, and backward including
    recomputation."""
    times = np.array([[1, 2 if step.recomputes_all else 1] for step in steps])
    collectives = [0 if step.is_captured else (step.reduce_bytes > 0) + 2 * (step.exchange_bytes > 0) for step in steps]
    host = constants.launch_collective_s * (2 if job.sequence_parallel else 1) * (times.T @ collectives)
    host += constants.launch_loop_s * np.sum([step.looped_kernels for step in steps], axis=0)
    host[0] += constants.launch_forward_s * sum(step.forward_kernels for step in steps)
    host[1] += constants.launch_forward_s * sum(step.recomputed_kernels for step in steps)
    host[1] += constants.launch_backward_s * sum(step.backward_kernels for step in steps)
    return host + (constants.pipeline_hand_over_s if job.pp > 1 else 0.0)


def _together_s(device: float, host: float, exponent: float) -> float:
    """Combined duration of device work and the host's launches, which overlap."""
    longer, shorter = max(device, host), min(device, host)
    ratio = shorter / longer if longer else 0.0  # of the ratio, as powers of seconds may overflow
    return longer * (1 + ratio**exponent) ** (1 / exponent)


def _optimizer_s(stage: Stage, model: Model, job: Job, machine: Machine) -> float:
    each = implementations()[job.implemented_by(model)].optimizer_bytes[job.optimizer]
    if job.optimizer_kernels:
        each = 4.0 * UPDATED_VALUES[job.optimizer_kernels][job.optimizer]
    each *= job.updated_bytes / 4.0
    experts = stage.expert_parameters
    own = job.sharded(stage.parameters - experts, experts) if job.zero else stage.parameters
    return machine.seconds(np.array([kernels.memory(each * own)]))


def _layer_steps(model: LayerTable, job: Job, cluster: Cluster) -> list[Step]:
    """Return the steps of a layer table. Without measured times, a layer is a single GEMM with its FLOPs, and moves its
    activations twice forward, four times backward."""
    constants, device = cluster.software, cluster.device
    peak = device.sustained(job.precision, constants.gemm_efficiency)
    rate = device.memory_bytes_per_s * constants.memory_efficiency
    steps = []
    for i, name in enumerate(model.layer):
        flops, parameters = float(model.flops_of[i]) * job.micro_batch, float(model.parameters_of[i])
        if model.forward_s is not None and model.backward_s is not None:
            forward, backward, launches = float(model.forward_s[i]), float(model.backward_s[i]), 0
        else:
            moved = job.element_bytes * (2.0 * float(model.elements_of[i]) * job.micro_batch + parameters)
            launches = int(model.kernels_of[i])
            if job.fuse and not flops:  # normalization, activations, additions: fusion leaves their memory traffic
                launches = min(launches, 1)
            forward = max(flops / peak, moved / rate) + launches * constants.kernel_s
            backward = max(2 * flops / peak, 2 * moved / rate) + 2 * launches * constants.kernel_s
        recomputed_s = forward if job.recompute == "full" else 0.0
        steps.append(
            Step(
                name=name,
                forward_s=forward,
                backward_s=backward,
                recompute_s=recomputed_s,
                forward_flops=flops,
                backward_flops=2 * flops,
                parameters=parameters,
                forward_kernels=launches,
                recomputed_kernels=launches if recomputed_s else 0,
                backward_kernels=2 * launches,
                density=float(model.sparse_of[i]),
            )
        )
    return steps


def _assumptions(model: Model, job: Job, cluster: Cluster) -> list[str]:
    """Return the assumptions to report with the result."""
    lines = [
        f"{model.title}: {model.source}",
        f"{cluster.title}; {cluster.between.title}: {cluster.between.source}",
        f"inside a node: {cluster.inside.title}: {cluster.inside.source}",
        "ranks are numbered tensor-parallel first, then data-parallel, then by stage (Megatron-LM)",
        f"run by {implementations()[job.implemented_by(model)].title}; constants are fitted "
        "(switchml emulate list constants)",
    ]
    if isinstance(model, Transformer):
        lines.append(_named_kernels(model, job, cluster.device))
    if job.dp > 1 and job.zero < 3:
        parameters = job.bucket_parameters(model)
        size = bytes_text(parameters * job.gradient_bytes)
        kind = f"gradients of {job.gradient_bytes} bytes each are reduced"
        lines.append(f"{kind} in buckets of {parameters / 1e6:,.1f}M parameters, {size}")
    if job.optimizer_kernels:
        lines.append(f"optimizer: {job.optimizer} with torch.optim's {job.optimizer_kernels} kernels")
    if not job.master_weights and job.element_bytes < 4:
        lines.append("weights, gradients and optimizer states in half precision, without fp32 copies")
    if isinstance(model, Transformer) and model.experts > 1:
        dispatch = f", {Dispatch.of(model, job, cluster).title(job)}" if job.ep > 1 else ""
        lines.append("tokens spread over experts evenly" + dispatch)
    if isinstance(model, LayerTable) and model.forward_s is None:
        lines.append("a layer's time is the larger of its FLOPs at sustained peak and its activations at memory rate")
    if job.allreduce == "auto":
        lines.append("all-reduce: the fastest of ring, tree and NVLink SHARP for each size, as NCCL's tuner intends")
    if not cluster.accelerator.startswith("a100"):
        lines.append(f"most constants were fitted on A100; on {cluster.device.title} its data differs")
    return lines


def _named_kernels(model: Transformer, job: Job, device: Accelerator) -> str:
    """Name the attention and loss kernels, and say where an unfused kernel replaces a fused one."""
    attention = "unfused, scores in memory"
    if job.flash(model):
        attention = attention_kernel(_fused_attention(model, job, device), device).title
    elif job.attention_kernel(model) != UNFUSED:
        multiple = implementations()[job.implemented_by(model)].head_multiple
        attention += f" (fused kernels take heads that are multiples of {multiple}, not {model.head})"
    return f"attention: {attention}; loss: {cross_entropies()[job.loss_kernel(model)].title}"
