"""Data-parallel training with planned loading (docs/loading.md): in place of DataLoader and DistributedSampler.

torchrun --nproc-per-node 2 scripts/examples/planned_loading.py --backend switchml
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from host_agent.loading import Columns, PlannedLoader, open_source
from host_agent.training.data import load_digits


def write_digits(folder: Path) -> str:
    """Write the data set to files; real data sets would already be in storage."""
    images, labels = load_digits()
    np.save(folder / "images.npy", (images[:1437] / 8 - 1).astype(np.float32).reshape(-1, 1, 8, 8))
    np.save(folder / "labels.npy", labels[:1437].astype(np.int64))
    return str(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="switchml", help="gloo, switchml, ...")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--micro-batch", type=int, default=16, help="of each process, on average")
    parser.add_argument("--data", help="folder or URL of images.npy and labels.npy; default: digits")
    parser.add_argument("--buffer-kb", type=int, default=64, help="what each process keeps in memory")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group(arguments.backend)

    with tempfile.TemporaryDirectory() as folder:
        data = arguments.data or write_digits(Path(folder))
        loader = PlannedLoader(
            Columns(open_source(f"{data}/images.npy"), open_source(f"{data}/labels.npy")),
            batch_size=arguments.micro_batch,
            epochs=arguments.epochs,
            buffer_bytes=arguments.buffer_kb << 10,
            drop_last=True,
        )
        model = DistributedDataParallel(nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for epoch in range(arguments.epochs):
            for images, labels in loader:
                optimizer.zero_grad()
                # Local batches are unequal: `scaled` makes DDP's mean the gradient of the global batch.
                loss = loader.scaled(nn.functional.cross_entropy(model(images), labels))
                loss.backward()
                optimizer.step()
            mean_loss = loss.detach().clone()
            dist.all_reduce(mean_loss, op=dist.ReduceOp.AVG)
            if dist.get_rank() == 0:
                print(f"epoch {epoch + 1}: loss {mean_loss.item():.4f}", flush=True)
        counters = loader.counters
        dist.barrier()  # Until all ranks have the samples that they fetch from peers
        loader.close()
    if dist.get_rank() == 0:
        hits = int(counters["buffer_hits"] + counters["peer_hits"])
        print(f"{hits} of {hits + int(counters['storage_samples'])} samples of rank 0 came from buffers")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
