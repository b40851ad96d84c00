"""Prints how long the cluster takes for a reduce-scatter, an all-gather, and both at once, in seconds of its clock."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
world, clock = dist.get_world_size(), dist.distributed_c10d._get_default_group().world.clock
part, whole = torch.ones(1 << 22), torch.ones(world << 22)
scattered, gathered = part.clone(), whole.clone()


def scatter():
    return dist.reduce_scatter_tensor(scattered, whole, async_op=True)


def gather():
    return dist.all_gather_into_tensor(gathered, part, async_op=True)


elapsed_s = []
for begins in [scatter], [gather], [scatter, gather]:
    dist.barrier()
    started = clock.now_s()
    for work in [begin() for begin in begins]:
        work.wait()
    elapsed_s.append(clock.now_s() - started)
print(*elapsed_s)
dist.destroy_process_group()
