"""How fully sharded data parallelism (ZeRO 3) deals with weights, as torch's FSDP does it: a unit of layers is gathered
as a whole before it runs and freed afterwards, its gradients are reduce-scattered as a whole.
"""

from dataclasses import dataclass

from emulator.ranges import Range, Ranged, number

MIN_UNIT_PARAMETERS = 100_000_000
"""Of a unit of a network that is no transformer: torch's size_based_auto_wrap_policy, min_num_params."""


@dataclass(frozen=True)
class Sharding(Ranged):
    """FSDP's settings (torch.distributed.fsdp). The reduced gradients' type on the wire is the job's
    `gradient_bytes`."""

    unit_layers: int = number(Range(1, 10_000), 1)
    """Transformer layers in a unit. Embedding, last norm and projection are the root unit, which stays gathered
    from the start of forward to the end of backward."""
    unit_parameters: float = number(Range(0, 1e15), 0.0)
    """Close a unit once it has so many parameters, in place of a number of layers; 0: by layers."""
    prefetch: int = number(Range(0, 10_000), 1)
    """Units gathered ahead of the one that runs: FSDP's limit of two in flight is 1."""
    reshard_after_forward: bool = True
    """Free weights after forward and gather them again (FULL_SHARD); False: keep them until backward is over
    (SHARD_GRAD_OP)."""
    group: int = number(Range(0, 1_000_000), 0)
    """Ranks that hold one copy together, of consecutive data-parallel ranks; copies are all-reduced (HYBRID_SHARD).
    0: all of them."""
    gather_bytes: float = number(Range(0, 4), 0.0)
    """Of a gathered weight on the wire: 1 for float8; 0: as it is computed with."""
    reduce_each: bool = True
    """Reduce-scatter after every micro-batch; False: after the last one (no_sync)."""
