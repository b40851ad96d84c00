"""Batches of one rank, step by step: from memory, or from files with a planned loader."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from host_agent.training.data import BatchOrder, Digits

if TYPE_CHECKING:
    import torch

BUFFER_BYTES = 64 << 10
"""Buffer of a rank: a sixth of the images."""


@dataclass(frozen=True)
class Batch:
    """A batch. `weight`: factor of its mean loss (`loss_weight`); `counters`: the loader's counters so far."""

    images: torch.Tensor
    labels: torch.Tensor
    weight: float = 1.0
    counters: dict[str, float] = field(default_factory=dict)


def plain_batches(order: BatchOrder, steps: int, digits: Digits) -> Iterator[Batch]:
    """Equal parts of each global batch, from memory."""
    import torch

    images, labels = torch.from_numpy(digits.train_images), torch.from_numpy(digits.train_labels)
    for step in range(steps):
        chosen = torch.from_numpy(order.indices(step))
        yield Batch(images[chosen], labels[chosen])


def save(digits: Digits, folder: Path) -> None:
    """Write the files that `planned_batches` reads."""
    np.save(folder / "images.npy", digits.train_images)
    np.save(folder / "labels.npy", digits.train_labels)


def planned_batches(order: BatchOrder, steps: int, folder: Path, equal: bool = False) -> Iterator[Batch]:
    """The same global batches, from the files in `folder`. `equal`: local batches have the same size on all ranks."""
    from host_agent.loading import Columns, PlannedLoader, open_source
    from host_agent.loading.plan import IMBALANCE

    lists = order.lists(steps)
    with PlannedLoader(
        Columns(open_source(str(folder / "images.npy")), open_source(str(folder / "labels.npy"))),
        order.batch_size,
        len(lists),
        buffer_bytes=BUFFER_BYTES,
        order=lists,
        imbalance=1.0 if equal else IMBALANCE,
        peers=None,  # files are faster
        rank=order.rank,
        world_size=order.workers,
    ) as loader:
        while loader.step < steps:
            for images, labels in loader:
                yield Batch(images, labels, loader.weight, loader.counters)
                if loader.step == steps:
                    break
