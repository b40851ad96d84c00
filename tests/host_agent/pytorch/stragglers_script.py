"""Run by test_straggler_hook.py in two processes, with a deadline: DDP whose second rank pauses in one step. Prints a
JSON object of what each rank saw.
"""

import hashlib
import json
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from host_agent.pytorch.straggler_hook import StragglerState, straggler_hook

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
STEPS, PAUSED_STEP, PAUSE_S = 10, 4, 3.0
torch.set_num_threads(1)


def main() -> None:
    dist.init_process_group(
        "switchml", init_method=os.environ["RENDEZVOUS"], rank=RANK, world_size=SIZE, timeout=timedelta(seconds=120)
    )
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 3)))
    state = StragglerState()
    model.register_comm_hook(state, straggler_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step, ranks = 0, []
    while step < STEPS:
        batch = torch.randn(16, 20, generator=torch.Generator().manual_seed(100 * step + RANK))
        if RANK == 1 and step == PAUSED_STEP:
            time.sleep(PAUSE_S)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        step += 1
        ranks += [bucket.late.ranks for bucket in state.buckets.values()]
        for _ in state.catch_up(STEPS - step):
            optimizer.step()
            step += 1
    dist.barrier()
    parameters = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    digest = hashlib.sha256(parameters.numpy().tobytes()).hexdigest()
    late = state.agent.stats()["late"]
    report = {"digest": digest, "caught_up": state.caught_up, "late": late, "ranks": ranks, "step": step}
    print(json.dumps(report), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
