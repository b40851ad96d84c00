"""Samples become a batch, and an unequal batch its weight in the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def collate(samples: Sequence[Any]) -> Any:
    """Arrays and numbers stacked to tensors, tuples and dictionaries part by part, as torch's `default_collate` does;
    anything else (text, bytes) as a list. Without torch in the process, NumPy arrays."""
    first = samples[0]
    if isinstance(first, dict):
        return {key: collate([sample[key] for sample in samples]) for key in first}
    if isinstance(first, tuple):
        return tuple(collate(part) for part in zip(*samples, strict=True))
    if isinstance(first, np.ndarray | np.generic | int | float):
        return _tensor(np.stack([np.asarray(sample) for sample in samples]))
    if type(first).__module__.partition(".")[0] == "torch":
        import torch

        return torch.stack(list(samples))
    return list(samples)


def _tensor(array: np.ndarray) -> Any:
    try:
        import torch
    except ImportError:
        return array
    return torch.from_numpy(array)


def loss_weight(local: int, whole: int, ranks: int) -> float:
    """What a rank multiplies the mean loss of its `local` samples with, so that the mean over `ranks` of the gradients,
    which DDP takes, is the gradient of the mean over all `whole` samples of the global batch: ranks · local / whole. It
    is 1 where local batches are equal."""
    return ranks * local / whole
