"""Ordinary data-parallel training: the backend's name is all that selects in-network aggregation.

torchrun --nproc-per-node 4 scripts/examples/ddp_digits.py --backend switchml
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from host_agent.training.data import load_digits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="switchml", help="gloo, switchml, ...")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--micro-batch", type=int, default=16, help="of each process")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group(arguments.backend)

    images, labels = load_digits()
    images = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 8 - 1
    labels = torch.tensor(labels)
    train, test = TensorDataset(images[:1437], labels[:1437]), (images[1437:], labels[1437:])
    sampler = DistributedSampler(train)
    loader = DataLoader(train, batch_size=arguments.micro_batch, sampler=sampler)

    model = DistributedDataParallel(
        nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(256, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        for batch, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), targets)
            loss.backward()
            optimizer.step()
        mean_loss = loss.detach().clone()
        dist.all_reduce(mean_loss, op=dist.ReduceOp.AVG)
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}: loss {mean_loss.item():.4f}", flush=True)

    with torch.no_grad():
        accuracy = (model.module(test[0]).argmax(1) == test[1]).float().mean().item()
    if dist.get_rank() == 0:
        print(f"accuracy {accuracy:.4f}", flush=True)
    dist.barrier()  # Without it, Gloo's ranks sometimes abort at exit ("terminate called without …")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
