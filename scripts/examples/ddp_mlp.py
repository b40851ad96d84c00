"""Data-parallel training of a plain network whose gradients take about as long to send as to compute, on 100 Mbit/s.
It does not use switchml: captures, optimizations and settings are tested on it.

torchrun --nproc-per-node 2 scripts/examples/ddp_mlp.py --steps 30
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Pause(torch.autograd.Function):
    """The identity, which takes `seconds` forward and twice as long backward, as a layer on an accelerator does."""

    @staticmethod
    def forward(context, inputs, seconds):
        context.seconds = seconds
        time.sleep(seconds)
        return inputs.view_as(inputs)

    @staticmethod
    def backward(context, gradient):
        time.sleep(2 * context.seconds)
        return gradient, None


class Layer(nn.Module):
    def __init__(self, width: int, device_s: float) -> None:
        super().__init__()
        self.linear, self.device_s = nn.Linear(width, width), device_s

    def forward(self, inputs):
        outputs = nn.functional.relu(self.linear(inputs))
        return Pause.apply(outputs, self.device_s) if self.device_s else outputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--batch-size", type=int, default=512, help="per process")
    parser.add_argument(
        "--device-time", type=float, default=0.0, help="seconds that each layer waits for an emulated device"
    )
    arguments = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group(arguments.backend)
    layers = [Layer(arguments.width, arguments.device_time) for _ in range(arguments.layers)]
    model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(arguments.width, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    torch.manual_seed(dist.get_rank())
    batch = torch.randn(arguments.batch_size, arguments.width)
    targets = torch.randint(0, 10, (arguments.batch_size,))
    for _ in range(arguments.steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch), targets).backward()
        optimizer.step()
    dist.barrier()  # else ranks of Gloo now and then abort at their exit ("terminate called without …")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
