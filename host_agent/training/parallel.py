"""Parallelism of the trained model: each rank has all of it and sums gradients (DDP), or a shard of each layer, with
all-gathers of parameters and reduce-scatters of gradients (FSDP, torch's `fully_shard`), or one stage of it, through
which micro-batches pass (a pipeline, host_agent/pipeline)."""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

from host_agent.training.batches import Batch
from host_agent.training.model import MODELS, stages_of

DDP, FSDP = "ddp", "fsdp"
KINDS = (DDP, FSDP)


class SharedModel:
    """One of MODELS on the default process group. `trained`: module for the forward pass; `parameters`: for the
    optimizer."""

    def __init__(self, kind: str, ddp_arguments: dict[str, Any], model: str = "cnn"):
        self._net = MODELS[model]()
        self.trained: nn.Module = self._net
        assert dist.group.WORLD is not None
        self.group: dist.ProcessGroup = dist.group.WORLD
        """Process group over which gradients are summed."""
        if kind == DDP:
            self.trained = nn.parallel.DistributedDataParallel(self._net, **ddp_arguments)
        else:
            from torch.distributed.device_mesh import DeviceMesh
            from torch.distributed.fsdp import fully_shard

            mesh = DeviceMesh.from_group(self.group, "cpu")
            for layer in self._net.get_submodule("layers").children():
                if any(True for _ in layer.parameters()):
                    fully_shard(layer, mesh=mesh)
            fully_shard(self._net, mesh=mesh)
        self.parameters = list(self.trained.parameters())

    def backward(self, batch: Batch) -> float:
        """Compute the gradients of a batch; returns its loss."""
        loss = functional.cross_entropy(self.trained(batch.images), batch.labels) * batch.weight
        loss.backward()
        return loss.item()

    def whole(self) -> nn.Module:
        """The model with all its parameters. With FSDP a copy, for which all ranks must call this."""
        if isinstance(self.trained, nn.parallel.DistributedDataParallel):
            return self._net
        copy = type(self._net)()
        with torch.no_grad():
            for mine, whole in zip(self.parameters, copy.parameters(), strict=True):
                whole.copy_(mine.full_tensor() if isinstance(mine, DTensor) else mine)
        copy.load_state_dict(dict(self._net.named_buffers()), strict=False)
        return copy


class PipelinedModel:
    """One of MODELS in `stages` stages, each with the same number of ranks. `batch_size`: images per rank in a step;
    those of a pipeline's ranks are one batch, in up to four micro-batches per stage."""

    def __init__(self, stages: int, batch_size: int, model: str = "cnn"):
        from host_agent.pipeline import Pipeline, pipeline_groups

        self._net = MODELS[model]()
        self._groups = pipeline_groups(stages)
        self._parts = stages_of(self._net, stages)
        count = stages * math.gcd(batch_size, 4)
        self._pipeline = Pipeline(self._parts, count, nn.CrossEntropyLoss(), groups=self._groups)
        self.trained = self._pipeline.module
        self.parameters = list(self.trained.parameters())
        assert dist.group.WORLD is not None
        self.group: dist.ProcessGroup = self._groups.data or dist.group.WORLD

    def backward(self, batch: Batch) -> float:
        """Compute the gradients of a pipeline's batch; returns its loss, on all its ranks."""
        loss = self._pipeline.step(batch.images, target=batch.labels)
        loss = torch.zeros(()) if loss is None else loss
        dist.broadcast(loss, group=self._groups.messages, group_src=self._groups.stages - 1)
        return loss.item()

    def whole(self) -> nn.Module:
        """The model with all its parameters; all ranks must call this."""
        with torch.no_grad():
            for stage, part in enumerate(self._parts):
                for tensor in (*part.parameters(), *part.buffers()):
                    dist.broadcast(tensor, src=stage * self._groups.replicas)
        return self._net
