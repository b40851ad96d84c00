"""Data-parallel training with optimizer states on the host (docs/states.md): OffloadedAdam in place of AdamW. It sums
the gradients itself, bucket by bucket, overlapped with updates, so that the model needs no DistributedDataParallel.

torchrun --nproc-per-node 2 scripts/examples/offloaded_adam.py --backend switchml
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn

from host_agent.memory import OffloadedAdam
from host_agent.training.data import load_digits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="switchml", help="gloo, switchml, ...")
    parser.add_argument("--bucket", type=int, default=20_000, help="parameters whose states are off the host at a time")
    parser.add_argument("--folder", help="for the file with the states; by default that for temporary files")
    parser.add_argument("--epochs", type=int, default=5)
    arguments = parser.parse_args()

    torch.manual_seed(0)  # The same weights on all ranks
    torch.set_num_threads(1)
    dist.init_process_group(arguments.backend)
    rank, ranks = dist.get_rank(), dist.get_world_size()

    images, labels = (torch.from_numpy(each) for each in load_digits())
    images = (images[:1437] / 8 - 1).bfloat16()
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 10)).bfloat16()
    optimizer = OffloadedAdam(
        model.parameters(), lr=1e-3, bucket=arguments.bucket, folder=arguments.folder, group=dist.group.WORLD
    )

    for epoch in range(arguments.epochs):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(32 * ranks)[:-1]:
            mine = batch[rank::ranks]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[mine]).float(), labels[mine])
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch + 1}: loss {loss.item():.4f}", flush=True)

    if rank == 0:
        print(f"{optimizer.stats()['host_bytes'] / 1e6:.1f} MB of states on the host")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
