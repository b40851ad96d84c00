"""Memory-saving options on top of `emulator/jobs/workload/memory.py`, with their cost in time, by published formulas:
optimizer states on the host in buckets (AxoNN), pruned states (SAMO), compressed activations (COMET)."""

import dataclasses
import math
from dataclasses import dataclass

from emulator.jobs.costed import CostedJob
from emulator.jobs.costing import OPTIMIZER_BYTES
from emulator.jobs.workload.memory import Memory, in_flight, micro_batch_activations, micro_batch_tensors
from emulator.ranges import RATE, Range, Ranged, number
from switchml.errors import ConfigError

DENSE_BYTES = 20.0
"""Bytes per parameter in mixed precision with Adam: weight 2, gradient 2, master weight 4, master gradient 4, moments 8
(Singh and Bhatele, IPDPS 2022, section IV-C)."""
ON_DEVICE_BYTES = 4.0
"""Half-precision weight and gradient, which stay on the device when states are offloaded."""
BUCKET_BYTES = 16.0
"""The remaining bytes, for parameters in the bucket that is being updated."""
HOST_WAY_BYTES = 12.0
"""Master weight and moments, copied in each direction per parameter of a bucket."""


@dataclass(frozen=True)
class MemoryOptions(Ranged):
    """Memory-saving options."""

    offload_bucket: float = number(Range(0, 1e15), 0.0)
    """Parameters per bucket of optimizer states, which is copied from the host, updated and copied back; 0: all states
    stay on the device."""
    pruned: float = number(Range(0, 1, "[)"), 0.0)
    """Share of pruned weights; states and gradients are stored for the others only."""
    activation_ratio: float = number(Range(1, 1e6), 1.0)
    """Compression ratio of activations; 1: not compressed."""
    activation_bytes_per_s: float = number(RATE, 100e9)
    """Rate of compression, and of decompression. Error-bounded compressors on A100: SZx 260 and 450 GB/s (Yu et al.,
    HPDC 2022), cuSZ 60 to 100."""
    activation_tensor_s: float = number(Range(0, 1e6), 0.0)
    """Overhead per compressed or decompressed tensor for hooks and calls, independent of size."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0 < self.offload_bucket < 1:
            raise ConfigError(f"offload_bucket is {self.offload_bucket:g} parameters; expected 0, or at least 1")

    def memory(self, needed: Memory, plan: CostedJob) -> Memory:
        """Return the memory use of the fullest accelerator with these options."""
        job = plan.job
        if (self.offload_bucket or self.pruned) and (job.zero or job.optimizer != "adam" or not job.master_weights):
            raise ConfigError(
                "offload-bucket and pruned describe Adam with all states on each rank, and master weights: "
                "use zero 0, optimizer adam, master-weights"
            )
        if self.offload_bucket and self.pruned:
            raise ConfigError("use offload-bucket or pruned, not both: no publication combines them")
        parameters = needed.weights / 2.0
        if self.offload_bucket:
            states = offload_bytes(parameters, self.offload_bucket) - 4.0 * parameters
            needed = dataclasses.replace(needed, gradients=2.0 * parameters, optimizer=states)
        if self.pruned:
            states = samo_bytes(parameters, self.pruned) - 2.0 * parameters
            needed = dataclasses.replace(needed, gradients=0.0, optimizer=states)
        if self.activation_ratio > 1:
            needed = dataclasses.replace(needed, activations=self._packed(needed.activations, plan))
        return needed

    def host_bytes(self, needed: Memory) -> float:
        """Optimizer states of the fullest rank in host memory; `needed`: its memory without these options."""
        return HOST_WAY_BYTES * needed.weights / 2.0 if self.offload_bucket else 0.0

    def _packed(self, activations: float, plan: CostedJob) -> float:
        """Return activations with all saved ones compressed except those of the active part; temporaries and those of
        the loss are unchanged."""
        parts = len(plan.stages[0].steps)
        kept = min(activations, micro_batch_activations(plan.model, plan.job, 0) * in_flight(plan.job, 0))
        return activations - kept + comet_bytes(kept, self.activation_ratio, 1.0 - 1.0 / max(1, parts))

    def apply(self, plan: CostedJob, needed: Memory) -> CostedJob:
        """Return the plan with the options' costs; `needed` is the memory without them."""
        device, software = plan.cluster.device, plan.cluster.software
        rate = device.memory_bytes_per_s * software.memory_efficiency / OPTIMIZER_BYTES[plan.job.optimizer]
        if self.offload_bucket:
            rates = {"copy_bytes_per_s": plan.cluster.host_link_bytes_per_s, "adam_parameters_per_s": rate}
            steps = [offload_step(stage.parameters, self.offload_bucket, **rates).step_s for stage in plan.stages]
            plan = dataclasses.replace(plan, optimizer_s=tuple(steps))
        if self.pruned:
            unpruned = samo_gradient_share(self.pruned)
            steps = [unpruned * step_s for step_s in plan.optimizer_s]
            plan = dataclasses.replace(plan, unpruned_share=unpruned, optimizer_s=tuple(steps))
        if self.activation_ratio > 1:
            if plan.job.schedule == "axonn" and plan.job.pp > 1:
                raise ConfigError("compressed activations are not modelled on message-driven stages; use schedule 1f1b")
            seconds = [
                micro_batch_activations(plan.model, plan.job, stage) / self.activation_bytes_per_s
                + micro_batch_tensors(plan.model, plan.job, stage) * self.activation_tensor_s
                for stage in range(len(plan.stages))
            ]
            plan = dataclasses.replace(plan, packing_s=tuple(seconds))
        return plan

    def assumptions(self) -> list[str]:
        """Return the options' entries in the list of assumptions."""
        lines = []
        if self.offload_bucket:
            lines.append(
                f"optimizer states on the host, in buckets of {self.offload_bucket:g} parameters (AxoNN, IPDPS 2022)"
            )
        if self.pruned:
            lines.append(f"{self.pruned:.0%} of weights pruned, products stay dense (SAMO, IPDPS 2023)")
        if self.activation_ratio > 1:
            lines.append(
                f"activations compressed {self.activation_ratio:g} times at "
                f"{self.activation_bytes_per_s / 1e9:g} GB/s each way (COMET, VLDB 2022)"
            )
        return lines


