"""Run by pytorch/test_backend.py in two processes that share a GPU: sums of CUDA tensors, in stream order."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", 0)
torch.cuda.set_device(device)
dist.init_process_group("switchml", init_method=os.environ["RENDEZVOUS"], rank=RANK, world_size=SIZE)

for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64):
    for numel in (0, 1, 70_001):
        # The value comes from a kernel that is still running when all_reduce is called, and is used by one right after
        # it.
        tensor = torch.zeros(numel, device=device, dtype=dtype)
        torch.cuda._sleep(10_000_000)
        tensor += RANK + 1
        dist.all_reduce(tensor)
        tensor += 1
        assert torch.equal(tensor.cpu(), torch.full((numel,), SIZE * (SIZE + 1) // 2 + 1, dtype=dtype)), (dtype, numel)

on_gpu, on_cpu = torch.ones(1000, device=device), torch.ones(1000)
works = [dist.all_reduce(tensor, async_op=True) for _ in range(10) for tensor in (on_gpu, on_cpu)]
for work in works:
    work.wait()
rows = torch.tensor([[RANK, 5000, 70]], device=device)
sparse = torch.sparse_coo_tensor(rows, torch.full((3, 4), RANK + 1.0, device=device), (9000, 4))
torch.cuda._sleep(10_000_000)
wanted = SIZE * (SIZE + 1) / 2
for _ in range(3):  # between dense ones, in one order on all ranks
    summed, dense = sparse.clone(), torch.ones(1000, device=device)
    works = [dist.all_reduce(tensor, async_op=True) for tensor in (dense, summed, dense)]
    for work in works:
        work.wait()
    assert summed.is_cuda and summed.is_coalesced() and summed.indices().shape[1] == SIZE + 2
    assert summed.to_dense()[5000].tolist() == [wanted] * 4 and summed.to_dense()[0].tolist() == [1.0] * 4

transposed = torch.arange(600.0, device=device).reshape(20, 30).t()
dist.all_reduce(transposed)
assert torch.equal(transposed.cpu(), SIZE * torch.arange(600.0).reshape(20, 30).t())
future = dist.all_reduce(torch.ones(5000, device=device), async_op=True).get_future()
assert future.wait()[0].sum().item() == SIZE * 5000

torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(300, 300).to(device))
for _ in range(3):
    model.zero_grad()
    model(torch.full((4, 300), RANK + 1.0, device=device)).sum().backward()
expected = 4 * sum(rank + 1.0 for rank in range(SIZE)) / SIZE
torch.testing.assert_close(model.module.weight.grad, torch.full((300, 300), expected, device=device))
dist.destroy_process_group()
