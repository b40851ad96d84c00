"""An ordinary DDP script: torchrun … job.py BACKEND ITERATIONS [die|print]. With `die` rank 1 is killed in iteration 8;
with `print` rank 0 prints each iteration."""

import atexit
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

backend, iterations, manner = sys.argv[1], int(sys.argv[2]), (sys.argv[3:] or [""])[0]
torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group(backend)
model = DistributedDataParallel(
    nn.Sequential(nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 10)), bucket_cap_mb=0.1
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
for iteration in range(iterations):
    if manner == "die" and iteration == 8 and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.zero_grad()
    loss = model(torch.randn(16, 64)).square().mean()
    loss.backward()
    optimizer.step()
    scheduler.step()
    dist.all_reduce(loss.detach().reshape(1))
    if manner == "print" and dist.get_rank() == 0:
        print("iteration", iteration, flush=True)
print(f"loss {loss.item():.6f}", flush=True)
dist.barrier()
dist.destroy_process_group()
# The interpreter is not torn down: one of Gloo's threads that wants its lock would end in the midst of C++, and now and
# then abort the process ("terminate called without an active exception").
atexit._run_exitfuncs()
os._exit(0)
