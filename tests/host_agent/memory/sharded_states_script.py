"""Run by memory/test_states.py in two processes, which share parameters (FSDP2): prints whether training that stops, is
saved and goes on in a new optimizer has the bits of training that doesn't stop."""

import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

from host_agent.memory import OffloadedAdam

RANK = int(os.environ["RANK"])
torch.set_num_threads(1)


def start(dtype: torch.dtype, kind: type = OffloadedAdam) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(9, 13), nn.Tanh(), nn.Linear(13, 7)).to(dtype)  # shards of 7 and 6, of 4 and 3
    fully_shard(model[0])
    fully_shard(model)
    return model, kind(model.parameters())


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> torch.Tensor:
    for step in steps:
        x = torch.randn(4, 9, generator=torch.Generator().manual_seed(10 * step + RANK))
        optimizer.zero_grad()
        model(x.to(next(model.parameters()).dtype)).square().mean().backward()
        optimizer.step()
    return torch.cat([p.full_tensor().detach().reshape(-1) for p in model.parameters()])


def goes_on(dtype: torch.dtype, options: StateDictOptions, kind: type = OffloadedAdam) -> bool:
    """In an optimizer of `kind`, which set_state_dict first takes a step with."""
    model, optimizer = start(dtype)
    train(model, optimizer, range(2))
    saved = tree_map_only(torch.Tensor, torch.clone, get_state_dict(model, optimizer, options=options))
    model, optimizer = start(dtype, kind)
    set_state_dict(model, optimizer, model_state_dict=saved[0], optim_state_dict=saved[1], options=options)
    return torch.equal(train(model, optimizer, range(2, 4)), train(*start(dtype), range(4)))


def parts(dtype: torch.dtype) -> bool:
    """Whether a checkpoint has each rank's part of every state, as it has of the parameter."""
    states = get_optimizer_state_dict(*start(dtype))["state"]
    return all(isinstance(each, DTensor) for state in states.values() for name, each in state.items() if name != "step")


dist.init_process_group("gloo", init_method=os.environ["RENDEZVOUS"], rank=RANK, world_size=2)
sharded, full = StateDictOptions(), StateDictOptions(full_state_dict=True)
right = {
    "parts": parts(torch.bfloat16),
    "sharded bfloat16": goes_on(torch.bfloat16, sharded),
    "sharded float32": goes_on(torch.float32, sharded),
    "full bfloat16": goes_on(torch.bfloat16, full),
    "into AdamW": goes_on(torch.float32, sharded, torch.optim.AdamW),
}
dist.destroy_process_group()
print(json.dumps(right))
