"""How samples get from shared storage to ranks, as a choice of a job: PyTorch's loader, the same with an LRU cache, a
loader like NoPFS, and SOLAR. Each is played on the index lists of all epochs, which gives what every rank reads in
every step; a storage's bandwidth and seek time make seconds of it, and `stalls_s` what of them training waits for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from emulator.jobs.workload.loading.caches import lru_misses
from host_agent.loading import solar as loading_solar
from switchml.errors import ConfigError
from switchml.runtime.jit import kernel

MOST_ACCESSES = 200_000_000
"""Samples times epochs that are played out one by one: some 4 GB of index lists."""


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """What is read, by whom."""

    samples: int
    sample_bytes: float
    global_batch: int
    ranks: int
    epochs: int
    buffer_samples: int = 0
    """What each rank can keep in memory."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("samples", "global_batch", "ranks", "epochs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected at least 1")
        if self.global_batch > self.samples or self.global_batch % self.ranks:
            raise ConfigError(
                f"a global batch of {self.global_batch} on {self.ranks} ranks from {self.samples} samples; expected a "
                "multiple of the ranks, and no more than there are samples"
            )
        if self.samples * self.epochs > MOST_ACCESSES:
            raise ConfigError(
                f"{self.samples:,} samples in {self.epochs} epochs are too many to play out (at most "
                f"{MOST_ACCESSES:,}); group samples into larger ones, or take fewer epochs"
            )
        if self.buffer_samples < 0 or not self.sample_bytes > 0:
            raise ConfigError(f"buffers of {self.buffer_samples} samples of {self.sample_bytes} bytes make no sense")

    @property
    def steps(self) -> int:
        """In an epoch; what is left over at its end is dropped, as DistributedSampler(drop_last=True) does."""
        return self.samples // self.global_batch

    def batches(self) -> np.ndarray:
        """int32 (epochs, steps, global batch): the shuffled index lists of all epochs, from the seed."""
        generator = np.random.default_rng(self.seed)
        used = self.steps * self.global_batch
        lists = [generator.permutation(self.samples)[:used] for _ in range(self.epochs)]
        return np.array(lists, np.int32).reshape(self.epochs, self.steps, self.global_batch)

    def dealt(self) -> np.ndarray:
        """int32 (steps of all epochs, global batch / ranks, ranks): sample i of a batch goes to rank i mod ranks."""
        return self.batches().reshape(self.epochs * self.steps, -1, self.ranks)


@dataclass(frozen=True, kw_only=True)
class Storage:
    """Where samples lie, and what a rank has at hand."""

    bytes_per_s: float
    """Of the storage, all ranks together."""
    client_bytes_per_s: float = math.inf
    """The most one rank gets."""
    seek_s: float = 0.0
    """Each read costs this before its bytes come."""
    reads_at_once: int = 1
    """How many reads a rank has in flight: its loader's workers."""
    peer_bytes_per_s: float = math.inf
    """From another rank's memory."""
    read_cpu_s: float = 0.0
    """Processor time of a read on its rank, which reads in flight have to share: they wait for storage together, but
    come in one by one."""

    def __post_init__(self) -> None:
        rates = (self.bytes_per_s, self.client_bytes_per_s, self.peer_bytes_per_s)
        if not all(rate > 0 for rate in rates) or min(self.seek_s, self.read_cpu_s) < 0 or self.reads_at_once < 1:
            raise ConfigError("a storage needs rates above 0, times of at least 0 and a read at once")


@dataclass(frozen=True)
class Loads:
    """What a loader does in each step; arrays (steps of all epochs, ranks) int64."""

    batch: np.ndarray
    """Samples that the rank trains on."""
    misses: np.ndarray
    """Of them, those that it must read from storage."""
    peer_hits: np.ndarray
    """Those that it gets from another rank's memory."""
    reads: np.ndarray
    """Read requests to storage."""
    read_samples: np.ndarray
    """Samples that those bring, the ones in between that nobody asked for included."""
    epochs: list[int]
    """The order in which epochs are trained."""

    def seconds(self, dataset: Dataset, storage: Storage) -> np.ndarray:
        """float64 (steps, ranks): how long each rank's loader is busy with each step's batch. Storage is shared
        evenly by the ranks that read in a step."""
        reading = np.maximum((self.reads > 0).sum(axis=1, keepdims=True), 1)
        rate = np.minimum(storage.client_bytes_per_s, storage.bytes_per_s / reading)
        moving_s = self.read_samples * dataset.sample_bytes / rate
        peers_s = self.peer_hits * dataset.sample_bytes / storage.peer_bytes_per_s
        coming_s = self.reads * storage.seek_s / storage.reads_at_once + moving_s
        return np.maximum(coming_s, self.reads * storage.read_cpu_s) + peers_s

    def hit_rate(self) -> float:
        """The share of samples that did not come from storage."""
        return 1.0 - float(self.misses.sum()) / float(self.batch.sum())


