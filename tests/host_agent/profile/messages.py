"""Three ranks over Gloo that communicate in all kinds of ways (run by `ranks.run_ranks`): messages.py FOLDER. Captured
twice, into FOLDER/plain and, with shapes of all operators' tensors, FOLDER/shapes."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from host_agent.profile import switchml_profile

torch.set_num_threads(1)
rank = int(os.environ["RANK"])
dist.init_process_group(
    "gloo", init_method=os.environ["RENDEZVOUS"], rank=rank, world_size=int(os.environ["WORLD_SIZE"])
)
few = dist.new_group([0, 1])
numbers, halves = torch.ones(10), torch.ones(6, dtype=torch.float16)


def iteration() -> None:
    dist.all_reduce(numbers)
    dist.broadcast(halves.view(2, 3), 0)
    dist.all_gather([torch.empty(10) for _ in range(3)], numbers)
    if rank < 2:
        dist.all_reduce(numbers[:3], group=few)
    if rank == 0:
        dist.send(numbers, 1)
    elif rank == 1:
        dist.irecv(numbers, 0).wait()
    dist.barrier()


for name in ("plain", "shapes"):
    with switchml_profile(
        Path(sys.argv[1], name), skip=2, steps=2, execution_trace=False, by_step=True, shapes=name == "shapes"
    ) as profile:
        for _ in range(5):
            iteration()
            profile.step()
dist.barrier()  # else ranks of Gloo now and then abort at their exit ("terminate called without …")
dist.destroy_process_group()
