"""One rank of a job whose store is the test's: sums in the default group and in a sub-group, and leaves."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

rank, size, port = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "STORE_PORT"))
timeout = timedelta(seconds=float(os.environ["PATIENCE_S"]))
store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timeout)
dist.init_process_group("switchml", store=store, rank=rank, world_size=size, timeout=timeout)
ones = torch.ones(8)
dist.all_reduce(ones)
group = dist.new_group(list(range(size)))
dist.all_reduce(ones, group=group)
assert ones.tolist() == [size**2] * 8
dist.destroy_process_group()
