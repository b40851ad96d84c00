"""The plan of a whole run, made before training: the rank that trains on each sample of each global batch, where it
gets the sample from, and whether it buffers it. `solar` has the algorithm; this module converts its result to one
rank's actions in one step.

Every rank computes the same plan from the same arguments, so ranks need not communicate about it.
"""

import math
from dataclasses import dataclass

import numpy as np

from host_agent.loading import solar
from host_agent.loading.orders import EMPTY
from switchml.errors import ConfigError

IMBALANCE = 1.25
"""Maximum local batch of a rank relative to its even share."""
STORAGE = -1
"""Placeholder for a rank: no buffer holds the sample."""


@dataclass(frozen=True)
class StepPlan:
    """One rank's actions in one step, as int32 arrays of sample numbers."""

    batch: np.ndarray
    """Samples that the rank trains on, in the order of the global batch."""
    source: np.ndarray
    """(batch,): the rank whose buffer holds each sample, possibly this one, or STORAGE."""
    lent: np.ndarray
    """Samples in this rank's buffer that other ranks train on."""
    kept: tuple[tuple[int, int], ...]
    """(sample, sample to evict first or -1), in order: samples that the rank has read and puts into its buffer."""
    global_batch: int
    """Number of samples of all ranks."""


@dataclass(frozen=True)
class LoadingPlan:
    """The plan of a run: arrays (steps, width of a global batch) as returned by `solar.assign`, in the order of
    training."""

    batches: np.ndarray
    rank_of: np.ndarray
    held_by: np.ndarray
    is_kept: np.ndarray
    evicted: np.ndarray
    ranks: int
    epochs: tuple[int, ...]
    """Epoch numbers of the plain loader in the order in which they are trained."""
    window: int
    """Number of steps whose reads are combined."""
    first_step: int = 0
    """Number of steps already done: buffers are empty when this step begins."""

    @property
    def steps(self) -> int:
        """Number of steps of all epochs."""
        return len(self.batches)

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps per epoch, the same for all epochs."""
        return self.steps // len(self.epochs)

    def step(self, step: int, rank: int) -> StepPlan:
        """Actions of `rank` in `step`."""
        batch, own = self.batches[step], self.rank_of[step] == rank
        kept = np.flatnonzero(own & self.is_kept[step])
        return StepPlan(
            batch=batch[own],
            source=self.held_by[step][own],
            lent=np.unique(batch[(self.held_by[step] == rank) & ~own]),
            kept=tuple(zip(batch[kept].tolist(), self.evicted[step][kept].tolist(), strict=True)),
            global_batch=int(np.count_nonzero(batch != EMPTY)),
        )

    def window_of(self, step: int) -> range:
        """Steps whose reads are combined with those of `step`; each epoch begins with a new window."""
        epoch = step // self.steps_per_epoch * self.steps_per_epoch
        first = epoch + (step - epoch) // self.window * self.window
        return range(max(first, self.first_step), min(first + self.window, epoch + self.steps_per_epoch))

    def reads(self, steps: range, rank: int) -> np.ndarray:
        """int64, sorted: samples that `rank` reads from storage for these steps, each sample once per window."""
        rows = slice(steps.start, steps.stop)
        wanted = (self.rank_of[rows] == rank) & (self.held_by[rows] == STORAGE)
        return np.unique(self.batches[rows][wanted]).astype(np.int64)

    def counts(self) -> dict[str, np.ndarray]:
        """int64 (steps, ranks) each: number of samples trained on, and of those from the rank's own buffer, another's,
        and storage."""
        source = np.where(self.held_by == self.rank_of, 0, np.where(self.held_by == STORAGE, 2, 1))
        names = ("buffer_hits", "peer_hits", "storage_samples")
        used = self.batches != EMPTY
        by_rank = used[:, :, None] & (self.rank_of[:, :, None] == np.arange(self.ranks))
        found = {name: (by_rank & (source == number)[:, :, None]).sum(axis=1) for number, name in enumerate(names)}
        return {"samples": by_rank.sum(axis=1), **found}


def make_plan(
    batches: np.ndarray,
    samples: int,
    ranks: int,
    *,
    buffer_samples: int,
    imbalance: float = IMBALANCE,
    use_peers: bool = True,
    reorder_epochs: bool = False,
    window: int = 1,
    first_step: int = 0,
) -> LoadingPlan:
    """Make the plan for int32 `batches` (epochs, steps of an epoch, global batch; with EMPTY positions in an epoch's
    last one).

    `buffer_samples`: capacity of each rank's buffer. `imbalance`: 1 keeps local batches equal. `use_peers`: samples
    that a rank holds beyond its share of a batch are sent from its buffer to another rank; otherwise that rank reads
    them. `reorder_epochs`: train epochs in the order with the most reuse of buffers. `first_step`: step to begin with,
    with empty buffers. Raises ConfigError for numbers out of range."""
    epochs, steps, width = batches.shape
    if imbalance < 1 or buffer_samples < 0 or window < 1 or not 0 <= first_step <= epochs * steps:
        raise ConfigError(
            f"imbalance {imbalance}, buffers of {buffer_samples} samples, a window of {window} steps and first step "
            f"{first_step}; expected at least 1, 0, 1, and one of {epochs * steps} steps"
        )
    order = list(range(epochs))
    if reorder_epochs and 0 < buffer_samples * ranks < samples:
        order = solar.epoch_order(solar.overlaps(_lists(batches), samples, buffer_samples * ranks))
    planned = np.ascontiguousarray(batches[order].reshape(-1, width))
    each = -(-width // ranks)
    most = max(each, min(width, math.floor(each * imbalance)))
    capacity = min(buffer_samples, samples)
    rank_of, held_by, is_kept, evicted = (np.full(planned.shape, value) for value in (-1, np.int32(-1), False, -1))
    if first_step < len(planned):
        found = solar.assign(planned[first_step:], samples, ranks, capacity, most, window, steps, first_step)
        for whole, part in zip((rank_of, held_by, is_kept, evicted), found, strict=True):
            whole[first_step:] = part
    if not use_peers:
        held_by[held_by != rank_of] = STORAGE
    return LoadingPlan(planned, rank_of, held_by, is_kept, evicted, ranks, tuple(order), window, first_step)


def _lists(batches: np.ndarray) -> np.ndarray:
    """(epochs, samples of an epoch): `batches` without the EMPTY positions, which are at the end of every epoch."""
    flat = batches.reshape(len(batches), -1)
    return flat[:, flat[0] != EMPTY]
