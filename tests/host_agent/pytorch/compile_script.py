"""Run by pytorch/test_backend.py in two processes: torch.compile of DDP modules, of whole steps, of collectives."""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from host_agent.pytorch import CodecState, codec_hook
from tests.support.group import RANK, init

torch.set_num_threads(1)


def new_module(**options) -> DistributedDataParallel:
    """Its batch norm has buffers, which DDP broadcasts before each forward pass."""
    torch.manual_seed(1)
    layers = [torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 3)]
    return DistributedDataParallel(torch.nn.Sequential(*layers), **options)


def train(module: DistributedDataParallel, loss_of) -> torch.Tensor:
    """Three steps. Returns the losses and the sum of the parameters."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    losses = []
    for step in range(3):
        optimizer.zero_grad()
        loss = loss_of(torch.randn(6, 8, generator=torch.Generator().manual_seed(10 * step + RANK)))
        if loss.requires_grad:
            loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack([*losses, sum(parameter.detach().sum() for parameter in module.parameters())])


def trained(backend: str | None, hook=None, state=None, whole_step: bool = False, **options) -> torch.Tensor:
    """`train` with the module, or all of a step with its backward pass, compiled by `backend`."""
    module = new_module(**options)
    if hook is not None:
        module.register_comm_hook(state, hook)
    forward = torch.compile(module, backend=backend) if backend and not whole_step else module

    def step(batch: torch.Tensor) -> torch.Tensor:
        loss = forward(batch).square().mean()
        if whole_step:
            loss.backward()
        return loss.detach() if whole_step else loss

    return train(module, torch.compile(step, backend=backend) if whole_step else step)


def compiled_modules():
    plain = trained(None)
    for options in ({}, {"static_graph": True}, {"gradient_as_bucket_view": True}):
        torch.testing.assert_close(trained("aot_eager", **options), plain)
    torch.testing.assert_close(trained("inductor"), plain, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(trained("aot_eager", default_hooks.fp16_compress_hook), plain, rtol=1e-2, atol=1e-2)


def compiled_steps():
    """The backward pass runs inside, and so do the hooks."""
    plain = trained(None)
    torch.testing.assert_close(trained("aot_eager", whole_step=True), plain)
    state = CodecState("fp16")
    torch.testing.assert_close(trained("aot_eager", codec_hook, state, whole_step=True), plain, rtol=1e-2, atol=1e-2)


def compiled_collectives():
    @torch.compile(backend="aot_eager", fullgraph=True)
    def twice_and_one(values):
        doubled = 2 * values
        dist.all_reduce(doubled)
        return doubled + 1

    calls = dist.group.WORLD.agent.stats()["calls"]
    assert twice_and_one(torch.full((3,), 1.0 + RANK)).tolist() == [7.0] * 3
    assert dist.group.WORLD.agent.stats()["calls"] == calls + 1


if __name__ == "__main__":
    init(seconds=120)
    compiled_modules()
    compiled_steps()
    compiled_collectives()
    dist.destroy_process_group()
