"""Run on real ranks of a world of four: every collective of torch.distributed, with what it must come to where all
absent ranks do what the real ones do. A real rank r holds r + 1. To sums absent ranks contribute the mean of that (of
one real rank 1, of two 1.5); in copies rank 2 has what real rank 0 has, rank 3 what the second real one has, if any.
"""

import os

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
real = len(os.environ["SWITCHML_EMULATED_REAL"].split(","))
assert world == 4 and int(os.environ["WORLD_SIZE"]) == 4 and int(os.environ["RANK"]) == rank
total = 4.0 if real == 1 else 6.0
held = [1.0] * 4 if real == 1 else [1.0, 2.0, 1.0, 2.0]


def mine(*shape: int) -> torch.Tensor:
    return torch.full(shape or (3,), rank + 1.0)


def check(tensor: torch.Tensor, expected) -> None:
    expected = torch.as_tensor(expected, dtype=tensor.dtype).expand_as(tensor)
    assert torch.equal(tensor, expected), (tensor, expected)


# Reductions, waited for and not

tensor = mine()
dist.all_reduce(tensor)
check(tensor, total)
tensor = mine()
dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
check(tensor, total / 4)
tensor = mine()
dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
check(tensor, float(real))
works = [(tensor := mine(5), dist.all_reduce(tensor, async_op=True)) for _ in range(3)]
for tensor, work in reversed(works):
    work.wait()
    assert work.is_completed()
    check(tensor, total)
tensor = mine()
future = dist.all_reduce(tensor, async_op=True).get_future().then(lambda done: done.value()[0] * 2)
check(future.wait(), 2 * total)
tensor = mine()
dist.reduce(tensor, dst=0)
check(tensor, total if rank == 0 else rank + 1.0)
with dist.distributed_c10d._coalescing_manager():
    tensors = [mine(), mine(2)]
    for tensor in tensors:
        dist.all_reduce(tensor)
for tensor in tensors:
    check(tensor, total)

tensor = functional.wait_tensor(functional.all_reduce(mine(), "sum", dist.group.WORLD))
check(tensor, total)

# Copies

tensor = mine()
dist.broadcast(tensor, src=0)
check(tensor, 1.0)
tensor = mine()
dist.broadcast(tensor, src=3)  # absent
check(tensor, 1.0)
outs = [torch.zeros(2) for _ in range(4)]
dist.all_gather(outs, mine(2))
check(torch.stack(outs), torch.tensor(held).reshape(4, 1))
out = torch.zeros(4, 2)
dist.all_gather_into_tensor(out, mine(2))
check(out, torch.tensor(held).reshape(4, 1))
objects = [None] * 4
dist.all_gather_object(objects, {"rank": rank})
assert [one["rank"] for one in objects] == [int(value) - 1 for value in held], objects
shared = [f"from {rank}"]
dist.broadcast_object_list(shared, src=0)
assert shared == ["from 0"]
outs = [torch.zeros(1) for _ in range(4)] if rank == 0 else None
dist.gather(mine(1), outs, dst=0)
if rank == 0:
    check(torch.cat(outs), held)
out = torch.zeros(1)
dist.scatter(out, [torch.tensor([10.0 * place]) for place in range(4)] if rank == 0 else None, src=0)
check(out, 10.0 * rank)

# Both

out = torch.zeros(2)
dist.reduce_scatter(out, [mine(2) * place for place in range(4)])
check(out, total * rank)
out = torch.zeros(2)
dist.reduce_scatter_tensor(out, mine(8))
check(out, total)
out = torch.zeros(4)
dist.all_to_all_single(out, torch.arange(4.0) + 10 * rank)
sent = torch.arange(4.0) + 10 * rank
check(out[2:], sent[2:])  # absent ranks mirror
check(out[:real], torch.arange(real) * 10.0 + rank)
outs = [torch.zeros(1 + place) for place in range(4)]
dist.all_to_all(outs, [mine(1 + place) if place >= real else mine(1 + rank) for place in range(4)])
check(outs[3], rank + 1.0)
check(outs[0], 1.0)
dist.barrier()

# From one to one

if real == 2:
    tensor = mine()
    if rank == 0:
        dist.send(tensor, dst=1)
    else:
        dist.recv(tensor, src=0)
    check(tensor, 1.0)
    other = torch.zeros(3)
    requests = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, mine(), 1 - rank), dist.P2POp(dist.irecv, other, 1 - rank)]
    )
    for request in requests:
        request.wait()
    check(other, 2.0 - rank)
dist.send(mine(), dst=3)
tensor = torch.zeros(3)
dist.recv(tensor, src=3)
check(tensor, rank + 1.0)

# Sub-groups: some of the real ranks, one absent

pair = dist.new_group([0, 2])
if rank == 0:
    assert dist.get_world_size(pair) == 2
    tensor = mine()
    dist.all_reduce(tensor, group=pair)
    check(tensor, 2.0)
everyone = dist.new_group([0, 1, 2, 3], backend="gloo")
tensor = mine()
dist.all_reduce(tensor, group=everyone)
check(tensor, total)

for wrong in (torch.eye(3).to_sparse(), torch.empty(3, device="meta")):
    try:
        dist.all_reduce(wrong)
    except TypeError as error:
        assert "dense tensors" in str(error), error
    else:
        raise AssertionError("an all-reduce of it should be refused")

print(f"rank {rank}: all right", flush=True)
if rank == 0:
    dist.destroy_process_group()  # another rank leaves it to the end of the process
