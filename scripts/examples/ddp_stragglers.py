"""Data-parallel training that does not wait for an occasionally slow rank (docs/reliability.md): one hook, and a loop
that catches up on the steps that the other ranks have made meanwhile. Compute is simulated by sleeping.

torchrun --nproc-per-node 2 scripts/examples/ddp_stragglers.py
torchrun --nproc-per-node 2 scripts/examples/ddp_stragglers.py --wait
"""

import argparse
import hashlib
import os
import random
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from host_agent.pytorch import StragglerState, straggler_hook
from host_agent.training.data import load_digits

TRAIN = 1437


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--step-time", type=float, default=0.04, help="seconds of computing in a step")
    parser.add_argument("--slowdown", type=float, default=5.0, help="of the last rank, in its slow steps")
    parser.add_argument("--chance", type=float, default=0.2, help="part of its steps that are slow")
    parser.add_argument("--deadline", type=float, default=1.5, help="in steps")
    parser.add_argument("--wait", action="store_true", help="wait for it, as ever")
    arguments = parser.parse_args()

    if not arguments.wait:  # Must be set before the process group is initialized
        os.environ["SWITCHML_DEADLINE"] = f"{arguments.deadline * arguments.step_time:g}s"
    dist.init_process_group("switchml")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    images, labels = (torch.tensor(array) for array in load_digits())
    images = images.float() / 8 - 1
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stragglers = None
    if not arguments.wait:
        stragglers = StragglerState()
        model.register_comm_hook(stragglers, straggler_hook)

    chooser, sampler = random.Random(rank), torch.Generator().manual_seed(rank)
    began, step = time.monotonic(), 0
    while step < arguments.steps:
        batch = torch.randint(TRAIN, (16,), generator=sampler)
        is_slow = rank == dist.get_world_size() - 1 and chooser.random() < arguments.chance
        time.sleep(arguments.step_time * (arguments.slowdown if is_slow else 1))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
        step += 1
        if stragglers is not None:
            for _ in stragglers.catch_up(arguments.steps - step):
                optimizer.step()
                step += 1
    seconds = time.monotonic() - began
    dist.barrier()  # No rank leaves before all have their last sums

    caught_up = stragglers.caught_up if stragglers is not None else 0
    digest = hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in model.parameters())).hexdigest()
    with torch.no_grad():
        accuracy = (model.module(images[TRAIN:]).argmax(1) == labels[TRAIN:]).float().mean().item()
    print(
        f"rank {rank}: {step} steps in {seconds:.1f} s, {caught_up} of them the others'; accuracy {accuracy:.3f}, "
        f"parameters {digest[:12]}",
        flush=True,
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
