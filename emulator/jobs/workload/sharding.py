"""Fully sharded data parallelism (ZeRO 3) as in torch's FSDP: a unit of layers is gathered as a whole before it runs
and freed afterwards, and its gradients are reduce-scattered as a whole.
"""

from dataclasses import dataclass

from emulator.ranges import Range, Ranged, number

MIN_UNIT_PARAMETERS = 100_000_000
"""Minimum unit of a network other than a transformer: torch's size_based_auto_wrap_policy, min_num_params."""


@dataclass(frozen=True)
class Sharding(Ranged):
    """FSDP's settings (torch.distributed.fsdp). The reduced gradients' type on the wire is the job's
    `gradient_bytes`."""

    unit_layers: int = number(Range(1, 10_000), 1)
    """Transformer layers per unit. Embedding, final norm and projection are the root unit, which stays gathered from
    the start of forward to the end of backward."""
    unit_parameters: float = number(Range(0, 1e15), 0.0)
    """Minimum parameters per unit, instead of a number of layers; 0: by layers."""
    prefetch: int = number(Range(0, 10_000), 1)
    """Units gathered ahead of the running one: FSDP's limit of two in flight is 1."""
    reshard_after_forward: bool = True
    """Whether weights are freed after forward and gathered again (FULL_SHARD); False: kept until the end of backward
    (SHARD_GRAD_OP)."""
    group: int = number(Range(0, 1_000_000), 0)
    """Number of consecutive data-parallel ranks that together hold one copy; copies are all-reduced (HYBRID_SHARD). 0:
    all ranks."""
    gather_bytes: float = number(Range(0, 4), 0.0)
    """Bytes of a gathered weight on the wire: 1 for float8; 0: those of the compute precision."""
    reduce_each: bool = True
    """Whether gradients are reduce-scattered after every micro-batch; False: after the last one (no_sync)."""
