"""Many sub-groups at once, as many as the command line says, each with sums of its own."""

import contextlib
import os
import resource
import sys
from pathlib import Path

import torch
import torch.distributed as dist

_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, most), most))  # as on most systems
dist.init_process_group("switchml", init_method=os.environ["RENDEZVOUS"], rank=int(os.environ["RANK"]), world_size=2)
groups = [dist.new_group([0, 1]) for _ in range(int(sys.argv[1]))]
for number, group in enumerate(groups):
    value = torch.full((5,), float(number + dist.get_rank()))
    dist.all_reduce(value, group=group)
    assert value.tolist() == [2.0 * number + 1] * 5, (number, value)
names = []
for task in Path("/proc/self/task").iterdir():
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
        names.append(Path(task, "comm").read_text().strip())
assert names.count("gloo_tcp_loop") == 1, "its threads wake up a hundred times a second"
dist.destroy_process_group()
print("groups", len(groups))