@dataclass(frozen=True)
class Offload:
    """Timing of an optimizer step with states on the host, in buckets; seconds."""

    step_s: float
    exposed_s: float
    """Time of exposed copies, which neither the update nor the all-reduce hides."""
    is_hidden: bool
    """Whether copying a bucket takes no longer than the work it overlaps with."""


def offload_bytes(parameters: float, bucket: float) -> float:
    """Bytes on the device: 4 φ + 16 · bucket (AxoNN, IPDPS 2022), instead of 20 φ."""
    if not bucket > 0:
        raise ConfigError(f"an offload bucket of {bucket} parameters; expected at least 1")
    return ON_DEVICE_BYTES * parameters + BUCKET_BYTES * min(bucket, parameters)


def offload_step(
    parameters: float,
    bucket: float,
    *,
    copy_bytes_per_s: float,
    adam_parameters_per_s: float,
    all_reduce_s: float = 0.0,
    copy_slowdown: float = 1.0,
) -> Offload:
    """Time AxoNN's pipeline: while the device updates a bucket (and all-reduces the gradients of a later one,
    `all_reduce_s` for all together), the next bucket's states are copied in and the previous one's out, concurrently,
    at `copy_bytes_per_s` each. `copy_slowdown`: factor on updates while copies run; 1 where copies use neither the
    device's cores nor their memory bandwidth."""
    if not (copy_bytes_per_s > 0 and adam_parameters_per_s > 0 and all_reduce_s >= 0 and copy_slowdown >= 1):
        raise ConfigError("offload needs rates above 0, and an all-reduce time of at least 0")
    buckets = max(1, math.ceil(parameters / bucket))
    each = parameters / buckets
    copy_s, adam_s = HOST_WAY_BYTES * each / copy_bytes_per_s, each / adam_parameters_per_s
    # Copy in, update, copy out: a pipeline whose slowest stage sets the pace.
    update_s = max(adam_s + 2 * copy_s * (1 - 1 / copy_slowdown), all_reduce_s / buckets)
    step_s = copy_s + adam_s + copy_s + (buckets - 1) * max(copy_s, update_s)
    return Offload(step_s, step_s - adam_s - (buckets - 1) * update_s, is_hidden=copy_s <= update_s)


def samo_bytes(parameters: float, sparsity: float) -> float:
    """Bytes with a share `sparsity` of weights pruned: the weight dense, all else for the remaining ones only, plus a
    32-bit index for each: 2 φ + 24 (1 − p) φ (Singh and Bhatele, IPDPS 2023)."""
    _check_share("sparsity", sparsity)
    return 2.0 * parameters + 24.0 * (1.0 - sparsity) * parameters


def samo_gradient_share(sparsity: float) -> float:
    """Share of the dense gradient's bytes that SAMO all-reduces: the remaining values; all ranks know their
    positions."""
    _check_share("sparsity", sparsity)
    return 1.0 - sparsity


def comet_bytes(activation_bytes: float, ratio: float, compressed_share: float = 1.0) -> float:
    """Size of saved activations when a share of them is compressed by `ratio` (COMET: Jin et al., VLDB 2022)."""
    if not ratio >= 1:
        raise ConfigError(f"activations compressed by {ratio}; expected a ratio of at least 1")
    _check_share("compressed share", compressed_share)
    return activation_bytes * (1.0 - compressed_share + compressed_share / ratio)


def _check_share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ConfigError(f"{name} is {value}; expected a share from 0 to 1")
