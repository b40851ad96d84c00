"""How the ranks share the model that they train: each has all of it and sums gradients (DDP), or a part of each layer,
which all-gathers put together and reduce-scatters give gradients for (FSDP, torch's `fully_shard`)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from host_agent.training.model import MODELS

DDP, FSDP = "ddp", "fsdp"
KINDS = (DDP, FSDP)


class SharedModel:
    """One of MODELS on the default process group. `trained`: what runs forward; `parameters`: for the optimizer."""

    def __init__(self, kind: str, ddp_arguments: dict[str, Any], model: str = "cnn"):
        self._net = MODELS[model]()
        self.trained: nn.Module = self._net
        if kind == DDP:
            self.trained = nn.parallel.DistributedDataParallel(self._net, **ddp_arguments)
        else:
            from torch.distributed.device_mesh import DeviceMesh
            from torch.distributed.fsdp import fully_shard

            group = torch.distributed.group.WORLD
            assert group is not None
            mesh = DeviceMesh.from_group(group, "cpu")
            for layer in self._net.get_submodule("layers").children():
                if any(True for _ in layer.parameters()):
                    fully_shard(layer, mesh=mesh)
            fully_shard(self._net, mesh=mesh)
        self.parameters = list(self.trained.parameters())

    def whole(self) -> nn.Module:
        """The model with all its parameters. With FSDP a copy, for which all ranks must call this."""
        if isinstance(self.trained, nn.parallel.DistributedDataParallel):
            return self._net
        copy = type(self._net)()
        with torch.no_grad():
            for mine, whole in zip(self.parameters, copy.parameters(), strict=True):
                whole.copy_(mine.full_tensor() if isinstance(mine, DTensor) else mine)
        return copy
