"""Run by pytorch/test_backend.py in two processes: training whose ranks share parameters, gradients or optimizer
states, over `switchml` and over Gloo. Prints by name what differs most between the two, and the aggregator's calls."""

import json
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from tests.support.group import RANK, init

CPU = torch.device("cpu")
torch.set_num_threads(1)


def model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def losses(trained: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> list[float]:
    """Of three steps."""
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(8, 16, generator=generator), torch.randint(0, 4, (8,), generator=generator)
    curve = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(trained(x), y)
        loss.backward()
        optimizer.step()
        curve.append(loss.item())
    return curve


def ddp(group: dist.ProcessGroup) -> list[float]:
    trained = DistributedDataParallel(model(), process_group=group, bucket_cap_mb=0.001)
    return losses(trained, torch.optim.SGD(trained.parameters(), lr=0.1), RANK)


def fsdp2(group: dist.ProcessGroup) -> list[float]:
    trained = model()
    mesh = DeviceMesh.from_group(group, "cpu")
    fully_shard(trained[0], mesh=mesh)
    fully_shard(trained, mesh=mesh)
    return losses(trained, torch.optim.SGD(trained.parameters(), lr=0.1), RANK)


def fsdp2_divided(group: dist.ProcessGroup) -> list[float]:
    """FSDP2 asks for a sum of multiplied gradients, which Gloo has not."""
    trained = model()
    fully_shard(trained, mesh=DeviceMesh.from_group(group, "cpu"))
    trained.set_gradient_divide_factor(3.0)
    trained.set_force_sum_reduction_for_comms(group.name() != "switchml")
    return losses(trained, torch.optim.SGD(trained.parameters(), lr=0.1), RANK)


def fsdp1(group: dist.ProcessGroup) -> list[float]:
    trained = FullyShardedDataParallel(model(), process_group=group, device_id=CPU)
    return losses(trained, torch.optim.SGD(trained.parameters(), lr=0.1), RANK)


def zero(group: dist.ProcessGroup) -> list[float]:
    trained = DistributedDataParallel(model(), process_group=group)
    kind = torch.optim.SGD
    optimizer = ZeroRedundancyOptimizer(trained.parameters(), optimizer_class=kind, process_group=group, lr=0.1)
    return losses(trained, optimizer, RANK)


def tensor_parallel(group: dist.ProcessGroup) -> list[float]:
    mesh = DeviceMesh.from_group(group, "cpu")
    trained = parallelize_module(model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return losses(trained, torch.optim.SGD(trained.parameters(), lr=0.1), 0)


def dtensor(group: dist.ProcessGroup) -> list[float]:
    """Bytes are only moved."""
    mesh = DeviceMesh.from_group(group, "cpu")
    whole = torch.randn(12, 5, generator=torch.Generator().manual_seed(RANK))
    shards = distribute_tensor(whole, mesh, [Shard(0)])  # rank 0's
    return shards.redistribute(mesh, [Replicate()]).to_local().flatten().tolist()


def premultiplied(group: dist.ProcessGroup) -> list[float]:
    """PREMUL_SUM of every collective that has an op; on Gloo, sums of what is multiplied before. Inputs stay."""
    is_ours = group.name() == "switchml"
    op = dist.ReduceOp.PREMUL_SUM(0.25) if is_ours else dist.ReduceOp.SUM
    results = []
    for dtype in (torch.float32, torch.complex64):  # the second one is Gloo's in both
        whole = torch.arange(1, 7).to(dtype).reshape(3, 2) * (RANK + 1)

        def given(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.clone() if is_ours else tensor * 0.25

        for tensor in (given(whole), given(whole).t()):
            dist.all_reduce(tensor, op, group=group)
            results.append(tensor)
        tensor = given(whole)
        dist.reduce(tensor, 1, op, group=group)
        if RANK == 1:
            results.append(tensor)
        elif is_ours:
            assert torch.equal(tensor, whole)
        inputs, part, other = [given(whole), given(2 * whole)], torch.empty_like(whole), torch.empty_like(whole)
        dist.reduce_scatter(part, inputs, op, group=group)
        flat = torch.cat(inputs)
        dist.reduce_scatter_tensor(other, flat, op, group=group)
        if is_ours:
            assert torch.equal(flat, torch.cat([whole, 2 * whole])) and torch.equal(inputs[0], whole)
        results += [part, other]
    return [number for result in results for number in torch.view_as_real(result + 0j).flatten().tolist()]


def main() -> None:
    init()
    gloo = dist.new_group(backend="gloo")
    ours = dist.group.WORLD
    cases: list[Callable[[dist.ProcessGroup], list[float]]] = [
        ddp, fsdp2, fsdp2_divided, fsdp1, zero, tensor_parallel, dtensor, premultiplied,
    ]  # fmt: skip
    report = {}
    for case in cases:
        before = ours.agent.stats()["calls"]
        here, there = torch.tensor(case(ours)), torch.tensor(case(gloo))
        report[case.__name__] = [(here - there).abs().max().item(), ours.agent.stats()["calls"] - before]
    dist.destroy_process_group()
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()
