"""Groups one after the other at one address, each destroyed or aborted: what `MODE ROUNDS` in the command line say."""

import os
import sys
from datetime import timedelta

import psutil
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

BACKENDS = ("switchml", "cpu:switchml,cuda:switchml", "cpu:gloo,cuda:switchml", "cuda:switchml,cpu:gloo")

mode, rounds = sys.argv[1], int(sys.argv[2])
aggregators: set[int] = set()
for number in range(rounds):
    backend = BACKENDS[number % len(BACKENDS) if mode == "maps" else 0]
    dist.init_process_group(backend, timeout=timedelta(seconds=60))
    value = torch.full((3,), dist.get_rank() + number + 1.0)
    dist.all_reduce(value)
    size = dist.get_world_size()
    assert value.tolist() == [size * number + size * (size + 1) / 2] * 3, value
    aggregators |= {child.pid for child in psutil.Process().children()}
    if mode == "abort":
        c10d._abort_process_group()
    else:
        dist.destroy_process_group()
assert len(aggregators) == (os.environ["RANK"] == "0"), "rank 0 keeps its aggregator for the next group"
print("rounds", rounds, *aggregators)
