"""The default process group of a script that `ranks.run_ranks` runs."""

import os
from datetime import timedelta

import torch.distributed as dist

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def init(backend: str = "switchml", seconds: float = 60, store: str = "") -> None:
    """`store`: tells apart those of groups that come one after the other."""
    dist.init_process_group(
        backend,
        init_method=os.environ["RENDEZVOUS"] + store,
        rank=RANK,
        world_size=SIZE,
        timeout=timedelta(seconds=seconds),
    )
