"""Rank numbering and process groups for models whose stages all have the same number of ranks: rank = stage * replicas
+ replica, as in the emulator. A pipeline's ranks exchange micro-batches over Gloo, which has point-to-point messages;
ranks of one stage sum gradients over the backend of the default group."""

from dataclasses import dataclass

import torch.distributed as dist

from switchml.errors import ConfigError


@dataclass(frozen=True)
class PipelineGroups:
    """This rank's position: `stage` of `stages`, `replica` of `replicas`."""

    stage: int
    stages: int
    replica: int
    replicas: int
    messages: dist.ProcessGroup
    """Group of the ranks of this pipeline, by stage."""
    data: dist.ProcessGroup | None
    """Group of the ranks with the same stage, by replica; None if there is only one replica."""


def pipeline_groups(stages: int) -> PipelineGroups:
    """Create groups of the default process group's ranks; all of them must call this.

    Raises ConfigError if they cannot be divided by `stages`."""
    size, rank = dist.get_world_size(), dist.get_rank()
    if stages < 1 or size % stages:
        raise ConfigError(f"{stages} stages for {size} ranks: every stage needs as many ranks")
    replicas = size // stages
    stage, replica = divmod(rank, replicas)
    # Every rank creates every group, as torch requires.
    pipelines = [dist.new_group([s * replicas + i for s in range(stages)], backend="gloo") for i in range(replicas)]
    data = (
        [dist.new_group([s * replicas + i for i in range(replicas)]) for s in range(stages)] if replicas > 1 else None
    )
    return PipelineGroups(stage, stages, replica, replicas, pipelines[replica], data[stage] if data else None)
