"""The data set of `switchml train` and the examples: 1797 handwritten digits of 8 x 8 pixels, and each rank's batches.

`digits.npz` holds the test set of "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak, UCI Machine
Learning Repository, https://doi.org/10.24432/C50P49, CC BY 4.0) in the order of scikit-learn's `load_digits`: uint8
(1797, 64) and (1797,).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from switchml.errors import ConfigError

TRAIN_IMAGES = 1437
TEST_IMAGES = 360
SPLIT_SEED = 20210412
"""Independent of `--seed`, so that accuracies of different runs refer to the same test images."""


@dataclass(frozen=True)
class Digits:
    """Images are float32 (n, 1, 8, 8) in [-1, 1], labels int64 (n,)."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray

    def save(self, path: Path) -> None:
        """Write the arrays to `path` (.npz) for other processes."""
        np.savez(path, **vars(self))

    @classmethod
    def restore(cls, path: Path) -> Digits:
        """Read a file written by `save`."""
        with np.load(path) as arrays:
            return cls(**arrays)


def load() -> Digits:
    """Read the digits and split them."""
    pixels, labels = load_digits()
    images = (pixels / 8.0 - 1.0).astype(np.float32).reshape(-1, 1, 8, 8)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(images))
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES : TEST_IMAGES + TRAIN_IMAGES]
    return Digits(images[train], labels[train], images[test], labels[test])


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    """Pixels, float64 (1797, 64) from 0 to 16, and labels, int64 (1797,): equal to scikit-learn's
    `load_digits(return_X_y=True)`."""
    with np.load(Path(__file__).with_name("digits.npz")) as arrays:
        return arrays["images"].astype(np.float64), arrays["labels"].astype(np.int64)


class BatchOrder:
    """The training images of rank `rank` in each step.

    Raises ConfigError if a step of all ranks needs more images than there are. Every epoch is a new permutation that
    all ranks generate from the same seed; a step takes `batch_size` images for each rank from it, and the remainder of
    an epoch is skipped.
    """

    def __init__(self, *, rank: int, workers: int, batch_size: int, seed: int):
        self.rank, self.workers, self.batch_size = rank, workers, batch_size
        self._global_batch = workers * batch_size
        self._own = slice(rank * batch_size, (rank + 1) * batch_size)
        self._seed = seed
        if self._global_batch > TRAIN_IMAGES:
            raise ConfigError(
                f"{workers} ranks with a batch of {batch_size} each need {self._global_batch} images a step, but "
                f"there are only {TRAIN_IMAGES}: lower --ranks or --micro-batch"
            )
        self._steps_per_epoch = TRAIN_IMAGES // self._global_batch

    def indices(self, step: int) -> np.ndarray:
        """Image numbers of this rank's batch in `step` (from 0)."""
        epoch, position = divmod(step, self._steps_per_epoch)
        start = position * self._global_batch
        return self._epoch(epoch)[start : start + self._global_batch][self._own]

    def lists(self, steps: int) -> np.ndarray:
        """int64 (epochs, images of an epoch): image numbers of all ranks, for as many epochs as are begun in `steps`
        steps."""
        epochs = -(-steps // self._steps_per_epoch)
        return np.stack([self._epoch(epoch) for epoch in range(epochs)])

    def _epoch(self, epoch: int) -> np.ndarray:
        order = np.random.default_rng((self._seed, epoch)).permutation(TRAIN_IMAGES)
        return order[: self._steps_per_epoch * self._global_batch]