@dataclass(frozen=True)
class Work:
    """What playing a loader takes, about."""

    steps: float
    """Simple ones, of a compiled loop."""
    size_bytes: float

    @classmethod
    def of(cls, loader: str, dataset: Dataset) -> Work:
        """Measured: 60 bytes an access; whole arrays of samples for each rank of `lru` and `nopfs`, which sorts them;
        in `solar` each rank looks at all of each batch, epochs are compared in pairs, and ordered in Python."""
        accesses, places = dataset.samples * dataset.epochs, dataset.ranks * dataset.samples
        kept = dataset.ranks * dataset.buffer_samples
        steps, size_bytes = {
            "lru": (8.0 * places, 0.0),
            "nopfs": (60.0 * places, 2.0 * places),
            "solar": (
                accesses * (2.0 * dataset.ranks + 300.0 * (1 + dataset.ranks / dataset.global_batch))
                + dataset.epochs**2 * (min(kept, dataset.samples) + 8e4),
                64.0 * kept + 16.0 * dataset.ranks * dataset.global_batch + 2.0 * accesses,
            ),
        }.get(loader, (0.0, 0.0))
        return cls(150.0 * accesses + steps, 60.0 * accesses + size_bytes)


def pytorch(dataset: Dataset, storage: Storage) -> Loads:
    """torch's DataLoader with DistributedSampler: nothing is kept."""
    return _by_rank(dataset, lambda accesses: np.ones(len(accesses), bool))


def lru(dataset: Dataset, storage: Storage) -> Loads:
    """The same, each rank with a cache of `buffer_samples` that evicts the least recently used."""
    return _by_rank(dataset, lambda accesses: lru_misses(accesses, dataset.samples, dataset.buffer_samples))


def _by_rank(dataset: Dataset, misses_of: Callable[[np.ndarray], np.ndarray]) -> Loads:
    dealt = dataset.dealt()
    misses = np.empty((len(dealt), dataset.ranks), np.int64)
    for rank in range(dataset.ranks):
        mine = np.ascontiguousarray(dealt[:, :, rank])
        misses[:, rank] = misses_of(mine.ravel()).reshape(mine.shape).sum(axis=1)
    return _one_by_one(dataset, misses, np.zeros_like(misses))


