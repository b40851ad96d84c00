"""Samples become a batch, and an unequal batch its weight in the gradient."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def collate(samples: list[Any]) -> Any:
    """What a DataLoader makes of them: torch's `default_collate`. Where torch is not installed, arrays and numbers are
    stacked to NumPy arrays, parts of dictionaries and sequences each for themselves."""
    try:
        from torch.utils.data._utils import collate as by_torch
    except ImportError:
        return _stacked(samples)
    of_arrays = by_torch.default_collate_fn_map[np.ndarray]

    def of_read_only_arrays(batch: list[np.ndarray], **options: Any) -> Any:
        """Sources read into memory that torch warns of."""
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
    """What a rank multiplies the mean loss of its `local` samples with, so that the mean over `ranks` of the gradients,
    which DDP takes, is the gradient of the mean over all `whole` samples of the global batch: ranks · local / whole. It
    is 1 where local batches are equal."""
    return ranks * local / whole
