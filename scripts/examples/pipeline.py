"""Pipeline-parallel training (docs/pipelines.md): half of a network on each half of the ranks, with a message-driven
schedule.

torchrun --nproc-per-node 4 scripts/examples/pipeline.py --backend switchml
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn

from host_agent.pipeline import Pipeline, pipeline_groups
from host_agent.training.data import load_digits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="switchml", help="gloo, switchml, ...")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--schedule", default="message-driven", help="message-driven, 1f1b or gpipe")
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64, help="of each pipeline")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group(arguments.backend)

    groups = pipeline_groups(2)
    first = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
    last = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    pipeline = Pipeline(
        [first, last], arguments.micro_batches, nn.CrossEntropyLoss(), schedule=arguments.schedule, groups=groups
    )
    optimizer = torch.optim.SGD(pipeline.module.parameters(), lr=0.05, momentum=0.9)

    images, labels = (torch.from_numpy(each) for each in load_digits())
    images, size = (images[:1437] / 8 - 1).float(), arguments.batch * groups.replicas
    for epoch in range(arguments.epochs):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(size)[: len(images) // size]:
            mine = batch.chunk(groups.replicas)[groups.replica]  # The same on all ranks of a pipeline
            optimizer.zero_grad()
            loss = pipeline.step(images[mine], target=labels[mine])
            optimizer.step()
        if loss is not None and groups.replica == 0:  # Only the last stage has the loss
            print(f"epoch {epoch + 1}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
