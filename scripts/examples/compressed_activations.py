"""Data-parallel training with compressed activations (docs/activations.md): one call, before the loop.

torchrun --nproc-per-node 2 scripts/examples/compressed_activations.py --backend switchml --codec levels
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from host_agent.memory import compressed_activations
from host_agent.training.data import load_digits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="switchml", help="gloo, switchml, ...")
    parser.add_argument("--codec", default="levels", help="levels, szx, int8, fp16, host or none")
    parser.add_argument("--epochs", type=int, default=5)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group(arguments.backend)

    images, labels = load_digits()
    images = torch.tensor(images[:1437], dtype=torch.float32).reshape(-1, 1, 8, 8) / 8 - 1
    train = TensorDataset(images, torch.tensor(labels[:1437]))
    sampler = DistributedSampler(train)
    loader = DataLoader(train, batch_size=32, sampler=sampler)

    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    model = DistributedDataParallel(nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    activations = compressed_activations(model, arguments.codec, optimizer=optimizer)

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

    if dist.get_rank() == 0:
        stats = activations.stats()
        print(f"activations {stats['ratio']:.1f} times smaller; rank 0 compressed {stats['bytes'] / 1e6:.0f} MB")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
