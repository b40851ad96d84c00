"""Which samples each global batch has, in every epoch: the lists that torch's own samplers give from the same seed, and
a shuffle of blocks for storage where random reads cost too much.
"""

from collections.abc import Callable

import numpy as np

from switchml.errors import ConfigError

EMPTY = -1
"""A place of a batch that is shorter than others: the last one of an epoch."""


def distributed(samples: int, epochs: int, seed: int, ranks: int, *, drop_last: bool = False) -> np.ndarray:
    """int32 (epochs, samples of an epoch): what `DistributedSampler(…, seed=seed, drop_last=drop_last)` deals out to
    `ranks` ranks in turn, after `set_epoch` of each epoch. Without `drop_last` it repeats the first samples until the
    ranks get equally many."""
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
    """int32 (epochs, samples): every epoch from the first sample to the last; padded or cut as `distributed` is."""
    used = samples - samples % ranks if drop_last else samples + -samples % ranks
    return np.resize(np.resize(np.arange(samples, dtype=np.int32), used), (epochs, used))


def blocks(
    samples: int, epochs: int, seed: int, ranks: int, *, drop_last: bool = False, block: int, mixed: int
) -> np.ndarray:
    """int32 (epochs, samples of an epoch): blocks of `block` neighbours in a random order, mixed within stretches of
    `mixed` samples. There, every block is spread evenly, in random places, from the first sample to the last: a batch
    has as much of it as of the others, and whoever deals batches out by place in storage gives whole blocks to a rank.
    Padded or cut as `distributed` is."""
    used = samples - samples % ranks if drop_last else samples + -samples % ranks
    lists = np.empty((epochs, used), np.int32)
    starts = np.arange(0, samples, block)
    for epoch in range(epochs):
        generator = np.random.default_rng((seed, epoch))
        in_turn = generator.permutation(starts)
        order = np.concatenate([np.arange(start, min(start + block, samples)) for start in in_turn.tolist()])
        # Places from 0 to 1 in its stretch: the ones of a block's n samples are in n equal parts, one each.
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
"""Name → function; what a loader's `order` may say beside an array."""


def batches(lists: np.ndarray, ranks: int, batch_size: int, *, drop_last: bool = False) -> np.ndarray:
    """int32 (epochs, steps of an epoch, ranks · batch_size): global batches of `lists`, which ranks are dealt in turn.
    What is left at an epoch's end is dropped, or fills the last batch in part: the rest of that is EMPTY.

    Raises ConfigError where the last batch would have fewer samples than there are ranks, or an epoch has no batch.
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
