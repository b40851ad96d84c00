"""One rank of test_all_to_all.py: exchanges made-up rows, compressed and not, and reports what came of it."""

import json
import os

import numpy as np
import torch
import torch.distributed as dist

from host_agent.pytorch.all_to_all import BoundSchedule, EmbeddingExchange
from switchml.errors import ConfigError, PayloadError

TABLES_OF_RANK = [[0, 3], [2], [1]]
BATCH, WIDTH = 20, 7
BOUNDS = [0.01, 0.0, 0.1, 0.03]


def row(table: int, user: int) -> np.ndarray:
    return np.random.default_rng((table, user)).standard_normal(WIDTH).astype(np.float32)


def main() -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=os.environ["RENDEZVOUS"], rank=rank, world_size=world)
    mine = TABLES_OF_RANK[rank]
    looked_up = np.stack(
        [[[row(table, to * BATCH + i) for i in range(BATCH)] for table in mine] for to in range(world)]
    )
    expected = np.stack([[row(table, rank * BATCH + i) for table in range(4)] for i in range(BATCH)])
    plain = EmbeddingExchange(TABLES_OF_RANK)
    bounded = EmbeddingExchange(TABLES_OF_RANK, BoundSchedule(BOUNDS, start=2, iterations=4, steps=2), check=True)
    out = {"exact": bool(np.array_equal(plain(torch.from_numpy(looked_up)).numpy(), expected)), "errors": []}
    for _ in range(5):
        rows = bounded(torch.from_numpy(looked_up)).numpy()
        out["errors"].append(np.abs(rows - expected).max(axis=(0, 2)).tolist())
    out["largest_error"] = bounded.traffic.largest_error
    out["bytes_sent"], out["bytes_plain"] = bounded.traffic.bytes_sent, bounded.traffic.bytes_plain

    weights = torch.from_numpy(expected)  # any numbers that tell users and tables apart
    gradients = []
    for exchange in (plain, bounded):
        values = torch.from_numpy(looked_up).requires_grad_()
        (exchange(values) * weights).sum().backward()
        gradients.append(values.grad.numpy())
    out["gradients_exact"] = bool(
        np.array_equal(gradients[0], looked_up) and np.array_equal(gradients[1], gradients[0])
    )
    try:
        bounded(torch.zeros(world, len(mine) + 1, BATCH, WIDTH))
    except ConfigError as error:
        out["wrong_shape"] = str(error)
    try:  # rank 0 has another batch
        bounded(torch.zeros(world, len(mine), BATCH + (rank == 0), WIDTH))
        out["odd_batch"] = ""
    except PayloadError as error:
        out["odd_batch"] = str(error)
    print(json.dumps(out))
    dist.destroy_process_group()


main()
