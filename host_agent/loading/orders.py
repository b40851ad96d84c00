"""Samples of each global batch, in every epoch: the lists that torch's own samplers give from the same seed, and a
shuffle of blocks for storage with expensive random reads.
"""

from collections.abc import Callable

import numpy as np

from switchml.errors import ConfigError

EMPTY = -1
"""Placeholder in a batch that is shorter than others: the last one of an epoch."""


def distributed(samples: int, epochs: int, seed: int, ranks: int, *, drop_last: bool = False) -> np.ndarray:
    """int32 (epochs, samples of an epoch): the samples that `DistributedSampler(…, seed=seed, drop_last=drop_last)`
    assigns to `ranks` ranks in turn, after `set_epoch` of each epoch. Without `drop_last` it repeats the first samples
    until the ranks have equally many."""
    import torch

    used = samples - samples % ranks if drop_last else samples + -samples % ranks
    lists = np.empty((epochs, used), np.int32)
    for epoch in range(epochs):
        order = torch.randperm(samples, generator=torch.Generator().manual_seed(seed + epoch)).numpy()
        lists[epoch] = np.resize(order, used)
    return lists


def shuffled(samples: int, epochs: int, seed: int, ranks: int = 1, *, drop_last: bool = False) -> np.ndarray:
    """int32 (epochs, samples): the lists of `DataLoader(…, shuffle=True, generator=Generator().manual_seed(seed))`,
    whose iterator draws a seed for its workers before RandomSampler draws an epoch."""
    import torch
    from torch.utils.data import RandomSampler

    generator = torch.Generator().manual_seed(seed)
    sampler = RandomSampler(range(samples), generator=generator)
    lists = np.empty((epochs, samples), np.int32)
    for epoch in range(epochs):
        torch.empty((), dtype=torch.int64).random_(generator=generator)
        lists[epoch] = list(sampler)
    return lists


def sequential(samples: int, epochs: int, seed: int, ranks: int = 1, *, drop_last: bool = False) -> np.ndarray:
    """int32 (epochs, samples): samples in ascending order in every epoch; padded or truncated as in `distributed`."""
    used = samples - samples % ranks if drop_last else samples + -samples % ranks
    return np.resize(np.resize(np.arange(samples, dtype=np.int32), used), (epochs, used))


def blocks(
    samples: int, epochs: int, seed: int, ranks: int, *, drop_last: bool = False, block: int, mixed: int
) -> np.ndarray:
    """int32 (epochs, samples of an epoch): blocks of `block` adjacent samples in random order, mixed within stretches
    of `mixed` samples. In a stretch, every block is spread evenly, at random positions, so that each batch has an equal
    part of every block, and a loader that assigns a batch's samples by position in storage gives whole blocks to a
    rank. Padded or truncated as in `distributed`."""
    used = samples - samples % ranks if drop_last else samples + -samples % ranks
    lists = np.empty((epochs, used), np.int32)
    starts = np.arange(0, samples, block)
    for epoch in range(epochs):
        generator = np.random.default_rng((seed, epoch))
        in_turn = generator.permutation(starts)
        order = np.concatenate([np.arange(start, min(start + block, samples)) for start in in_turn.tolist()])
        # Positions from 0 to 1 in the stretch: each of a block's n samples is in one of n equal parts.
        for first in range(0, samples, mixed):
            stretch = order[first : first + mixed]
            cuts = np.flatnonzero(np.diff(stretch // block)) + 1
            parts = [generator.permutation(part) for part in np.split(stretch, cuts)]
            places = [(np.arange(len(part)) + generator.random(len(part))) / len(part) for part in parts]
            order[first : first + mixed] = np.concatenate(parts)[np.argsort(np.concatenate(places))]
        lists[epoch] = np.resize(order, used)
    return lists


ORDERS: dict[str, Callable[..., np.ndarray]] = {
    "distributed": distributed,
    "shuffled": shuffled,
    "sequential": sequential,
}
"""Orders by name, for the `order` argument of a loader."""


def batches(lists: np.ndarray, ranks: int, batch_size: int, *, drop_last: bool = False) -> np.ndarray:
    """int32 (epochs, steps of an epoch, ranks · batch_size): global batches of `lists`, assigned to the ranks in turn.

    Samples left over at an epoch's end are dropped, or fill the last batch in part: its other positions are EMPTY.

    Raises ConfigError if the last batch would have fewer samples than there are ranks, or an epoch has no batch.
    """
    epochs, used = lists.shape
    width = ranks * batch_size
    left = used % width
    if drop_last or not left:
        if used < width:
            raise ConfigError(
                f"a global batch of {width} ({ranks} ranks, {batch_size} each) from {used} samples: lower batch_size, "
                "or leave drop_last off"
            )
        return np.ascontiguousarray(lists[:, : used - left]).reshape(epochs, -1, width)
    if left < ranks:
        raise ConfigError(
            f"the last batch of an epoch has {left} samples for {ranks} ranks; expected at least one each: set "
            "drop_last, or take another batch_size"
        )
    padded = np.full((epochs, used - left + width), EMPTY, np.int32)
    padded[:, :used] = lists
    return padded.reshape(epochs, -1, width)
