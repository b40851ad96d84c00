"""Run by pytorch/test_sparse.py in three processes: all-reduces of COO tensors over `switchml`, and DDP of an embedding
with sparse gradients, checked on each rank against dense sums and against Gloo."""

import json

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.support.group import RANK, SIZE, init

torch.set_num_threads(1)
ROWS, WIDTH = 100_000, 8


def of_rank(rank: int, dtype: torch.dtype, entries: int, shape=(ROWS, WIDTH), sparse_dims: int = 1) -> torch.Tensor:
    """Quarters, whose sums are exact; some rows come twice, some on several ranks."""
    chooser = torch.Generator().manual_seed(rank)
    indices = torch.stack([torch.randint(0, n, (entries,), generator=chooser) for n in shape[:sparse_dims]])
    values = torch.randint(-9, 10, (entries, *shape[sparse_dims:]), generator=chooser)
    values = values.to(dtype) / 4 if dtype.is_floating_point else values.to(dtype)
    return torch.sparse_coo_tensor(indices, values, shape)


def check(op, divisor: int, *arguments, **options) -> None:
    tensor = of_rank(RANK, *arguments, **options)
    wanted = sum(of_rank(rank, *arguments, **options).to_dense() for rank in range(SIZE)) / divisor
    dist.all_reduce(tensor, op=op)
    assert tensor.is_coalesced(), tensor
    assert torch.equal(tensor.to_dense(), wanted.to(tensor.dtype)), (tensor, wanted)
    union = torch.cat([of_rank(rank, *arguments, **options).coalesce().indices() for rank in range(SIZE)], 1)
    assert torch.equal(tensor.indices(), torch.unique(union, dim=1))


def coo_tensors() -> None:
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64):
        check(dist.ReduceOp.SUM, 1, dtype, 50)
    check(dist.ReduceOp.AVG, SIZE, torch.float32, 2000)
    check(dist.ReduceOp.SUM, 1, torch.float32, 0)
    check(dist.ReduceOp.SUM, 1, torch.float32, 300, shape=(40, 50, 3), sparse_dims=2)
    check(dist.ReduceOp.SUM, 1, torch.float32, 300, shape=(4000,))


def train_embedding(begun=lambda: None) -> torch.Tensor:
    """A few DDP steps of an embedding and a linear layer; the parameters afterwards. `begun` is called when DDP has
    sent the parameters to all ranks."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Embedding(ROWS, WIDTH, sparse=True), torch.nn.Linear(WIDTH, 1))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    chooser = torch.Generator().manual_seed(50 + RANK)
    begun()
    for _ in range(4):
        optimizer.zero_grad()
        rows = torch.randint(0, ROWS, (64,), generator=chooser)
        (ddp(rows) - 1).square().mean().backward()
        assert model[0].weight.grad.is_sparse
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


init("switchml", 120, "switchml")
coo_tensors()
before: dict = {}
trained = train_embedding(lambda: before.update(dist.group.WORLD.agent.stats()))
after = dist.group.WORLD.agent.stats()
dist.destroy_process_group()
init("gloo", 120, "gloo")
wanted = train_embedding()
difference = float((trained - wanted).abs().max())
dist.destroy_process_group()
print(
    json.dumps(
        {
            "difference": difference,
            "packets": after["sent"] - before["sent"],
            "streamed": after["streamed"] - before["streamed"],
            "checksum": int(trained.view(torch.int32).long().sum()),
        }
    )
)
