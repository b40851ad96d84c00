"""Data-parallel training of a plain network whose gradients take about as long to send as to compute, on 100 Mbit/s.
Nothing in it knows of switchml: it is what captures, optimizations and settings are tried on.

torchrun --nproc-per-node 2 scripts/examples/ddp_mlp.py --steps 30
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--batch-size", type=int, default=512, help="a process")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group(arguments.backend)
    layers = [nn.Sequential(nn.Linear(arguments.width, arguments.width), nn.ReLU()) for _ in range(arguments.layers)]
    model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(arguments.width, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    torch.manual_seed(dist.get_rank())
    batch = torch.randn(arguments.batch_size, arguments.width)
    targets = torch.randint(0, 10, (arguments.batch_size,))
    for _ in range(arguments.steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch), targets).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
