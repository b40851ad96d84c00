"""Collation of samples into batches, and the weight of an unequal batch in the gradient."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def collate(samples: list[Any]) -> Any:
    """Collate samples as a DataLoader does: with torch's `default_collate`. Without torch, arrays and numbers are
    stacked to NumPy arrays, separately for each part of dictionaries and sequences."""
    try:
        from torch.utils.data._utils import collate as by_torch
    except ImportError:
        return _stacked(samples)
    of_arrays = by_torch.default_collate_fn_map[np.ndarray]

    def of_read_only_arrays(batch: list[np.ndarray], **options: Any) -> Any:
        """Copies read-only arrays, for which torch would warn: sources return views of the bytes they read."""
        return of_arrays([each if each.flags.writeable else each.copy() for each in batch], **options)

    kinds: Any = by_torch.default_collate_fn_map | {np.ndarray: of_read_only_arrays}
    return by_torch.collate(samples, collate_fn_map=kinds)


def _stacked(samples: Sequence[Any]) -> Any:
    first = samples[0]
    if isinstance(first, dict):
        return {key: _stacked([sample[key] for sample in samples]) for key in first}
    if isinstance(first, tuple | list):
        return [_stacked(part) for part in zip(*samples, strict=True)]
    if isinstance(first, np.ndarray | np.generic | int | float):
        return np.stack([np.asarray(sample) for sample in samples])
    return list(samples)


def loss_weight(local: int, whole: int, ranks: int) -> float:
    """Factor for the mean loss of a rank's `local` samples, so that the mean of the gradients over `ranks`, which DDP
    computes, is the gradient of the mean over all `whole` samples of the global batch: ranks · local / whole. It is 1
    if local batches are equal."""
    return ranks * local / whole
