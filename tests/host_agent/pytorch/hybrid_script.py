"""One rank of test_hybrid.py: FSDP over two dimensions, whose outer one has the backend of the first argument."""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from host_agent.pytorch import backend as torch_backend  # noqa: F401 (registers the backend)


def main(outer: str) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=os.environ["RENDEZVOUS"], rank=rank, world_size=world)
    names = ("replicate", "shard")
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=names, backend_override={"replicate": outer})
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    source = torch.Generator().manual_seed(rank)
    for _ in range(20):
        x = torch.randn(32, 64, generator=source)
        loss = torch.nn.functional.cross_entropy(model(x), x[:, :10].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.all_reduce(loss)
    print(dist.get_backend(mesh.get_group("replicate")), loss.item() / world)
    dist.destroy_process_group()


main(sys.argv[1])
