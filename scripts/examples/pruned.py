"""Data-parallel training of a pruned network (docs/states.md): one epoch with all weights, then with a tenth of them,
for which alone gradients are compressed, summed and stored.

torchrun --nproc-per-node 2 scripts/examples/pruned.py --backend switchml --share 0.9
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn

from host_agent.memory import PrunedAdam, pruned
from host_agent.training.data import load_digits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="switchml", help="gloo, switchml, ...")
    parser.add_argument("--share", type=float, default=0.9, help="of each layer's weights that are pruned")
    parser.add_argument("--epochs", type=int, default=5, help="at least 2")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group(arguments.backend)
    rank, ranks = dist.get_rank(), dist.get_world_size()

    images, labels = (torch.from_numpy(each) for each in load_digits())
    images = (images / 8 - 1).bfloat16()
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 10)).bfloat16()
    states = pruned(model, 0.0)
    optimizer = PrunedAdam(states, lr=1e-3)

    for epoch in range(arguments.epochs):
        if epoch == 1:
            states = pruned(model, arguments.share)
            optimizer = PrunedAdam(states, lr=1e-3)
        order = torch.randperm(1437, generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(32 * ranks)[:-1]:
            mine = batch[rank::ranks]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[mine]).float(), labels[mine])
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            right = (model(images[1437:]).argmax(dim=1) == labels[1437:]).float().mean().item()
        if rank == 0:
            left = states.stats()["left"] / states.stats()["parameters"]
            print(f"epoch {epoch + 1}: {left:.0%} of the weights, {right:.1%} of the test images", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
