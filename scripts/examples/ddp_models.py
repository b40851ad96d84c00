"""Data-parallel training of a small convolutional network or transformer on noise, to measure the cost of profiling
and other changes on models of many operators. It does not use switchml.

torchrun --nproc-per-node 2 scripts/examples/ddp_models.py --model transformer --steps 30
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def cnn() -> tuple[nn.Module, torch.Tensor]:
    """Six convolutions with batch norm, and 32 images of 3×32×32."""
    layers, before = [], 3
    for width, stride in [(16, 1), (16, 1), (32, 2), (32, 1), (64, 2), (64, 1)]:
        layers += [nn.Conv2d(before, width, 3, stride, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)), torch.randn(32, 3, 32, 32)


def transformer() -> tuple[nn.Module, torch.Tensor]:
    """Four layers of width 128 with four heads, and eight sequences of 64 tokens."""
    layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    return nn.Sequential(encoder, nn.Flatten(), nn.Linear(64 * 128, 10)), torch.randn(8, 64, 128)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["cnn", "transformer"], default="cnn")
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group(arguments.backend)
    model, batch = {"cnn": cnn, "transformer": transformer}[arguments.model]()
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    targets = torch.randint(0, 10, (len(batch),))
    for _ in range(arguments.steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch), targets).backward()
        optimizer.step()
    dist.barrier()  # else Gloo's ranks sometimes abort at exit ("terminate called without …")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