def _one_by_one(dataset: Dataset, misses: np.ndarray, peer_hits: np.ndarray) -> Loads:
    """Even batches, epochs in order, a read for each miss."""
    batch = np.full_like(misses, dataset.global_batch // dataset.ranks)
    return Loads(batch, misses, peer_hits, misses, misses, list(range(dataset.epochs)))


def nopfs(dataset: Dataset, storage: Storage) -> Loads:
    """Like NoPFS (Dryden et al., SC 2021, arXiv 2101.08734): a rank keeps, from its first access on, the samples that
    it will access most often in all epochs; what another rank keeps it gets from there, the rest from storage."""
    dealt = dataset.dealt()
    is_cached = np.zeros((dataset.ranks, dataset.samples), bool)
    for rank in range(dataset.ranks):
        frequency = np.bincount(dealt[:, :, rank].ravel(), minlength=dataset.samples)
        often = np.argsort(-frequency, kind="stable")[: dataset.buffer_samples]
        is_cached[rank, often[frequency[often] > 0]] = True
    return _one_by_one(dataset, *_play_nopfs(dealt, is_cached))


@kernel
def _play_nopfs(dealt, is_cached):
    steps, each, ranks = dealt.shape
    misses, peer_hits = np.zeros((steps, ranks), np.int64), np.zeros((steps, ranks), np.int64)
    is_here = np.zeros(is_cached.shape, np.bool_)
    holders = np.zeros(is_cached.shape[1], np.int64)
    for step in range(steps):
        for rank in range(ranks):
            for i in range(each):
                sample = dealt[step, i, rank]
                if is_here[rank, sample]:
                    continue
                if holders[sample]:
                    peer_hits[step, rank] += 1
                else:
                    misses[step, rank] += 1
        for rank in range(ranks):
            for i in range(each):
                sample = dealt[step, i, rank]
                if is_cached[rank, sample] and not is_here[rank, sample]:
                    is_here[rank, sample] = True
                    holders[sample] += 1
    return misses, peer_hits


IMBALANCE = 1.25
"""SOLAR: how many times its even share of a batch a rank may get at most."""


def solar(
    dataset: Dataset,
    storage: Storage,
    imbalance: float = IMBALANCE,
    window: int = 1,
    gap_bytes: float | None = None,
    reorder: bool = True,
) -> Loads:
    """SOLAR's plan, see `loading_solar`. What a rank holds beyond its bound on batches, another one reads again.

    `window`: reads of so many steps are joined, where at most `gap_bytes` lie between them; None: where reading
    along is quicker than another read. `reorder`: epochs, to reuse most. PlannedLoader: 8, 32 KiB, False."""
    batches = dataset.batches()
    buffered = dataset.buffer_samples * dataset.ranks
    flat = batches.reshape(dataset.epochs, -1)
    order = list(range(dataset.epochs))
    if reorder and 0 < buffered < dataset.samples:
        buffered = min(buffered, flat.shape[1])
        order = loading_solar.epoch_order(loading_solar.overlaps(flat, dataset.samples, buffered))
    planned = np.ascontiguousarray(batches[order].reshape(-1, dataset.global_batch))
    each = dataset.global_batch // dataset.ranks
    most = max(each, min(dataset.global_batch, math.floor(each * imbalance)))
    rank_of, held_by, *_ = loading_solar.assign(
        planned, dataset.samples, dataset.ranks, dataset.buffer_samples, most, window, dataset.steps, 0
    )
    gap = read_gap(dataset, storage) if gap_bytes is None else int(gap_bytes / dataset.sample_bytes)
    batch, misses, reads, span = loading_solar.reads(
        planned, rank_of, rank_of != held_by, dataset.ranks, gap, window, dataset.steps
    )
    return Loads(batch, misses, np.zeros_like(batch), reads, span, order)


def read_gap(dataset: Dataset, storage: Storage) -> int:
    """Up to how many unwanted samples between two wanted ones it is faster to read along than to seek over."""
    rate = min(storage.client_bytes_per_s, storage.bytes_per_s / dataset.ranks)
    return int(storage.seek_s / storage.reads_at_once * rate / dataset.sample_bytes)


LOADERS: dict[str, Callable[[Dataset, Storage], Loads]] = dict(pytorch=pytorch, lru=lru, nopfs=nopfs, solar=solar)
"""Name → loader; what a job's option `loader` may say."""


def loads(loader: str, dataset: Dataset, storage: Storage) -> Loads:
    """Play `loader` on `dataset`."""
    if loader not in LOADERS:
        raise ConfigError(f"unknown loader {loader!r}; there are {', '.join(LOADERS)}")
    return LOADERS[loader](dataset, storage)


@kernel
def stalls_s(load_s, step_s, prefetch):
    """float64 (steps,): how long all ranks wait for the last one's batch before each step. Loaders run ahead of
    training by up to `prefetch` batches (DataLoader's prefetch_factor · num_workers); no rank begins a step
    before all can. `load_s`: float64 (steps, ranks); `step_s`: float64 (steps,), what training takes for each."""
    steps, ranks = load_s.shape
    stalls = np.zeros(steps)
    begun = np.zeros(steps)
    loaded = np.zeros(ranks)
    free_s = 0.0
    for step in range(steps):
        ready_s = 0.0
        for rank in range(ranks):
            # A place in the queue is free when training takes the batch that is `prefetch` before.
            since_s = begun[step - prefetch] if step >= prefetch else 0.0
            loaded[rank] = max(loaded[rank], since_s) + load_s[step, rank]
            ready_s = max(ready_s, loaded[rank])
        begun[step] = max(free_s, ready_s)
        stalls[step] = begun[step] - free_s
        free_s = begun[step] + step_s[step]
    return stalls


@dataclass(frozen=True)
class Loading:
    """What a loader costs a job, per step on average over all epochs."""

    loader: str
    stall_s: float
    """What a step takes longer: the part "loading" of an iteration."""
    imbalance_s: float
    """Of that, not waiting for samples but training the largest local batch, where they are unequal (SOLAR)."""
    busy_s: float
    """The slowest rank's loader works this long, mostly behind training."""
    storage_bytes: float
    """From storage, all ranks together."""
    hit_rate: float
    largest_batch: int
    """Of one rank; more than its even share where SOLAR moves samples to who holds them."""

    def to_json(self) -> dict[str, float | str]:
        """For `--json`."""
        return dict(vars(self))


def loading(
    loader: str,
    dataset: Dataset,
    storage: Storage,
    iteration_s: float,
    *,
    compute_s: float = 0.0,
    prefetch: int = 2,
    window: int = 1,
    gap_bytes: float | None = None,
) -> Loading:
    """Play `loader` beside training that takes `iteration_s` a step. `prefetch`: batches that a rank loads ahead, of
    torch's DataLoader prefetch_factor · num_workers. `compute_s` of the step grows with the local batch of the rank
    that has most. `window`, `gap_bytes`: of SOLAR's reads."""
    if prefetch < 1 or window < 1:
        raise ConfigError(f"a loader that is {prefetch} batches ahead, in windows of {window}; expected at least 1")
    if loader == "solar":
        played = solar(dataset, storage, window=window, gap_bytes=gap_bytes)
    else:
        played = loads(loader, dataset, storage)
    seconds = played.seconds(dataset, storage)
    imbalance_s = compute_s * (played.batch.max(axis=1) * (dataset.ranks / dataset.global_batch) - 1.0)
    waits_s = stalls_s(seconds, iteration_s + imbalance_s, prefetch)
    return Loading(
        loader=loader,
        stall_s=float(waits_s.mean() + imbalance_s.mean()),
        imbalance_s=float(imbalance_s.mean()),
        busy_s=float(seconds.max(axis=1).mean()),
        storage_bytes=float(played.read_samples.sum(axis=1).mean() * dataset.sample_bytes),
        hit_rate=played.hit_rate(),
        largest_batch=int(played.batch.max()),
    )
