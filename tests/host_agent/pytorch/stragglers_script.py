"""Run by test_straggler_hook.py in two processes, with a deadline: DDP of which one rank is late in one step. Prints a
JSON object of what each rank saw.

asleep: the second rank is. stopped: it is, its loader's worker with it, until the first one has made all of its steps.
machine: the first rank is stopped, and the aggregator that it has started, for a while.
"""

import hashlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from host_agent.pytorch import StragglerState, straggler_hook
from tests.support.group import RANK, init

STEPS, LATE_STEP, PAUSE_S = 10, 4, 3.0
STOPPED = Path("stopped")
"""Names the processes that are."""
torch.set_num_threads(1)


class Batches:
    """A data set of one batch a step, of this rank's own."""

    def __len__(self):
        return STEPS

    def __getitem__(self, step):
        return torch.randn(16, 20, generator=torch.Generator().manual_seed(100 * step + RANK))


def stop() -> None:
    """This process and those that it has started, until `wake`."""
    others = [child.pid for child in psutil.Process().children()]
    STOPPED.with_suffix(".new").write_text(json.dumps([*others, os.getpid()]))
    STOPPED.with_suffix(".new").rename(STOPPED)
    for pid in (*others, os.getpid()):
        os.kill(pid, signal.SIGSTOP)


def wake(after_s: float = 0.0) -> None:
    while not STOPPED.exists():
        time.sleep(0.02)
    time.sleep(after_s)
    pids = json.loads(STOPPED.read_text())
    assert all("(stopped)" in Path(f"/proc/{pid}/status").read_text() for pid in pids)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def main(how: str) -> None:
    init(seconds=120)
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 3)))
    state = StragglerState()
    model.register_comm_hook(state, straggler_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = iter(DataLoader(Batches(), batch_size=None, num_workers=1))
    step, ranks, late_rank = 0, [], 0 if how == "machine" else 1
    if RANK == 1 and how == "machine":
        threading.Thread(target=wake, args=[PAUSE_S]).start()
    while step < STEPS:
        batch = next(batches)
        if late_rank == RANK and step == LATE_STEP:
            time.sleep(PAUSE_S) if how == "asleep" else stop()
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        step += 1
        ranks += [bucket.late.ranks for bucket in state.buckets.values()]
        for _ in state.catch_up(STEPS - step):
            optimizer.step()
            step += 1
    if RANK == 0 and how == "stopped":
        wake()
    dist.barrier()
    parameters = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    digest = hashlib.sha256(parameters.numpy().tobytes()).hexdigest()
    late = state.agent.stats()["late"]
    report = {"digest": digest, "caught_up": state.caught_up, "late": late, "ranks": ranks, "step": step}
    print(json.dumps(report), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
