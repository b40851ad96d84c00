"""A small recommendation model (DLRM) with its embedding tables distributed over the ranks, with and without
compression of the all-to-all that exchanges the rows of each batch.

    torchrun --nproc-per-node 4 scripts/examples/dlrm.py --backend gloo
    torchrun --nproc-per-node 4 scripts/examples/dlrm.py --backend switchml     # SWITCHML_AGGREGATOR is optional

Clicks are drawn from a known model (`Clicks`), so that the best possible AUC is known; it is printed too. MLPs are
data-parallel (DDP: their gradients go through the backend's all-reduce), tables model-parallel. The model is that of M.
Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems" (arXiv:1906.00091).
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from host_agent.pytorch import BoundSchedule, EmbeddingExchange
from host_agent.pytorch import backend as torch_backend  # noqa: F401 (registers the backend)

CATEGORIES = (400, 200, 100, 100, 50, 50, 20, 10)
"""Rows of each table."""
BOUNDS = (0.005, 0.005, 0.01, 0.01, 0.01, 0.01, 0.02, 0.02)
"""Final error bound of each table: tighter for large tables, whose rows are used less often."""
DENSE = 4
WIDTH = 16
TRAIN, TEST = 262_144, 8_192
CHOICES = {"plain": False, "compressed": True}


@dataclass(frozen=True)
class Clicks:
    """Synthetic users and items: categories, float32 dense features, and whether there was a click.

    1. Draw each category with a probability that falls as 1 / (its number + 5), and each dense feature from a standard
       normal distribution.
    2. Each category has a hidden vector of 2 and a weight, each dense feature a weight, all normal.
    3. log-odds = weights + products of the hidden vectors of neighbouring tables - 0.8.
    4. Draw the click.
    """

    categories: torch.Tensor
    dense: torch.Tensor
    clicks: torch.Tensor
    odds: np.ndarray

    @classmethod
    def draw(cls, count: int, seed: int) -> Clicks:
        """Draw `count` users with `seed`; the underlying model is always the same."""
        truth, users = np.random.default_rng(20), np.random.default_rng((21, seed))
        columns, hidden = [], []
        dense = users.standard_normal((count, DENSE))
        odds = dense @ (0.4 * truth.standard_normal(DENSE)) - 0.8
        for categories in CATEGORIES:
            shares = 1 / (np.arange(categories) + 5)
            rows = users.choice(categories, count, p=shares / shares.sum())
            odds += 0.5 * truth.standard_normal(categories)[rows]
            columns.append(rows)
            hidden.append(0.5 * truth.standard_normal((categories, 2))[rows])
        for left, right in zip(hidden[:-1], hidden[1:], strict=True):
            odds += (left * right).sum(axis=1)
        clicks = users.random(count) < 1 / (1 + np.exp(-odds))
        return cls(
            torch.from_numpy(np.stack(columns, axis=1)),
            torch.from_numpy(dense.astype(np.float32)),
            torch.from_numpy(clicks.astype(np.float32)),
            odds,
        )


class Top(nn.Module):
    """Log-odds (batch,) from (batch, DENSE) and (batch, tables, WIDTH): pairwise dot products of all vectors between
    two MLPs."""

    def __init__(self) -> None:
        super().__init__()
        vectors = len(CATEGORIES) + 1
        self.bottom = nn.Sequential(nn.Linear(DENSE, 32), nn.ReLU(), nn.Linear(32, WIDTH))
        self.top = nn.Sequential(nn.Linear(WIDTH + vectors * (vectors - 1) // 2, 64), nn.ReLU(), nn.Linear(64, 1))
        self.pairs = torch.tril_indices(vectors, vectors, offset=-1)

    def forward(self, dense: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        bottom = self.bottom(dense)
        vectors = torch.cat([bottom[:, None], rows], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([bottom, products], dim=1))[:, 0]


def train(
    compressed: bool, iterations: int, batch: int, start: float, sets: tuple[Clicks, Clicks], check: bool = True
) -> dict[str, float]:
    """Train from fixed seeds on the first of `sets`, `batch` samples per rank and step. Returns metrics on the second,
    the all-to-all's traffic, and the seconds of all steps and of their exchanges of rows. `check`: also measure the
    largest error, which costs time."""
    train_set, test_set = sets
    rank, world = dist.get_rank(), dist.get_world_size()
    tables_of_rank = [list(range(r, len(CATEGORIES), world)) for r in range(world)]
    bounds = BoundSchedule(BOUNDS, start=start, iterations=iterations // 2) if compressed else None
    exchange, exchanged_s = EmbeddingExchange(tables_of_rank, bounds, check=check), 0.0
    torch.manual_seed(1)
    top = DistributedDataParallel(Top())
    every_table = [nn.Embedding(categories, WIDTH) for categories in CATEGORIES]  # The same on all ranks
    for table in every_table:
        nn.init.normal_(table.weight, std=0.1)
    own_tables = [every_table[number] for number in tables_of_rank[rank]]
    optimizers = [
        torch.optim.Adam(top.parameters(), lr=4e-3),
        torch.optim.Adam([parameter for table in own_tables for parameter in table.parameters()], lr=8e-3),
    ]

    def log_odds(data: Clicks, batches: torch.Tensor) -> torch.Tensor:
        """Log-odds for this rank's row of `batches`, int64[ranks, batch] of user numbers."""
        nonlocal exchanged_s
        looked_up = [
            torch.stack([t(data.categories[users, n]) for n, t in zip(tables_of_rank[rank], own_tables, strict=True)])
            for users in batches
        ]
        dist.barrier()  # Waiting for other ranks is not part of the exchange
        begun_s = time.perf_counter()
        rows = exchange(torch.stack(looked_up))
        exchanged_s += time.perf_counter() - begun_s
        return top(data.dense[batches[rank]], rows)

    order = np.random.default_rng(2)
    start_s = time.perf_counter()
    for _ in range(iterations):
        batches = torch.from_numpy(order.choice(TRAIN, (world, batch), replace=False))
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = functional.binary_cross_entropy_with_logits(
            log_odds(train_set, batches), train_set.clicks[batches[rank]]
        )
        loss.backward()
        for table in own_tables:
            table.weight.grad /= world  # Every rank's loss is a mean over its own batch
        for optimizer in optimizers:
            optimizer.step()
    seconds, exchange_seconds = time.perf_counter() - start_s, exchanged_s
    sent, plain, error = exchange.traffic.bytes_sent, exchange.traffic.bytes_plain, exchange.traffic.largest_error
    with torch.no_grad():
        users = torch.arange(TEST).view(-1, world, TEST // 64)
        guesses = torch.stack([log_odds(test_set, batches) for batches in users])
    everybody = [torch.empty_like(guesses) for _ in range(world)]
    dist.all_gather(everybody, guesses)
    scores = torch.stack(everybody, dim=1).reshape(-1).numpy()
    totals = torch.tensor([sent, plain], dtype=torch.float64)
    dist.all_reduce(totals)
    return {
        "auc": auc(scores, test_set.clicks.numpy()),
        "accuracy": float(((scores > 0) == (test_set.clicks.numpy() > 0.5)).mean()),
        "bytes_sent": totals[0].item(),
        "bytes_plain": totals[1].item(),
        "largest_error": error,
        "seconds": seconds,
        "exchange_seconds": exchange_seconds,
        "compress_seconds": exchange.traffic.compress_s,
    }


def auc(scores: np.ndarray, clicks: np.ndarray) -> float:
    """The probability that a click scores above a non-click (Mann-Whitney)."""
    ranks = np.empty(scores.size)
    ranks[np.argsort(scores, kind="stable")] = np.arange(1, scores.size + 1)
    hits = clicks > 0.5
    count = hits.sum()
    return float((ranks[hits].sum() - count * (count + 1) / 2) / (count * (scores.size - count)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="gloo", help="gloo, switchml, ...")
    parser.add_argument("--steps", "--iterations", type=int, default=800)
    parser.add_argument("--batch", type=int, default=128, help="samples per rank and step (%(default)s)")
    parser.add_argument("--start", type=float, default=2.0, help="initial error bounds, in multiples of the final ones")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(arguments.backend)
    train_set, test_set = Clicks.draw(TRAIN, 0), Clicks.draw(TEST, 1)
    results = {
        name: train(is_compressed, arguments.steps, arguments.batch, arguments.start, (train_set, test_set))
        for name, is_compressed in CHOICES.items()
    }
    best = auc(test_set.odds, test_set.clicks.numpy())
    if dist.get_rank() == 0 and arguments.json:
        print(json.dumps({"best_auc": best, "ranks": dist.get_world_size(), **results}))
    elif dist.get_rank() == 0:
        print(f"{'all-to-all':>12} {'AUC':>8} {'accuracy':>9} {'MB sent':>8} {'of plain':>9} {'largest error':>14}")
        for name, result in results.items():
            share = result["bytes_sent"] / result["bytes_plain"]
            print(
                f"{name:>12} {result['auc']:8.4f} {result['accuracy']:9.2%} {result['bytes_sent'] / 1e6:8.2f} "
                f"{share:9.1%} {result['largest_error']:14.4f}"
            )
        print(f"the model that drew the clicks: AUC {best:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
