"""Data-parallel training of a small network on random data: an MLP whose gradients take about as long to send as to
compute at 100 Mbit/s, for tests of captures, optimizations and settings; or a convolutional network or transformer of
many operators, for measuring the overhead of profiling and other changes. Does not use switchml.

torchrun --nproc-per-node 2 scripts/examples/ddp_models.py --model transformer --steps 30
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Pause(torch.autograd.Function):
    """The identity, which sleeps `seconds` in the forward pass and twice as long in the backward pass, like a layer on
    an accelerator."""

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


def mlp(arguments: argparse.Namespace) -> tuple[nn.Module, torch.Tensor]:
    """Linear layers, and random vectors of their width, which differ between ranks."""
    layers = [Layer(arguments.width, arguments.device_time) for _ in range(arguments.layers)]
    model = nn.Sequential(*layers, nn.Linear(arguments.width, 10))
    torch.manual_seed(dist.get_rank())
    return model, torch.randn(arguments.micro_batch, arguments.width)


def cnn(arguments: argparse.Namespace) -> tuple[nn.Module, torch.Tensor]:
    """Six convolutions with batch norm, and 32 images of 3×32×32."""
    layers, before = [], 3
    for width, stride in [(16, 1), (16, 1), (32, 2), (32, 1), (64, 2), (64, 1)]:
        layers += [nn.Conv2d(before, width, 3, stride, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)), torch.randn(32, 3, 32, 32)


def transformer(arguments: argparse.Namespace) -> tuple[nn.Module, torch.Tensor]:
    """Four layers of width 128 with four heads, and eight sequences of 64 tokens."""
    layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    return nn.Sequential(encoder, nn.Flatten(), nn.Linear(64 * 128, 10)), torch.randn(8, 64, 128)


MODELS = {"mlp": mlp, "cnn": cnn, "transformer": transformer}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(MODELS), default="cnn")
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--layers", type=int, default=8, help="of the mlp")
    parser.add_argument("--width", type=int, default=384, help="of the mlp")
    parser.add_argument("--micro-batch", type=int, default=512, help="of the mlp, of each process")
    parser.add_argument(
        "--device-time", type=float, default=0.0, help="seconds that each layer of the mlp waits for an emulated device"
    )
    arguments = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group(arguments.backend)
    model, batch = MODELS[arguments.model](arguments)
    model = DistributedDataParallel(model)
    if arguments.model == "mlp":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    targets = torch.randint(0, 10, (len(batch),))
    for _ in range(arguments.steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch), targets).backward()
        optimizer.step()
    dist.barrier()  # Without it, Gloo's ranks sometimes abort at exit ("terminate called without …")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
