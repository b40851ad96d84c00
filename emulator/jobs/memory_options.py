"""Ways to need less memory than `emulator/workload/memory.py` says, and what they cost in time: optimizer states on
the host (AxoNN), pruned weights (SAMO), compressed activations (COMET). The formulas are in `workload/offload.py`;
here they change a job's plan and its memory.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from emulator.jobs.costing import OPTIMIZER_BYTES, Plan
from emulator.workload import offload
from emulator.workload.memory import Memory
from switchml.errors import ConfigError


@dataclass(frozen=True)
class MemoryOptions:
    """Ways to need less memory."""

    offload_bucket: float = 0.0
    """Parameters in a bucket of optimizer states that comes from the host, is updated and goes back; 0: all stay on
    the device."""
    pruned: float = 0.0
    """Share of weights that is pruned; states and gradients of the others are kept."""
    activation_ratio: float = 1.0
    """How many times smaller compressed activations are; 1: they are not compressed."""
    activation_bytes_per_s: float = 100e9
    """At which they are compressed, and restored. Error-bounded compressors on A100: SZx 260 and 450 GB/s (Yu et al.,
    HPDC 2022), cuSZ 60 to 100."""

    def __post_init__(self) -> None:
        if self.offload_bucket < 0:
            raise ConfigError(f"offload-bucket is {self.offload_bucket}; expected at least 0 parameters")
        if not 0 <= self.pruned < 1:
            raise ConfigError(f"pruned is {self.pruned}; expected a share from 0 to below 1")
        if not self.activation_ratio >= 1 or not self.activation_bytes_per_s > 0:
            raise ConfigError(
                f"activations compressed {self.activation_ratio} times; expected at least 1, at a positive rate"
            )

    def memory(self, needed: Memory, plan: Plan) -> Memory:
        """What the fullest accelerator holds with them."""
        job = plan.job
        if (self.offload_bucket or self.pruned) and (job.zero or job.optimizer != "adam"):
            raise ConfigError(
                "offload-bucket and pruned describe Adam with all states on each rank: take zero 0, optimizer adam"
            )
        if self.offload_bucket and self.pruned:
            raise ConfigError("take offload-bucket or pruned, not both: no publication combines them")
        parameters = needed.weights / 2.0
        if self.offload_bucket:
            states = offload.offload_bytes(parameters, self.offload_bucket) - 4.0 * parameters
            needed = dataclasses.replace(needed, gradients=2.0 * parameters, optimizer=states)
        if self.pruned:
            states = offload.samo_bytes(parameters, self.pruned) - 2.0 * parameters
            needed = dataclasses.replace(needed, gradients=0.0, optimizer=states)
        unpruned = offload.comet_bytes(needed.activations, self.activation_ratio)
        return dataclasses.replace(needed, activations=unpruned)

    def apply(self, plan: Plan, needed: Memory) -> Plan:
        """The plan with what they cost; `needed` is the memory without them."""
        device, software = plan.cluster.device, plan.cluster.software
        rate = device.memory_bytes_per_s * software.memory_efficiency / OPTIMIZER_BYTES[plan.job.optimizer]
        if self.offload_bucket:
            steps = tuple(
                offload.offload_step(
                    stage.parameters,
                    self.offload_bucket,
                    copy_bytes_per_s=plan.cluster.host_link_bytes_per_s,
                    adam_parameters_per_s=rate,
                ).step_s
                for stage in plan.stages
            )
            plan = dataclasses.replace(plan, optimizer_s=steps)
        if self.pruned:
            unpruned = offload.samo_gradient_share(self.pruned)
            plan = dataclasses.replace(
                plan, unpruned_share=unpruned, optimizer_s=tuple(unpruned * s for s in plan.optimizer_s)
            )
        if self.activation_ratio > 1:
            if plan.job.schedule == "axonn" and plan.job.pp > 1:
                raise ConfigError(
                    "compressed activations are not modelled on message-driven stages; take schedule 1f1b"
                )
            from emulator.workload.memory import micro_batch_activations

            each = tuple(
                micro_batch_activations(plan.model, plan.job, stage) / self.activation_bytes_per_s
                for stage in range(len(plan.stages))
            )
            plan = dataclasses.replace(plan, packing_s=each)
        return plan

    def assumptions(self) -> list[str]:
        """For the list of assumptions."""
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
