"""Trains a small model with DDP in several emulated worlds, one after the other, and prints losses and parameters of
each as JSON."""

import hashlib
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 12


def train(wrap, sleep_s: float = 0.0) -> dict:
    torch.manual_seed(0)
    model = wrap(nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(1 + (dist.get_rank() if dist.is_initialized() else 0))
    inputs = torch.randn(32, 8)
    targets, losses = inputs.sum(dim=1, keepdim=True), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        time.sleep(sleep_s)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    return {"losses": losses, "parameters": hashlib.sha256(flat.numpy().tobytes()).hexdigest()}


def emulated(sleep_s: float = 0.0, **variables) -> dict:
    for name in [name for name in os.environ if name.startswith("SWITCHML_EMULATED_")]:
        del os.environ[name]
    for name, value in {"world": 4, "clock": "virtual", "quiet": 1, **variables}.items():
        os.environ[f"SWITCHML_EMULATED_{name.upper()}"] = str(value)
    store = dist.HashStore()
    dist.init_process_group("switchml-emulated", store=store, rank=0, world_size=1)
    assert dist.get_world_size() == int(os.environ["SWITCHML_EMULATED_WORLD"])
    found = train(DistributedDataParallel, sleep_s)
    dist.destroy_process_group()
    return found


if __name__ == "__main__":
    worlds = json.loads(sys.argv[1])
    found = {"single": train(lambda model: model)}
    found |= {name: emulated(**variables) for name, variables in worlds.items()}
    print(json.dumps(found))
