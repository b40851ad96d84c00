"""The script of `switchml train --emulated-ranks`: a small convolutional network on handwritten digits with DDP, in
plain PyTorch. Writes losses and accuracy of rank 0, or of the first real rank, as JSON to `--result`.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from host_agent.training import data
from host_agent.training.model import DigitsNet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--micro-batch", "--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--result", type=Path, required=True)
    options = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    digits = data.load()
    images, labels = torch.from_numpy(digits.train_images), torch.from_numpy(digits.train_labels)
    torch.manual_seed(options.seed)
    model = DistributedDataParallel(DigitsNet())
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=options.momentum)
    # There may be more ranks than images, so each draws independently.
    order = np.random.default_rng((options.seed, rank))
    losses = []
    for _ in range(options.steps):
        chosen = torch.from_numpy(order.integers(0, len(labels), options.micro_batch))
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images[chosen]), labels[chosen])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        guesses = model.module(torch.from_numpy(digits.test_images)).argmax(dim=1)
    accuracy = float((guesses == torch.from_numpy(digits.test_labels)).float().mean())
    dist.destroy_process_group()
    result = {"rank": rank, "world_size": world, "losses": losses, "accuracy": accuracy}
    options.result.with_suffix(f".{rank}").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
